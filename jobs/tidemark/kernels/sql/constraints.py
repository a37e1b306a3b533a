"""Evaluates constraints of a table over frames: CHECK, NOT NULL, and Delta's column invariants.

A constraint is text of Spark SQL in the table's metadata. Spark refuses a row for which the text is not true: false and
null are both refused (`CheckDeltaInvariant` of Delta), and so is a row for which it raises an error.

Only what means the same here and in Spark 4 is read; for anything else NotEvaluable is raised. That leaves out
division (an error or null, by a setting), what depends on the session's time zone, conversions of text to numbers, and
escapes in text, which versions of Spark read differently. tests/spark/test_constraints.py compares each construct with
Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache, reduce
from operator import or_
from typing import Any, NoReturn

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.model.settings.declared_fields import MOST_DIGITS, digits_of, integer_digits

WORDS = frozenset({"and", "or", "not", "in", "between", "is", "null", "like", "true", "false"})
"""Words that are no columns unless they are quoted."""
INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
"""Bits of Delta's types of whole numbers."""
PLAIN = {
    "string": pl.String(),
    "boolean": pl.Boolean(),
    "date": pl.Date(),
    "float": pl.Float32(),
    "double": pl.Float64(),
}
INSTANTS = {"timestamp": pl.Datetime("us", "UTC"), "timestamp_ntz": pl.Datetime("us")}
EXACT_IN_FLOAT = 2**24
"""Whole numbers up to here are the same as float and as double."""
LONGEST = 200
"""Most characters of a value in the text of an error."""
ROW, IS_MET = "_row", "_is_met"
_TOKEN = re.compile(
    r"\s*(?:(?P<comment>--|/\*)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])|'(?P<text>[^'\\]*)'(?!\s*')"
    r"|`(?P<quoted>[^`]+)`(?!`)|(?P<word>[A-Za-z_]\w*)|(?P<sign><=>|<>|!=|<=|>=|==|[=<>+\-*(),]))",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[+-]\d{2}:\d{2})")


class NotEvaluable(InvalidArgument):
    """Raised for a constraint whose text may mean something else here than in Spark."""


@dataclass(frozen=True)
class Constraint:
    """A condition that each row of a table meets.

    Attributes:
        kind: how Delta calls such a condition, for example `constraint`.
        name: the name of this one, for example `positive`.
        text: the condition, in Spark SQL.
        columns: the columns of the table, with Delta's types.
    """

    kind: str
    name: str
    text: str
    columns: tuple[tuple[str, str], ...]

    @property
    def condition(self) -> ParsedCondition:
        """The parsed text; raises NotEvaluable."""
        return _condition(self.text, self.columns)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.text})"


@dataclass(frozen=True)
class ParsedCondition:
    """A condition as an expression of polars.

    Attributes:
        is_met: true for rows that meet it, and never null.
        columns: the columns that it reads; the type is None if a column is only compared with null.
    """

    is_met: pl.Expr
    columns: Mapping[str, pl.DataType | None]


def violations(rows: pl.DataFrame, constraints: Iterable[Constraint]) -> pl.Series:
    """Returns for each row which constraint refuses it, with the values that this constraint read; null where none
    does.

    A column that *rows* lack counts as null.
    """
    why = pl.Series("why", [None] * rows.height, dtype=pl.String)
    for constraint in constraints:
        condition = constraint.condition
        columns = [_read(rows, name, kind) for name, kind in condition.columns.items()]
        read = rows.select(pl.int_range(pl.len()).alias(ROW), *columns).with_columns(condition.is_met.alias(IS_MET))
        refused = read.filter(~pl.col(IS_MET) & why.is_null())
        texts = [
            f"{constraint} refuses {_values_text(row, condition.columns)}" for row in refused.iter_rows(named=True)
        ]
        why = why.scatter(refused[ROW], texts) if texts else why
    return why


