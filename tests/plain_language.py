"""Checks the rules of plain language (CONTRIBUTING.md) that a machine can check.

`make check` runs it over the whole product, `tests/reference` and `tests/support`, the docstrings and comments of
all other tests, and the pages.
"""

from __future__ import annotations

import ast
import gc
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PRODUCT = ("jobs", "plugins", "dags")
CHECKED = (*PRODUCT, "tests/reference", "tests/support", "tests/plain_language.py")
TESTS = "tests"
"""Folder in which docstrings, comments and names of tests are checked.

Other names and strings there are not: they may be those of records.
"""
PAGES = ("*.md", "docs/**/*.md")
REFUSED_OPENINGS = frozenset({"what", "whether", "who", "those", "one", "of"})
REFUSED_WORDS = frozenset({"told", "said", "nobody", "somebody", "whoever"})
REFUSED_NAMES = frozenset({"told", "said", "found", "known", "taken", "did"})
MOST_WORDS_OF_A_FIRST_LINE = 12
MOST_LETTERS_OF_A_TEST_NAME = 60
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Complaint = tuple[int, str]


@cache
def parsed(path: Path) -> ast.Module:
    """Returns the tree of a file, which several checks need."""
    return ast.parse(path.read_text())


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Returns every node of *tree*."""
    return tuple(ast.walk(tree))


@cache
def sentences(path: Path) -> tuple[tokenize.TokenInfo, ...]:
    """Returns the comments that are sentences, not the switches of a tool."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    comments = (token for token in tokens if token.type == tokenize.COMMENT)
    return tuple(one for one in comments if not one.string.startswith(("# noqa", "# type:", "# pragma")))


def words(text: str) -> list[str]:
    """Returns the lower-case words of *text* without punctuation."""
    stripped = (word.strip(".,;:!?()[]{}*`'\"") for word in text.lower().split())
    return [word for word in stripped if word]


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yields every string that is a statement.

    They are docstrings, and texts below constants and fields.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def refused_words(text: str) -> list[str]:
    """Returns the refused words of *text* outside of backticks.

    In backticks are names of columns, keys and files.
    """
    prose = re.sub(r"`[^`]*`", "", text)
    return sorted(REFUSED_WORDS.intersection(words(prose)))


def check_docstring(docstring: ast.Constant) -> Iterator[Complaint]:
    """Yields complaints about the opening and the length of the first line."""
    first_line = str(docstring.value).strip().partition("\n")[0]
    opening = next(iter(words(first_line)), "")
    if opening in REFUSED_OPENINGS:
        yield docstring.lineno, f"begins with {opening!r}; begin with a verb, or with the noun it describes"
    length = len(first_line.split())
    if length > MOST_WORDS_OF_A_FIRST_LINE:
        yield docstring.lineno, f"first line has {length} words; {MOST_WORDS_OF_A_FIRST_LINE} at most"


def check_words(tree: ast.AST) -> Iterator[Complaint]:
    """Yields complaints about words in docstrings, messages and help.

    These are strings with spaces.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for word in refused_words(node.value):
                yield node.lineno, f"says {word!r}; name who does what"


def check_docstring_words(docstring: ast.Constant) -> Iterator[Complaint]:
    """Yields complaints about words in a docstring."""
    for word in refused_words(str(docstring.value)):
        yield docstring.lineno, f"says {word!r}; name who does what"


def check_comments(path: Path) -> Iterator[Complaint]:
    """Yields complaints about words in comments."""
    for comment in sentences(path):
        for word in sorted(REFUSED_WORDS.intersection(words(comment.string))):
            yield comment.start[0], f"says {word!r}; name who does what"


def check_names(tree: ast.AST) -> Iterator[Complaint]:
    """Yields complaints about names that are participles."""
    # Fields are keys of stored files, so they keep their names.
    classes = (node for node in nodes(tree) if isinstance(node, ast.ClassDef))
    annotated = (part for node in classes for part in node.body if isinstance(part, ast.AnnAssign))
    fields = {ast.unparse(part.target) for part in annotated}
    for node in nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in REFUSED_NAMES - fields:
            yield node.lineno, f"{node.id}: a participle; name what it holds"
        if isinstance(node, ast.FunctionDef):
            # Callers in folders that are not clean yet pass keyword-only arguments by name.
            for argument in (*node.args.posonlyargs, *node.args.args):
                if argument.arg in REFUSED_NAMES:
                    yield node.lineno, f"{argument.arg}: a participle; name what it holds"


def check_test_names(tree: ast.AST) -> Iterator[Complaint]:
    """Yields complaints about long names of tests."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            length = len(node.name)
            if length > MOST_LETTERS_OF_A_TEST_NAME:
                yield node.lineno, f"{node.name} has {length} letters; {MOST_LETTERS_OF_A_TEST_NAME} at most"


