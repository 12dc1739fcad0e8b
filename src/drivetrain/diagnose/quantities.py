"""Numbers in log lines, and the conditions that rules state about them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

SIZE = r"\d+(?:\.\d+)?\s?(?:bytes|[KMGTP]i?B|B)\b"
"""What `{size}` stands for in a rule's pattern."""
NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
"""What `{number}` stands for."""

Value = float | str
_UNITS = {"B": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?(bytes|[KMGTP]i?B|B)", re.IGNORECASE)
_NUMBER = re.compile(NUMBER)

_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_ORDER: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"max": max, "min": min, "abs": abs}


class _AbsentError(Exception):
    """A name that this line gives no value for."""


def value_of(text: str) -> Value:
    """Bytes for a size ("1.5 GiB"; 1 KB and 1 KiB are 1024), a float for a number, else the text itself."""
    text = text.strip()
    if match := _SIZE.fullmatch(text):
        unit = "B" if match[2] == "bytes" else match[2][0].upper()
        return float(match[1]) * 1024.0 ** _UNITS[unit]
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


class Expression:
    """Arithmetic, comparisons, `and`/`or`/`not`, `max`, `min`, `abs` over named values.

    `first(a, b, …)` is the first that can be computed, `has(name)` whether there is such a value.

    Raises:
        ValueError: `source` is something else.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            self._body = ast.parse(source, mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"{source!r} is no condition: {error.msg}") from error
        _check(self._body, source)

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether the condition is true; false where it needs a value that is absent."""
        try:
            return bool(_evaluate(self._body, values))
        except (_AbsentError, TypeError, ZeroDivisionError, OverflowError):
            return False

    def value(self, values: Mapping[str, Value]) -> Value | None:
        """The expression's value, or None where it needs a value that is absent."""
        try:
            return _evaluate(self._body, values)
        except (_AbsentError, TypeError, ZeroDivisionError, OverflowError):
            return None


def _check(node: ast.AST, source: str) -> None:
    allowed = (
        ast.BoolOp | ast.And | ast.Or | ast.UnaryOp | ast.Not | ast.USub | ast.BinOp | ast.Compare | ast.Eq
        | ast.NotEq | ast.Name | ast.Load | ast.Constant | ast.Call
    )  # fmt: skip
    for part in ast.walk(node):
        known = isinstance(part, allowed) or type(part) in _ARITHMETIC or type(part) in _ORDER
        if isinstance(part, ast.Call):
            known = (
                isinstance(part.func, ast.Name)
                and part.func.id in {*_FUNCTIONS, "has", "first"}
                and not part.keywords
            )
        if isinstance(part, ast.Constant):
            known = isinstance(part.value, int | float | str)
        if not known:
            raise ValueError(f"{source!r}: {type(part).__name__} is not allowed in a condition")


def _evaluate(node: ast.expr, values: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, str) else float(value)  # type: ignore[arg-type]  # checked above
        case ast.Name(id=name):
            if name not in values:
                raise _AbsentError(name)
            return values[name]
        case ast.BoolOp(op=op, values=parts):
            # A part that cannot be said counts as false, so that `a or b` works where only b is given.
            truths = (_truth(part, values) for part in parts)
            return float(all(truths) if isinstance(op, ast.And) else any(truths))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return float(not _evaluate(operand, values))
        case ast.UnaryOp(operand=operand):
            return -_number(operand, values)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_number(left, values), _number(right, values))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return float(_compare(left, ops, comparators, values))
        case ast.Call(func=ast.Name(id="has"), args=args):
            return float(all(isinstance(arg, ast.Name) and arg.id in values for arg in args))
        case ast.Call(func=ast.Name(id="first"), args=args):
            return _first(args, values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_number(arg, values) for arg in args))
    raise AssertionError(ast.dump(node))  # `_check` let it through


def _first(args: list[ast.expr], values: Mapping[str, Value]) -> Value:
    for arg in args:
        try:
            return _evaluate(arg, values)
        except (_AbsentError, TypeError, ZeroDivisionError):
            continue
    raise _AbsentError("first")


def _truth(node: ast.expr, values: Mapping[str, Value]) -> bool:
    try:
        return bool(_evaluate(node, values))
    except (_AbsentError, TypeError, ZeroDivisionError):
        return False


def _compare(
    left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr], values: Mapping[str, Value]
) -> bool:
    before = left
    for op, after in zip(ops, comparators, strict=True):
        if isinstance(op, ast.Eq | ast.NotEq):
            same = _evaluate(before, values) == _evaluate(after, values)
            holds = same if isinstance(op, ast.Eq) else not same
        else:
            holds = _ORDER[type(op)](_number(before, values), _number(after, values))
        if not holds:
            return False
        before = after
    return True


def _number(node: ast.expr, values: Mapping[str, Value]) -> float:
    value = _evaluate(node, values)
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return value
