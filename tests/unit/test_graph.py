"""Walks of graphs are those of networkx."""

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import InvalidArgument
from tidemark.graph import cycle_in, in_order, inverted, reached

NAMES = st.sampled_from("abcdefg")
GRAPHS = st.dictionaries(NAMES, st.lists(NAMES, max_size=3, unique=True))
"""Graphs with and without cycles. Some names are only read."""


def drawn(graph):
    return nx.DiGraph([(name, each) for name, read in graph.items() for each in read])


@given(GRAPHS, st.lists(NAMES, max_size=3, unique=True))
def test_what_is_reached_comes_depth_first(graph, starts):
    with_start = nx.DiGraph([("", name) for name in starts])
    with_start.add_edges_from(drawn(graph).edges)
    expected = list(nx.dfs_preorder_nodes(with_start, "")) if starts else [""]
    assert reached(starts, graph) == expected[1:]


def test_a_name_that_is_read_twice_comes_where_it_is_read_first():
    both = {"union": ("left", "right"), "left": ("source",), "right": ("source", "table")}
    assert reached(["union"], both) == ["union", "left", "source", "right", "table"]
    assert reached(["source"], inverted(both)) == ["source", "left", "union", "right"]


@given(GRAPHS)
def test_an_inverted_graph_has_the_edges_backwards(graph):
    assert {*drawn(inverted(graph)).edges} == {*drawn(graph).reverse().edges}


@given(GRAPHS)
def test_names_come_after_those_that_they_read_unless_there_is_a_cycle(graph):
    cycle = cycle_in(graph)
    assert nx.is_directed_acyclic_graph(drawn(graph)) == (not cycle)
    if not cycle:
        order = in_order(graph)
        assert {*order} == {*graph, *drawn(graph)}
        assert all(order.index(read) < order.index(name) for name, read in drawn(graph).edges)
        return
    assert cycle[0] == cycle[-1]
    assert all(read in graph[reader] for read, reader in pairwise(cycle))
    with pytest.raises(InvalidArgument, match=f"must not form a cycle, got {' → '.join(cycle)}; remove one of its"):
        in_order(graph)


def test_names_that_do_not_read_each_other_keep_their_order():
    assert in_order({"c": ("b",), "d": (), "b": (), "a": ("d", "b")}) == ("b", "d", "c", "a")