def check_file(path: Path) -> Iterator[str]:
    """Yields the complaints about one file, each with its line."""
    tree = parsed(path)
    complaints = [complaint for docstring in docstrings(tree) for complaint in check_docstring(docstring)]
    complaints += [*check_words(tree), *check_comments(path), *check_names(tree), *check_test_names(tree)]
    yield from placed(path, complaints)


def check_test_prose(path: Path) -> Iterator[Complaint]:
    """Yields complaints about the prose of a test file.

    Records and messages of tests may have any words.
    """
    tree = parsed(path)
    yield from check_comments(path)
    yield from check_test_names(tree)
    for docstring in docstrings(tree):
        yield from check_docstring(docstring)
        yield from check_docstring_words(docstring)


def check_page(text: str) -> Iterator[Complaint]:
    """Yields complaints about words of a page outside of its code."""
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        is_fence = line.lstrip().startswith("```")
        in_code ^= is_fence
        if not (in_code or is_fence):
            for word in refused_words(line):
                yield number, f"says {word!r}; name who does what"


def placed(path: Path, complaints: list[Complaint]) -> Iterator[str]:
    """Yields *complaints* about the file at *path* with their place."""
    for line, complaint in sorted(complaints):
        yield f"{path.relative_to(PROJECT)}:{line}: {complaint}"


def check_classes(paths: list[Path]) -> Iterator[str]:
    """Yields the classes that have a name twice."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in nodes(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(PROJECT)}:{node.lineno}")
    for name, of_name in sorted(places.items()):
        if len(of_name) > 1:
            yield f"{of_name[0]}: class {name} exists {len(of_name)} times: {', '.join(of_name[1:])}"


def densities(folder: str) -> str:
    """Returns comments and comprehensions per 100 lines of a *folder*."""
    paths = python_files(folder)
    lines = sum(path.read_text().count("\n") for path in paths) or 1
    all_comments = sum(len(sentences(path)) for path in paths)
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for path in paths for node in nodes(parsed(path)))
    return f"{folder:32} {lines:6,} {100 * all_comments / lines:8.1f} {100 * comprehensions / lines:14.1f}"


def python_files(folder: str) -> list[Path]:
    """Returns the Python files of a folder, or a single file."""
    place = PROJECT / folder
    paths = [place] if place.is_file() else place.rglob("*.py")
    return sorted(paths)


def main(folders: list[str]) -> int:
    """Checks *folders*, prints densities, and returns 1 for any complaint.

    Without *folders* it checks those that are CHECKED.
    """
    checked = sorted({path for folder in folders or CHECKED for path in python_files(folder)})
    complaints = [complaint for path in checked for complaint in check_file(path)]
    if not folders:
        for path in python_files(TESTS):
            if path not in checked:
                complaints += placed(path, [*check_test_prose(path)])
        for path in sorted({path for pattern in PAGES for path in PROJECT.glob(pattern)}):
            complaints += placed(path, [*check_page(path.read_text())])
    # A model in tests/reference may have the name of what it models.
    complaints += check_classes([path for path in checked if path.relative_to(PROJECT).parts[0] in PRODUCT])
    for complaint in complaints:
        print(complaint)
    print(f"{'':32} {'lines':>6} {'comments':>8} {'comprehensions':>14}  per 100 lines")
    for folder in folders or PRODUCT:
        print(densities(folder))
    return 1 if complaints else 0


if __name__ == "__main__":
    gc.disable()
    sys.exit(main(sys.argv[1:]))