def _read(rows: pl.DataFrame, name: str, kind: pl.DataType | None) -> pl.Expr:
    if name not in rows.columns:
        return pl.lit(None, kind or pl.Null()).alias(name)
    return pl.col(name) if kind is None else pl.col(name).cast(kind)


def _values_text(row: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name} = {json.dumps(row[name], default=str, ensure_ascii=False)[:LONGEST]}" for name in names)


@lru_cache(maxsize=256)
def _condition(text: str, columns: tuple[tuple[str, str], ...]) -> ParsedCondition:
    parser = _Parser(text, dict(columns))
    try:
        value = parser.whole()
    except RecursionError as error:
        msg = "Tidemark does not know conditions that are nested so deeply"
        raise NotEvaluable(msg) from error
    is_met = value.expr.fill_null(value=False)
    if value.fails is not None:
        is_met &= ~value.fails.fill_null(value=False)
    return ParsedCondition(is_met, parser.read)


@dataclass(frozen=True)
class _Value:
    """A part of a condition, as an expression of polars.

    Attributes:
        expr: the expression.
        kind: its type, by Delta's name.
        literal: the value of a literal; None for any other expression.
        fails: true where Spark raises an error, as for a sum beyond its type; None if Spark never does.
    """

    expr: pl.Expr
    kind: str
    literal: Any = None
    fails: pl.Expr | None = None

    @property
    def bits(self) -> int | None:
        """The size of a whole number; None for any other type."""
        return INTEGERS.get(self.kind)

    @property
    def scale(self) -> int | None:
        """Digits of a number after its point; None for text, and for numbers that are not exact."""
        if self.bits is not None:
            return 0
        digits = digits_of(self.kind)
        return None if digits is None else digits[1]


def _literal(value: Any, kind: str, dtype: pl.DataType) -> _Value:
    return _Value(pl.lit(value, dtype), kind, literal=value)


def _either(*fails: pl.Expr | None) -> pl.Expr | None:
    known = [each for each in fails if each is not None]
    return reduce(or_, known) if known else None


