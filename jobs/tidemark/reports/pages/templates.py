"""Loads the templates of pages, in which Jinja2 escapes everything, and formats values for people."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined, Template
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from tidemark.account.owners.registry import is_at_operator
from tidemark.facts.incidents import state_in_words
from tidemark.model.settings.intervals import INSTANTS, utc
from tidemark.model.settings.lengths import by_number, counted, exact_percent, for_people, percent
from tidemark.reports.paths.path_text import (
    judged_text,
    judged_windows_text,
    part_text,
)
from tidemark.safe_text import inert
from tidemark.selection import present
from tidemark.semantics.segments import FACTS, JOURNAL, TASKS_OF_SPARK

COMMANDS = re.compile(r"(?<!`)(?P<marks>`+)(?P<command>(?:tidemark|airflow) .+?)(?<!`)(?P=marks)(?!`)", re.DOTALL)
"""Matches commands in remedies, as `safe_text.as_code` writes them, but no other text in backticks."""
OF_PART = re.compile(r"[a-z ]+: `")
"""Matches the beginning of a part of an age: its owner, and a name."""
NAMES = re.compile(r"(?<!`)`(?P<name>[\w./-]+(?:, [\w./-]+)*)`(?!`)")
"""Matches names in backticks: of operators, streams, tables and kinds of work."""
KINDS_OF_WORK = frozenset({"planning", "commit", TASKS_OF_SPARK, JOURNAL, FACTS})
"""Details of owners of time that name no operator, stream or table."""
REFRESH_S = 15
"""Interval after which a page about the present is loaded again, s."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of pages, which allows nothing but styles and inline images."""


def template(name: str) -> Template:
    """Loads the template *name*, which is `folder/file`."""
    return _environment().get_template(name)


