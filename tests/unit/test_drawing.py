"""A topology is drawn so that its critical path can be followed."""

from tidemark.reports.pages.drawing import BOX, GAP, MARGIN, draw

SEED = {"A": (), "B": ("A",), "C": ("A",), "D": ("B",), "E": ("C",), "F": ("C",)}


def place(name):
    (box,) = (box for box in draw(SEED, ["A", "C", "E"]).boxes if box.name == name)
    return (box.x - MARGIN) // (BOX[0] + GAP[0]), (box.y - MARGIN) // (BOX[1] + GAP[1])


def test_the_path_runs_along_the_top_row_a_column_a_step():
    assert [place(name) for name in ("A", "C", "E")] == [(0, 0), (1, 0), (2, 0)]


def test_no_two_operators_stand_in_one_place():
    assert len({place(name) for name in SEED}) == 6
    assert place("B") == (1, 1)


def test_edges_of_the_path_are_told_from_others_and_lie_on_top():
    edges = draw(SEED, ["A", "C", "E"]).edges
    assert [(edge.reads, edge.name) for edge in edges if edge.on_path] == [("A", "C"), ("C", "E")]
    assert [edge.on_path for edge in edges] == [False, False, False, True, True]


def test_without_a_path_nothing_is_highlighted():
    drawn = draw(SEED, [])
    assert not any(part.on_path for part in (*drawn.boxes, *drawn.edges))


def test_the_drawing_holds_every_box():
    drawn = draw(SEED, ["A", "C", "E"])
    assert drawn.width == 2 * MARGIN + 3 * BOX[0] + 2 * GAP[0]
    assert all(box.y + BOX[1] + MARGIN <= drawn.height for box in drawn.boxes)