class _Parser:
    """Parses a condition by recursive descent.

    The methods are in the order of precedence, from OR to single values; each calls the next for its operands.
    """

    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self._columns = {name.casefold(): (name, kind) for name, kind in columns.items()}
        self.read: dict[str, pl.DataType | None] = {}
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup == "comment":
                self._refuse(f"cannot read {text[at:].strip()[:20]!r}")
            assert match.lastgroup is not None
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self._at = 0

    def whole(self) -> _Value:
        value = self._or()
        if self._at < len(self._tokens):
            self._refuse(f"does not know {self._tokens[self._at][1]!r} here")
        return self._boolean(value)

    def _refuse(self, why: str) -> NoReturn:
        msg = f"Tidemark {why}"
        raise NotEvaluable(msg)

    def _peek(self, *words: str) -> bool:
        """Returns True if the next tokens are *words* or signs."""
        ahead = self._tokens[self._at : self._at + len(words)]
        return [(text.lower() if kind == "word" else text) for kind, text in ahead if kind in {"word", "sign"}] == [
            *words
        ]

    def _take(self, *words: str) -> bool:
        if found := self._peek(*words):
            self._at += len(words)
        return found

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            self._refuse(f"expects {sign!r} here")

    def _boolean(self, value: _Value) -> _Value:
        if value.kind != "boolean":
            self._refuse(f"takes no {value.kind} for a condition")
        return value

    def _or(self) -> _Value:
        left = self._and()
        while self._take("or"):
            left, right = self._boolean(left), self._boolean(self._and())
            # Spark does not look at the right side where the left one is true.
            fails = None if right.fails is None else right.fails & ~left.expr.fill_null(value=False)
            left = _Value(left.expr | right.expr, "boolean", fails=_either(left.fails, fails))
        return left

    def _and(self) -> _Value:
        left = self._not()
        while self._take("and"):
            left, right = self._boolean(left), self._boolean(self._not())
            # Spark does not look at the right side where the left one is false.
            fails = None if right.fails is None else right.fails & left.expr.fill_null(value=True)
            left = _Value(left.expr & right.expr, "boolean", fails=_either(left.fails, fails))
        return left

    def _not(self) -> _Value:
        if self._take("not"):
            value = self._boolean(self._not())
            return _Value(~value.expr, "boolean", fails=value.fails)
        return self._predicate()

    def _predicate(self) -> _Value:
        left = self._sum()
        for sign in ("<=>", "<>", "!=", "<=", ">=", "==", "=", "<", ">"):
            if self._take(sign):
                return self._compared(left, sign, self._sum())
        if self._take("is"):
            return self._is(left)
        negated = self._take("not")
        if self._take("in"):
            value = self._in(left)
        elif self._take("between"):
            low = self._sum()
            if not self._take("and"):
                self._refuse("expects AND after BETWEEN")
            lower, upper = self._compared(left, ">=", low), self._compared(left, "<=", self._sum())
            fails = None if upper.fails is None else upper.fails & lower.expr.fill_null(value=True)
            value = _Value(lower.expr & upper.expr, "boolean", fails=_either(lower.fails, fails))
        elif self._take("like"):
            value = self._like(left)
        elif negated:
            self._refuse("does not know NOT here")
        else:
            return left
        return _Value(~value.expr, "boolean", fails=value.fails) if negated else value

    def _is(self, value: _Value) -> _Value:
        negated = self._take("not")
        if self._take("null"):
            expr = value.expr.is_null()
        elif self._peek("true") or self._peek("false"):
            expr = self._boolean(value).expr.eq_missing(pl.lit(self._take("true") or not self._take("false")))
        else:
            self._refuse("does not know what follows IS")
        return _Value(~expr if negated else expr, "boolean", fails=value.fails)

    def _in(self, value: _Value) -> _Value:
        self._expect("(")
        listed = [self._constant()]
        while self._take(","):
            listed.append(self._constant())
        self._expect(")")
        if value.scale is not None:
            self._refuse_mixed(value, listed)
        equal = [self._compared(value, "=", each).expr for each in listed]
        return _Value(reduce(or_, equal), "boolean", fails=value.fails)

    def _refuse_mixed(self, value: _Value, listed: Sequence[_Value]) -> None:
        """Refuses an IN whose literals Spark would compare with an exact *value* in a less exact type than their own.

        Spark compares the value with all literals in one common type.
        """
        exact = [each for each in listed if each.scale is not None]
        if exact and len(exact) < len(listed):
            self._refuse("does not compare with exact numbers and doubles after one IN")
        numbers = [value, *exact]
        if max(map(_digits_before_point, numbers)) + max(each.scale or 0 for each in numbers) > MOST_DIGITS:
            self._refuse(f"does not compare numbers of more than {MOST_DIGITS} digits together after IN")

    def _constant(self) -> _Value:
        value = self._sum()
        if value.literal is None:
            self._refuse("takes only literals after IN")
        return value

    def _like(self, value: _Value) -> _Value:
        pattern = self._constant()
        if value.kind != "string" or pattern.kind != "string":
            self._refuse("takes only text for LIKE")
        parts = [{"%": ".*", "_": "."}.get(letter) or re.escape(letter) for letter in pattern.literal]
        return _Value(value.expr.str.contains(rf"(?s)\A{''.join(parts)}\z"), "boolean", fails=value.fails)

    def _sum(self) -> _Value:
        left = self._product()
        while (plus := self._take("+")) or self._take("-"):
            right = self._product()
            left = (
                self._calculated(left, right, lambda a, b: a + b)
                if plus
                else self._calculated(left, right, lambda a, b: a - b)
            )
        return left

    def _product(self) -> _Value:
        left = self._factor()
        while self._take("*"):
            left = self._calculated(left, self._factor(), lambda a, b: a * b)
        return left

    def _calculated(self, left: _Value, right: _Value, calculate: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> _Value:
        fails = _either(left.fails, right.fails)
        if left.bits is not None and right.bits is not None:
            bits = max(left.bits, right.bits)
            kind = next(name for name, size in INTEGERS.items() if size == bits)
            wide = calculate(left.expr.cast(pl.Int128()), right.expr.cast(pl.Int128()))
            beyond = ~wide.is_between(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return _Value(wide.cast(pl.Int64(), strict=False), kind, fails=_either(fails, beyond))
        if "double" not in {left.kind, right.kind}:
            self._refuse(f"does not calculate with {left.kind} and {right.kind}")
        return _Value(calculate(self._double(left), self._double(right)), "double", fails=fails)

    def _double(self, value: _Value) -> pl.Expr:
        """Returns a number as a double; refuses one that Spark may round to another double."""
        if isinstance(value.literal, Decimal):
            return pl.lit(float(value.literal))
        if value.bits is None and value.kind not in {"float", "double"}:
            self._refuse(f"does not compare {value.kind} with double")
        return value.expr.cast(pl.Float64())

    def _compared(self, left: _Value, sign: str, right: _Value) -> _Value:
        a, b = self._alike(left, right)
        match sign:
            case "=" | "==":
                expr = a == b
            case "<>" | "!=":
                expr = a != b
            case "<=>":
                expr = a.eq_missing(b)
            case _ if "boolean" in {left.kind, right.kind}:
                self._refuse("does not order conditions")
            case "<":
                expr = a < b
            case "<=":
                expr = a <= b
            case ">":
                expr = a > b
            case _:
                expr = a >= b
        return _Value(expr, "boolean", fails=_either(left.fails, right.fails))

    def _alike(self, left: _Value, right: _Value) -> tuple[pl.Expr, pl.Expr]:
        """Returns both sides in the type in which Spark compares them."""
        kinds = {left.kind, right.kind}
        if len(kinds) == 1 and left.kind in {"string", "boolean", "date", "float", "double", *INSTANTS}:
            return left.expr, right.expr
        if kinds == {"date", "string"}:
            return self._dated(left), self._dated(right)
        if left.scale is not None and right.scale is not None:
            return self._decimals(left, right)
        if "double" in kinds or ("float" in kinds and any(map(_is_exact, (left, right)))):
            return self._double(left), self._double(right)
        return self._refuse(f"does not compare {left.kind} with {right.kind}")

    def _dated(self, value: _Value) -> pl.Expr:
        return value.expr if value.kind == "date" else self._date(value.literal).expr

    def _decimals(self, left: _Value, right: _Value) -> tuple[pl.Expr, pl.Expr]:
        if left.bits is not None and right.bits is not None:
            return left.expr.cast(pl.Int64()), right.expr.cast(pl.Int64())
        scale = max(left.scale or 0, right.scale or 0)
        if max(map(_digits_before_point, (left, right))) + scale > MOST_DIGITS:
            self._refuse(f"does not compare {left.kind} with {right.kind}")
        common = pl.Decimal(MOST_DIGITS, scale)
        return left.expr.cast(common), right.expr.cast(common)

    def _factor(self) -> _Value:
        if self._take("("):
            value = self._or()
            self._expect(")")
            return value
        if self._at == len(self._tokens):
            self._refuse("expects more at the end")
        kind, text = self._tokens[self._at]
        self._at += 1
        match kind, text:
            case "sign", "-":
                return self._negative()
            case "number", _:
                return self._number(text)
            case "text", _:
                return _literal(text, "string", pl.String())
            case "quoted", _:
                return self._column(text)
            case "word", _:
                return self._word(text)
        return self._refuse(f"does not know {text!r} here")

    def _negative(self) -> _Value:
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "number":
            self._at += 1
            return self._number(f"-{self._tokens[self._at - 1][1]}")
        return self._calculated(_literal(0, "byte", pl.Int64()), self._factor(), lambda a, b: a - b)

    def _number(self, text: str) -> _Value:
        if "e" in text.lower():
            return _literal(float(text), "double", pl.Float64())
        if "." not in text:
            bits = 32 if -(2**31) <= int(text) < 2**31 else 64
            if not -(2**63) <= int(text) < 2**63:
                self._refuse(f"does not know the number {text}")
            return _literal(int(text), "integer" if bits == 32 else "long", pl.Int64())
        value = Decimal(text)
        digits, scale = len(value.as_tuple().digits), -int(value.as_tuple().exponent)
        if max(digits, scale) > MOST_DIGITS:
            self._refuse(f"does not know the number {text}")
        return _literal(value, f"decimal({max(digits, scale)},{scale})", pl.Decimal(MOST_DIGITS, scale))

    def _word(self, text: str) -> _Value:
        word = text.lower()
        if word in {"true", "false"}:
            return _literal(word == "true", "boolean", pl.Boolean())
        is_literal = self._at < len(self._tokens) and self._tokens[self._at][0] == "text"
        if is_literal and word in {"date", "timestamp"}:
            self._at += 1
            literal = self._tokens[self._at - 1][1]
            return self._date(literal) if word == "date" else self._instant(literal)
        if self._take("("):
            return self._called(word)
        if word in WORDS:
            self._refuse(f"does not know {text!r} here")
        return self._column(text)

    def _called(self, function: str) -> _Value:
        argument = self._or()
        self._expect(")")
        if function not in {"length", "char_length", "character_length"} or argument.kind != "string":
            self._refuse(f"does not know the function {function} of {argument.kind}")
        return _Value(argument.expr.str.len_chars().cast(pl.Int64()), "integer", fails=argument.fails)

    def _date(self, text: object) -> _Value:
        try:
            if isinstance(text, str) and _DATE.fullmatch(text):
                return _literal(date.fromisoformat(text), "date", pl.Date())
        except ValueError:
            pass
        return self._refuse(f"does not know the date {text!r}")

    def _instant(self, text: str) -> _Value:
        try:
            if _INSTANT.fullmatch(text):
                at = datetime.fromisoformat(text.replace(" ", "T")).astimezone(UTC)
                return _literal(at, "timestamp", INSTANTS["timestamp"])
        except (ValueError, OverflowError):
            pass
        # Without an offset Spark takes the time zone of the session that writes.
        return self._refuse(
            f"does not know the instant {text!r}: write it with an offset, such as 2026-01-31T12:00:00Z"
        )

    def _column(self, name: str) -> _Value:
        if name.casefold() not in self._columns:
            self._refuse(f"does not know the column {name!r}")
        name, kind = self._columns[name.casefold()]
        self.read[name] = _type(kind)
        return _Value(pl.col(name), kind)


def _type(kind: str) -> pl.DataType | None:
    """Returns the type of a column that has Delta's type *kind*; None for a type whose values are not compared."""
    if kind in INTEGERS:
        return {8: pl.Int8(), 16: pl.Int16(), 32: pl.Int32(), 64: pl.Int64()}[INTEGERS[kind]]
    if digits := digits_of(kind):
        return pl.Decimal(*digits)
    return {**PLAIN, **INSTANTS}.get(kind)


def _is_exact(value: _Value) -> bool:
    """Returns True for a literal that Spark compares with a float as a double, or that is the same number as both."""
    is_small = isinstance(value.literal, int) and abs(value.literal) <= EXACT_IN_FLOAT
    return is_small or isinstance(value.literal, Decimal)


def _digits_before_point(value: _Value) -> int:
    if value.bits is not None:
        return integer_digits(value.bits)
    digits = digits_of(value.kind)
    assert digits is not None
    precision, scale = digits
    return precision - scale