class _CompiledTemplates(FileSystemBytecodeCache):
    """Cache of templates that this user's processes have compiled, in a folder to which no other user can write."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Stores *bucket*, if there is space for it."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _compiled_templates() -> _CompiledTemplates | None:
    """Returns the cache of compiled templates, or None if there is no safe folder for it."""
    with suppress(OSError, RuntimeError):
        return _CompiledTemplates(pattern=f"tidemark-{jinja2.__version__}-%s")
    return None


@cache
def _environment() -> Environment:
    # Compiling a page takes longer than rendering it, and a job renders few pages: the cache outlives the job.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[2]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_controls,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_compiled_templates(),
    )
    environment.filters |= {
        "n": "{:,}".format,
        "counted": counted,
        "by_number": by_number,
        "ms": length,
        "ago": ago,
        "is_at_operator": is_at_operator,
        "at": utc,
        "moment": moment,
        "day_and_clock": "{:%Y-%m-%d %H:%M:%S}".format,
        "percent": part_of_whole,
        "exact_percent": exact_percent,
        "words": lambda name: str(name).replace("_", " "),
        "state_in_words": state_in_words,
        "code": code,
        "sentence": sentence,
        "judged": lambda verdict: judged_text(verdict, length),
        "part": part_text,
        "named": named,
        "judged_windows": lambda judged: judged_windows_text(judged, length),
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
        "as_sentence": as_sentence,
        "report_name": report_name,
    }
    return environment


def _without_controls(value: Any) -> Any:
    """Removes characters that a browser obeys: those that turn the direction of writing change what text says."""
    # By its own type, so that markup stays markup.
    return type(value)(inert(value)) if isinstance(value, str) else value


def code(text: str) -> Markup:
    """Marks up the commands in backticks in *text* as code.

    >>> code("a < b: `tidemark why flights`")
    Markup('a &lt; b: <code>tidemark why flights</code>')
    """
    return Markup(COMMANDS.sub(r"<code>\g<command></code>", str(escape(text))))


def sentence(text: str, names: Iterable[str | None] = ()) -> Markup:
    """Marks up a sentence that commands print, too: commands and names in backticks as code, instants as `moment`.

    A name is one of *names*, several of them with commas between, a stream TOPOLOGY/NAME with one of them, or a kind of
    work. Other text in backticks, such as that of a record, stays text.

    >>> sentence("`a/b` was drained at 2026-01-31T12:00:00.000Z: `tidemark up a`", ["b"])
    Markup('<code>a/b</code> was drained at 2026-01-31 12:00:00: <code>tidemark up a</code>')
    >>> sentence("`a:b`, `c, d`, `planning` and `e`", ["a:b", "c", "d"])
    Markup('<code>a:b</code>, <code>c, d</code>, <code>planning</code> and `e`')
    """
    parts, shown, begin = list[str](), str(escape(text)), 0
    for command in COMMANDS.finditer(shown):
        parts += [_told(shown[begin : command.start()], names), f"<code>{command['command']}</code>"]
        begin = command.end()
    return Markup("".join([*parts, _told(shown[begin:], names)]))


def _told(shown: str, names: Iterable[str | None]) -> str:
    told, known = INSTANTS.sub(r"\g<day> \g<clock>", shown), {*map(str, map(escape, present(names)))}
    for name in known:
        told = told.replace(f"`{name}`", f"<code>{name}</code>")
    known |= KINDS_OF_WORK

    def marked(match: re.Match[str]) -> str:
        are_known = all({name, name.rpartition("/")[2]} & known for name in match["name"].split(", "))
        return f"<code>{match['name']}</code>" if are_known else match[0]

    return NAMES.sub(marked, told)


def named(part: str) -> Markup:
    """Marks up names in backticks in *part*, as `part_text` writes it, as code; a text of another form stays text.

    >>> named("target: `journal` of `shop/top`"), named("a `b`")
    (Markup('target: <code>journal</code> of <code>shop/top</code>'), Markup('a `b`'))
    """
    if OF_PART.match(part) is None:
        return escape(part)
    return Markup(NAMES.sub(r"<code>\g<name></code>", str(escape(part))))


def as_sentence(problem: str) -> str:
    """Capitalises the text of an error, unless it begins with a name, after which errors have a colon.

    >>> as_sentence("there is no page"), as_sentence("flights: there is no path")
    ('There is no page', 'flights: there is no path')
    """
    return problem if problem.partition(" ")[0].endswith(":") else problem[:1].upper() + problem[1:]


def moment(at: datetime | str) -> Markup:
    """Marks up an instant that breaks between day and clock only.

    >>> moment("2026-01-31T12:00:00.000Z")
    Markup('<time>2026-01-31</time> <time>12:00:00</time>')
    """
    text = at if isinstance(at, str) else at.isoformat()
    return Markup("<time>{}</time> <time>{}</time>").format(text[:10], text[11:19])


def report_name(name: str) -> Markup:
    """Marks up the name of a page about an interval, as `name_of` writes it, for people.

    >>> report_name("2026-01-31"), report_name("2026-01-31T12")
    (Markup('<time>2026-01-31</time>'), Markup('<time>2026-01-31</time> <time>12:00</time>'))
    >>> report_name("2026-01-31T235959Z--2026-02-01T000001Z").striptags()
    '2026-01-31 23:59:59 to 2026-02-01 00:00:01'
    >>> report_name("2026-01-31T191547Z--2026-01-31T192000Z").striptags()
    '2026-01-31 19:15:47 to 19:20:00'
    """
    instants = [instant.rstrip("Z").partition("T") for instant in name.split("--")]
    first_day = instants[0][0]
    parts = []
    for number, (day, _, digits) in enumerate(instants):
        # Digits of an hour alone stand for the whole hour.
        clock = ":".join(pair for pair in (digits[:2], digits[2:4] or "00", digits[4:6]) if pair) if digits else ""
        shown = [each for each in (day if number == 0 or day != first_day else "", clock) if each]
        parts.append(Markup(" ").join(Markup("<time>{}</time>").format(each) for each in shown))
    return Markup(" to ").join(parts)


def length(ms: float | None) -> str:
    """Formats a length of time for people; None becomes a dash."""
    return "–" if ms is None else for_people(ms)


def ago(ms: float | None) -> str:
    """Formats an age for people, without parts of a second: pages are refreshed less often.

    >>> ago(400), ago(59_900), ago(150_000), ago(9_000_000), ago(None)
    ('just now', '59 s ago', '2 min 30 s ago', '2 h 30 min ago', 'never')
    """
    if ms is None:
        return "never"
    return f"{for_people(ms // 1_000 * 1_000)} ago" if ms >= 1_000 else "just now"


def part_of_whole(share: float | None, digits: int = 0) -> str:
    """Formats a part of 1 for people; None becomes a dash."""
    return "–" if share is None else percent(share, digits)
