"""Writes the pages of docs/ that follow from specs: the data dictionary, and the lists of owners and measures."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from tidemark.account.owners.registry import OWNERS
from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Tables, answers_over
from tidemark.metrics import catalog
from tidemark.model import watched
from tidemark.model.checks import CONDITIONS, SUMS, ConditionKind
from tidemark.model.measures.registry import MEASURES
from tidemark.model.project import connections, registries, spark_settings
from tidemark.model.project.files import CHECKOUT
from tidemark.model.settings import emission, kubernetes, retention
from tidemark.model.settings.declared_tables import Key, TableForm, TableKind
from tidemark.model.settings.windows import WINDOW_FORM
from tidemark.model.slas import calendars, channel_spec, sla_keys
from tidemark.model.tables.catalog import HOP, TABLES, Column, Table
from tidemark.model.toml_operators import operator_form
from tidemark.model.topology_keys import FORM as TOPOLOGY
from tidemark.model.topology_keys import OPERATORS
from tidemark.query import kafka_metrics
from tidemark.query.views import View, views
from tidemark.semantics.liveness import LIMITS, Liveness
from tidemark.sla import watched_why
from tidemark.stream.write.sink_columns import BOUNDS, TIDEMARKS_OWN, WHY
from tidemark.testing import file_format
from tidemark.why import walk

HEAD = """\
# Tables and views

`tidemark docs` writes this page from `jobs/tidemark/model/tables/catalog.py` and `jobs/tidemark/views/`.
[cookbook.md](cookbook.md) has questions with their SQL, and shows how to attach a reader.

Instants are timestamps in UTC. The text of each column names its clock: *record time* comes from the record; *driver
clock*, *finish clock* and *decision time* come from the machine that ran the stream. Lengths of time are whole
milliseconds, `_ms`. Null means unknown or none, never zero. Types have Spark's names. Where a column shows none, the
end of its name says it: `_at`, `_start`, `_end`, `timestamp` and `watermark` are timestamps, `_ms` is a bigint, and
anything else is a string. A condition under *holds* is true of each row in which none of its columns is null, and a
text that lists words with bars lists all of them. Delta enforces this in reports. In tables of streams the SLA check
validates it, and the unique keys, and writes `expectation_results` (docs/alerts.md, Contracts).

`changes`, hops and tables of sinks get each batch at once. The other tables of streams are facts. While a stream runs,
they get a batch together, up to thirty seconds later (`facts_every`, docs/reliability.md); `latency_minutes`
and `partition_batches` up to a minute later. `tidemark sql` also reads facts that are not in tables yet.
"""
SHARED = """\
## Columns of several tables

Each table names those that it has under *shared*, and explains its others.
"""
_TYPE_BY_ENDING = {**dict.fromkeys(("_at", "_start", "_end", "timestamp", "watermark"), "timestamp"), "_ms": "bigint"}
"""Types that the page leaves out, by the end of a column's name, as HEAD says."""
_OR_NULL = re.compile(r"^(\w+ is null or )+")
OF_SINKS = """\
## Tables of sinks and hops

A sink with a `table` writes a table of that name. It has the columns of its records, each with a comment on how the
topology computes it, and the columns below. `window_final` exists for results of windows, `last_seen_at` with the key
of that name, and `deleted` without `mode = "current"`, because a current table removes the row. Rows that are not in a
current table yet are in the table `changes_of_` plus its name; the view of its name has both. Start and end of windows
are timestamps, even if a map renames them.
"""


OF_MEASURES = """\
# Measures of SLAs

`tidemark docs` writes this page from `jobs/tidemark/model/measures/`. [alerts.md](alerts.md#keys-of-an-sla) has the
keys of an SLA.

| measure | subject | definition |
|---|---|---|
"""
OF_OWNERS = """\
# Owners of time and records

`tidemark docs` writes this page from `jobs/tidemark/account/owners/`. [why.md](why.md) explains the account of time.

An owner is a word in `window_parts.owner`, `sla_results.cause` and alerts. *Part of* is its parent in the tree in which
a cause is looked for. Without the facts under *known from*, its time is `unknown`.

| owner | part of | detail | what is said of it | known from | remedy |
|---|---|---|---|---|---|
"""
OF_KEYS = """\
| key | example | type | required / default | meaning |
|---|---|---|---|---|
"""
OF_REMARKS = """\
# Remarks of `tidemark why`

`tidemark docs` writes this page from `jobs/tidemark/why/`. [why.md](why.md) explains the answers before the remarks.

*Recent* means in the last five batches with records, and a source is *silent* after `idle_after` (default: a minute).

| remark | meaning |
|---|---|
"""
OF_WORDS = """\
| word | meaning |
|---|---|
"""
OF_LIMITS = """\
| newest heartbeat | store | comes every | then the lease is looked at | then it is too old |
|---|---|---|---|---|
"""
OF_METRICS = """\
| metric | type | unit | labels beside `topology` | source | meaning |
|---|---|---|---|---|---|
"""
EVERY = "every kind"
"""The mark in a page for keys of tables of every kind."""
NUMBERS = {2: "two", 3: "three", 4: "four"}


def add_options(_: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no arguments."""


def command(_: argparse.Namespace) -> int:
    """Writes the files.

    Raises:
        InvalidArgument: the package has no checkout.
    """
    folder = CHECKOUT / "docs"
    if not folder.is_dir():
        msg = "docs needs a checkout of Tidemark, whose pages it writes; run it in one"
        raise InvalidArgument(msg)
    for name, text in PAGES.items():
        (folder / name).write_text(text(), encoding="utf-8")
        say_inert(f"wrote {folder / name}")
    return 0


def measures() -> str:
    """Returns the text of docs/measures.md."""
    rows = (f"| `{name}` | {measure.of} | {measure.definition} |\n" for name, measure in MEASURES.items())
    return OF_MEASURES + "".join(rows)


def owners() -> str:
    """Returns the text of docs/owners.md."""
    places = {"detail": "DETAIL", "stream": "STREAM", "amount": "TIME"}
    rows = []
    for owner in OWNERS.values():
        parent = f"`{owner.parent}`" if owner.parent else ""
        said = owner.says.format(**places)
        remedy = owner.remedy.format(topology="TOPOLOGY", stream="TOPOLOGY/STREAM", operator="OPERATOR")
        rows.append(f"| `{owner.name}` | {parent} | {owner.detail} | {said} | {owner.proof} | {remedy} |\n")
    return OF_OWNERS + "".join(rows)


def remarks() -> str:
    """Returns the text of docs/remarks.md."""
    rows = (f"| `{cause}` | {cause.meaning} |\n" for cause in sorted({*walk.remarks(), *watched_why.REMARKS}))
    return OF_REMARKS + "".join(rows)


def channels() -> str:
    """Returns the text of docs/channels.md, with the keys as they are declared."""
    form = channel_spec.FORM
    return _with_keys("channels.md", {EVERY: TableForm(keys=form.keys), **_kinds(form)})


def slas() -> str:
    """Returns the text of docs/alerts.md, with the keys of SLAs as they are declared."""
    form = sla_keys.form()
    of_measures = TableForm(keys=tuple(_told_of(kinds, key) for key, kinds in form.kinds_by_key.items()))
    inner = {key.name: key.inner for key in (sla_keys.OBJECTIVE, sla_keys.HOURS) if key.inner}
    return _with_keys(
        "alerts.md", {EVERY: TableForm(keys=form.keys), "measures": of_measures, **inner, "a calendar": calendars.FORM}
    )


def watched_sets() -> str:
    """Returns the text of docs/watch.md, with the keys of sets as they are declared."""
    return _with_keys("watch.md", {"a set": watched.FORM})


def connection_keys() -> str:
    """Returns the text of docs/connections.md, with the keys of clusters and registries as they are declared."""
    return _with_keys("connections.md", {"a cluster": connections.CLUSTER, "a registry": registries.FORM})


def _told_of(kinds: Iterable[TableKind], key: Key[Any]) -> Key[Any]:
    """Returns *key* with the words of the *kinds* that have it."""
    words = ", ".join(f"`{kind.word}`" for kind in kinds if kind.word)
    return replace(key, meaning=f"for {words}: {key.meaning}") if words else key


def topologies() -> str:
    """Returns the text of docs/topologies.md, with the keys as they are declared."""
    tables: dict[str, TableForm | TableKind] = {
        "the topology": replace(TOPOLOGY, keys=tuple(key for key in TOPOLOGY.keys if key is not OPERATORS)),
        "windows": WINDOW_FORM,
        "spark": spark_settings.FORM,
        "emission": TableForm(keys=emission.PAGE.all),
    }
    # What a strategy has beside it is explained once.
    elsewhere = {key.name for key in emission.PAGE.all} - {emission.STRATEGY.name}
    for name, kind in _kinds(operator_form()).items():
        tables[name] = replace(kind, keys=tuple(key for key in kind.keys if key.name not in elsewhere))
    return _with_keys("topologies.md", tables)


def maintenance() -> str:
    """Returns the text of docs/maintenance.md, with the keys as they are declared."""
    return _with_keys("maintenance.md", {"retention": retention.FORM})


def testing() -> str:
    """Returns the text of docs/testing.md, with the keys as they are declared and the tests of a recipe."""
    records, joined = file_format.GIVEN.kinds
    tables: dict[str, TableForm | TableKind] = {
        "a file": file_format.FORM,
        "a test": file_format.TEST,
        "given records": records,
        "a record": file_format.RECORD,
        "a joined table": joined,
        "what is expected": file_format.EXPECTED,
    }
    return _with_keys("testing.md", tables, _files("recipes/tests/iot.toml", "toml"))


def pods() -> str:
    """Returns the text of docs/kubernetes.md, with the keys as they are declared and the files of docs/kubernetes/."""
    return _with_keys("kubernetes.md", {"pods": kubernetes.FORM}, _files("kubernetes/*.yaml", "yaml"))


def _kinds(form: TableForm) -> dict[str, TableKind]:
    return {kind.name: kind for kind in form.kinds}


def _with_keys(
    name: str, tables: Mapping[str, TableForm | TableKind], parts: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Returns the text of the page *name* with the keys of *tables*, and with other *parts*, between their marks."""
    rows = {mark: "".join(_row(key, table.one_of) for key in table.keys) for mark, table in tables.items()}
    return _filled(name, {f"keys of {mark}": OF_KEYS + of_table for mark, of_table in rows.items()} | dict(parts))


def _row(key: Key[Any], groups: Iterable[Sequence[Key[Any]]]) -> str:
    return f"| `{key.name}` | `{key.example}` | {key.of_type.word} | {_without(key, groups)} | {key.meaning} |\n"


def _without(key: Key[Any], groups: Iterable[Sequence[Key[Any]]]) -> str:
    """Returns what a table without *key* means, of which it has exactly one of each of *groups*."""
    if key.is_required:
        return "required"
    if group := next((group for group in groups if key in group), None):
        return f"one of the {NUMBERS[len(group)]}"
    if key.required_if is None:
        return f"`{key.default_text}`" if key.default_text else key.without
    required = f"required {key.required_if.conditions[0].for_pages}"
    return required if key.without == "none" else f"{key.without}; {required}"


def operations() -> str:
    """Returns the text of docs/operations.md, with the words of streams and the limits that they go by."""
    words = "".join(f"| `{word}` | {word.meaning} |\n" for word in Liveness)
    limits = "".join(
        f"| `{kind}` | {store} | {each.every_ms // 1_000} s | {each.lease_after_ms // 1_000} s "
        f"| {each.silent_after_ms // 1_000} s |\n"
        for (kind, store), each in LIMITS.items()
    )
    return _filled("operations.md", {"words of states": OF_WORDS + words, "limits of heartbeats": OF_LIMITS + limits})


def metrics() -> str:
    """Returns the text of docs/metrics.md, with all metrics."""
    rows = []
    for metric in catalog.metrics().values():
        name = f"{metric.name}_total" if metric.type is catalog.MetricType.COUNTER else metric.name
        labels = ", ".join(f"`{label}`" for label in metric.labels[1:]) or "none"
        cells = (f"`{name}`", metric.type, metric.unit or "none", labels, metric.source, metric.meaning)
        rows.append(f"| {' | '.join(cells)} |\n")
    return _filled("metrics.md", {"metrics": OF_METRICS + "".join(rows)})


def recipes() -> str:
    """Returns the text of docs/recipes.md, with the topologies of docs/recipes/."""
    return _filled("recipes.md", _files("recipes/*.toml", "toml"))


def extending() -> str:
    """Returns the text of docs/extending.md, with the modules of docs/extending/."""
    return _filled("extending.md", _files("extending/*.py", "python"))


def _files(pattern: str, language: str) -> dict[str, str]:
    """Returns the files of docs/ that match *pattern*, as blocks of a page by their path."""
    docs = CHECKOUT / "docs"
    texts = {file: file.read_text(encoding="utf-8") for file in sorted(docs.glob(pattern))}
    return {file.relative_to(docs).as_posix(): f"```{language}\n{text}```\n" for file, text in texts.items()}


def _filled(name: str, parts: Mapping[str, str]) -> str:
    """Returns the text of the page *name* with *parts* between their marks."""
    page = (CHECKOUT / "docs" / name).read_text(encoding="utf-8")
    for mark, part in parts.items():
        begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->\n"
        head, begins, rest = page.partition(begin)
        _, ends, tail = rest.partition(end)
        if not (begins and ends):
            msg = f"{name} has no place for the {mark}; write the lines {begin.strip()} and {end.strip()}"
            raise InvalidArgument(msg)
        page = f"{head}{begin}{part}{end}{tail}"
    return page


def dictionary() -> str:
    """Returns the text of docs/tables.md."""
    of_streams = [table for table in TABLES.values() if table.written_by == "stream"]
    of_reports = [table for table in TABLES.values() if table.written_by != "stream"]
    shared = _shared_columns()
    # A warehouse without tables still has all views, so DuckDB can describe their columns.
    with TemporaryDirectory() as nowhere:
        empty = answers_over(Path(nowhere))
    parts = [
        HEAD,
        SHARED,
        _column_list(shared),
        "## Views\n",
        *(_view(view, empty) for view in sorted([*views(), kafka_metrics.VIEW], key=lambda view: view.name)),
        "## Tables of streams\n",
        *(_table(table, shared) for table in of_streams),
        "## Reports\n",
        *(_table(table, shared) for table in of_reports),
        OF_SINKS,
        _sink_section(),
        "The table `hop_<its name>` has the output of a repartition.\n",
        _table(HOP, shared),
    ]
    return "\n".join(parts)


def _shared_columns() -> list[Column]:
    """Returns the columns that mean the same in several tables, the most frequent first."""
    tables = Counter(column for table in (*TABLES.values(), HOP) for column in table.columns)
    return [column for column, n in tables.most_common() if n > 1]


def _sink_section() -> str:
    text = ""
    for name, meaning in {**BOUNDS, **TIDEMARKS_OWN}.items():
        kind, why = WHY[name]
        text += f"* `{name}`{_type(name, kind)}: {meaning}. Purpose: {why}\n"
    return text


def _view(view: View, empty: Tables) -> str:
    described = empty.ask(f"DESCRIBE {view.name}").rows
    columns = ", ".join(f"`{name}`{_type(name, _word(kind))}" for name, kind, *_ in described)
    only = " It exists in `tidemark sql` alone." if view is kafka_metrics.VIEW else ""
    return f"### {view.name}\n\nOne row per {view.row}.{only}\n\n{columns}\n"


def _table(table: Table, shared: Collection[Column]) -> str:
    key = f" Its key: {_named(table.key)}." if table.key else ""
    parts = [f"### {table.name}\n", f"One row per {table.row}.{key}\n"]
    if of_many := [column.name for column in table.columns if column in shared]:
        parts.append(f"Shared: {_named(of_many)}.\n")
    parts.append(_column_list([column for column in table.columns if column not in shared]))
    if holds := list(_holds(table)):
        parts.append(f"Holds: {'; '.join(holds)}.\n")
    return "\n".join(parts)


def _column_list(columns: Iterable[Column]) -> str:
    """Returns a line for each column; columns with one meaning, one after the other, have a line together."""
    text = ""
    for (shown, comment), alike in groupby(columns, key=lambda each: (_type(each.name, each.type), each.comment)):
        text += f"* {_named(column.name for column in alike)}{shown}: {comment}\n"
    return text


def _holds(table: Table) -> Iterator[str]:
    """Yields what is true for every row of *table*."""
    comments = {column.name: column.comment for column in table.columns}
    conditions = CONDITIONS.get(table.name, {})
    if counts := [*map(_counted_by, conditions.get(ConditionKind.COUNTS, {}).values())]:
        yield f"not negative: {_named(counts)}"
    for condition in conditions.get(ConditionKind.KNOWN_WORDS, {}).values():
        name, words = _OR_NULL.sub("", condition).split(" in ", 1)
        # Most comments list the words already, or name the place that does.
        if not re.search(r" \| |\bas in\b", comments[name]):
            yield f"`{name}` in `{words}`"
    for condition in conditions.get(ConditionKind.RELATIONS, {}).values():
        yield f"`{_OR_NULL.sub('', condition)}`"
    if whole := SUMS.get(table.name):
        yield f"`{whole.whole}` = sum of `{whole.parts}` in {whole.of}, by key"


def _counted_by(condition: str) -> str:
    """Returns the column, or the field of a list, of which *condition* says that it is not negative."""
    if of_list := re.search(r"\bx\.(\w+) for x in (\w+)", condition):
        field, column = of_list.groups()
        return f"{column}.{field}"
    return _OR_NULL.sub("", condition).split()[0]


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _type(name: str, ddl: str) -> str:
    """Returns the type as the page shows it behind the column's name, which may say it already."""
    implied = next((kind for ending, kind in _TYPE_BY_ENDING.items() if name.endswith(ending)), "string")
    return "" if ddl == implied else f" {ddl}"


def _word(kind: str) -> str:
    if kind.endswith("[]"):
        return "array"
    return {"VARCHAR": "string", "TIMESTAMP WITH TIME ZONE": "timestamp", "INTEGER": "int", "BLOB": "binary"}.get(
        kind, kind.lower()
    )


PAGES = MappingProxyType(
    {
        "tables.md": dictionary,
        "owners.md": owners,
        "measures.md": measures,
        "remarks.md": remarks,
        "channels.md": channels,
        "alerts.md": slas,
        "watch.md": watched_sets,
        "connections.md": connection_keys,
        "topologies.md": topologies,
        "maintenance.md": maintenance,
        "kubernetes.md": pods,
        "testing.md": testing,
        "operations.md": operations,
        "metrics.md": metrics,
        "recipes.md": recipes,
        "extending.md": extending,
    }
)
"""The pages of docs/ that this command writes, with what returns their text."""
