"""An interpreter of CEL in plain Python, over syntax trees that are only parsed: the oracle for expressions of any shape.

It shares only the parser with the CEL library: not the checker, the expansion of added functions or the sharing of variables. It evaluates
everything at once and keeps failures as values. An expression fails where it reads one, except under && and ||, as CEL says.
"""

from __future__ import annotations

import ipaddress
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from gavel_rules.language.cel.syntax_tree import Call, Comprehension, Constant, Identifier, ListLiteral, MapLiteral, Node, Select

from tests.fuzz import meanings as m

TYPES: Final = {bool: "bool", int: "int", float: "double", str: "string", list: "list", dict: "map", type(None): "null_type"}
SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


class FailureError(Exception):
    """An error of CEL."""


class InexactError(Exception):
    """A quantity beyond those that Gavel promises to compute exactly: what becomes of it is no mistake."""


@dataclass(frozen=True)
class Quantity:
    """A quantity of Kubernetes, exact. Raises InexactError beyond 2^53 thousandths."""

    amount: Fraction

    def __post_init__(self) -> None:
        if abs(self.amount) * 1000 > 2**53:
            raise InexactError


@dataclass(frozen=True)
class Network:
    """A network with the address as it was written."""

    address: Any
    prefix: int

    def contains(self, other: Any, prefix: int = -1) -> bool:
        """Report whether an address, or a network with a prefix, is inside."""
        if other.version != self.address.version or 0 <= prefix < self.prefix:
            return False
        return other in ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False)


def attempt(node: Node, names: Mapping[str, Any]) -> Any:
    """Return the value of a node, or the FailureError that it is. `names` may stand for failures too."""
    try:
        return evaluate(node, names)
    except FailureError as failure:
        return failure


def evaluate(node: Node, names: Mapping[str, Any]) -> Any:
    """Return the value of a node. Raises FailureError."""
    match node:
        case Constant(value=value):
            return value
        case Identifier(name):
            return _sound(names[name]) if name in names else ("type", name)
        case Select(operand, field_name, test_only):
            whole = evaluate(operand, names)
            if not isinstance(whole, dict) or (not test_only and field_name not in whole):
                raise FailureError
            return field_name in whole if test_only else whole[field_name]
        case ListLiteral(elements):
            return [evaluate(element, names) for element in elements]
        case MapLiteral(entries=entries):
            return {evaluate(key, names): evaluate(value, names) for key, value in entries}
        case Comprehension():
            return _loop(node, names)
        case Call("_&&_" | "_||_", None, (left, right)):
            outcomes = [attempt(left, names), attempt(right, names)]
            decisive = node.function == "_||_"
            if any(outcome is decisive for outcome in outcomes):
                return decisive
            return not decisive if all(_sound(outcome) is not decisive for outcome in outcomes) else decisive
        case Call("_?_:_", None, (condition, then, otherwise)):
            return evaluate(then if evaluate(condition, names) else otherwise, names)
        case Call("@not_strictly_false", None, (inner,)):
            return attempt(inner, names) is not False
        case Call(function, target, arguments):
            operands = [evaluate(part, names) for part in ((target,) if target is not None else ()) + arguments]
            return _apply(function, operands, is_member=target is not None)


def _sound(value: Any) -> Any:
    if isinstance(value, FailureError):
        raise value
    return value


def _loop(node: Comprehension, names: Mapping[str, Any]) -> Any:
    items = evaluate(node.range, names)
    total = attempt(node.start, names)
    pairs = list(items.items()) if isinstance(items, dict) else list(enumerate(items))
    for key, value in pairs:
        one = (key if isinstance(items, dict) else value) if not node.second_variable else key
        inner = {**names, node.variable: one, node.second_variable: value, node.accumulator: total}
        if not evaluate(node.condition, inner):
            break
        total = attempt(node.step, inner)
    return evaluate(node.result, {**names, node.accumulator: total})


def same(left: Any, right: Any) -> bool:
    """CEL's equality, of lists and maps too."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if left is None or right is None:
        return left is right
    return m.same(left, right) if _kind(left) == _kind(right) else False


def _kind(value: Any) -> object:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _apply(function: str, operands: list[Any], *, is_member: bool) -> Any:
    try:
        if function in _RELATIONS:
            return _relation(function, *operands)
        if function in ("_+_", "_-_", "_*_", "_/_", "_%_"):
            return _arithmetic(function[1], *operands)
        return _FUNCTIONS[function](*operands)
    except (ArithmeticError, LookupError, ValueError) as error:
        if isinstance(error, KeyError) and function not in _FUNCTIONS and error.args == (function,):
            raise NotImplementedError(function) from error
        raise FailureError from error


_RELATIONS: Final = {"_==_": "==", "_!=_": "!=", "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
_ORDER: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _relation(function: str, left: Any, right: Any) -> bool:
    sign = _RELATIONS[function]
    if sign in ("==", "!="):
        return same(left, right) is (sign == "==")
    if _kind(left) != _kind(right) or isinstance(left, list | dict) or left is None:
        raise FailureError
    return m.COMPARISONS[sign](left, right) if _kind(left) == "number" else bool(_ORDER[sign](left, right))


def _arithmetic(sign: str, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return m.INT_ARITHMETIC[sign](left, right)
    if isinstance(left, float) and isinstance(right, float):
        return m.DOUBLE_ARITHMETIC[sign](left, right)
    return left + right if sign == "+" else left - right


def _not(value: Any) -> bool:
    return not value


def _negative(value: Any) -> Any:
    return m.to_int(-value) if isinstance(value, int) else -value


def _index(whole: Any, index: Any) -> Any:
    if isinstance(whole, list) and index < 0:
        raise FailureError
    return whole[index]


def _within(item: Any, whole: Any) -> bool:
    return any(same(item, other) for other in whole)


def _sum(items: list[Any]) -> Any:
    if items and isinstance(items[0], Quantity):
        return Quantity(sum((item.amount for item in items), Fraction(0)))
    if items and isinstance(items[0], float):
        total = 0.0
        for item in items:
            total += item
        return total
    return m.total(items)


def _extreme(choose: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def of(items: list[Any]) -> Any:
        return choose(items, key=lambda item: item.amount if isinstance(item, Quantity) else item)

    return of


def _quantity(text: str) -> Quantity:
    suffix = next((suffix for suffix in BINARY if text.endswith(suffix)), text[-1:] if text[-1:] in SUFFIXES else "")
    number = text.removesuffix(suffix)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", number) or len(text) > 24:
        raise FailureError
    factor = Fraction(1024) ** BINARY[suffix] if suffix in BINARY else Fraction(10) ** SUFFIXES[suffix]
    return Quantity(Fraction(Decimal(number)) * factor)


def _address(text: str) -> Any:
    address = ipaddress.ip_address(text)
    if ":" in text and ("." in text or "%" in text or address.ipv4_mapped is not None):  # type: ignore[union-attr]
        raise FailureError
    return address


def _network(text: str) -> Network:
    address, slash, prefix = text.partition("/")
    if not slash or not re.fullmatch("0|[1-9][0-9]{0,2}", prefix):
        raise FailureError
    of = _address(address)
    if int(prefix) > of.max_prefixlen:
        raise FailureError
    return Network(of, int(prefix))


def _contains_network(network: Network, other: Network | str) -> bool:
    inner = _network(other) if isinstance(other, str) else other
    return network.contains(inner.address, inner.prefix)


def _is(read: Callable[[str], Any]) -> Callable[[str], bool]:
    def of(text: str) -> bool:
        try:
            read(text)
        except (FailureError, ValueError):
            return False
        return True

    return of


def _added(quantity: Quantity, other: Quantity | int, sign: int = 1) -> Quantity:
    return Quantity(quantity.amount + sign * (other.amount if isinstance(other, Quantity) else Fraction(other)))


def _sign(number: Any) -> int:
    return int(number > 0) - int(number < 0)


def _as_integer(quantity: Quantity) -> int:
    if quantity.amount.denominator != 1:
        raise FailureError
    return int(quantity.amount)


def _int(value: Any) -> int:
    if isinstance(value, str):
        if not re.fullmatch("-?[0-9]+", value):
            raise FailureError
        return m.to_int(int(value))
    return int(m.truncate(value)) if isinstance(value, float) else int(value)


def _double(value: Any) -> float:
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        raise FailureError
    return float(value)


def _substring(text: str, start: int, end: int | None = None) -> str:
    # The library fails if the end is the length of the text (docs/rule-language.md).
    if not 0 <= start <= len(text) or (end is not None and (end >= len(text) or start > end)):
        raise FailureError
    return text[start:end]


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise FailureError
    return text[index : index + 1]


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "!_": _not,
    "-_": _negative,
    "_[_]": _index,
    "@in": _within,
    "size": len,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": operator.contains,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "lowerAscii": str.lower,
    "upperAscii": str.upper,
    "trim": str.strip,
    "charAt": _char_at,
    "indexOf": str.find,
    "lastIndexOf": str.rfind,
    "substring": _substring,
    "split": str.split,
    "reverse": lambda text: text[::-1],
    "replace": str.replace,
    "join": lambda items, separator="": separator.join(items),
    "int": _int,
    "uint": m.to_unsigned,
    "double": _double,
    "string": str,
    "bool": lambda value: {"true": True, "false": False}[value] if isinstance(value, str) else value,
    "dyn": lambda value: value,
    "bytes": str.encode,
    "type": lambda value: ("type", TYPES[type(value)]),
    "timestamp": datetime.fromisoformat,
    "duration": lambda text: timedelta(milliseconds=m_durations(text)),
    "sum": _sum,
    "min": _extreme(min),
    "max": _extreme(max),
    "quantity": _quantity,
    "isQuantity": _is(_quantity),
    "isLessThan": lambda one, other: one.amount < other.amount,
    "isGreaterThan": lambda one, other: one.amount > other.amount,
    "compareTo": lambda one, other: _sign(one.amount - other.amount),
    "add": _added,
    "sub": lambda one, other: _added(one, other, -1),
    "sign": lambda quantity: _sign(quantity.amount if quantity else 0),  # the sum of no quantities is a plain 0 here
    "isInteger": lambda quantity: quantity.amount.denominator == 1,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda quantity: float(quantity.amount),
    "ip": lambda of: of.address if isinstance(of, Network) else _address(of),
    "isIP": _is(_address),
    "family": lambda address: address.version,
    "isUnspecified": lambda address: address.is_unspecified,
    "isLoopback": lambda address: address.is_loopback,
    "isLinkLocalUnicast": lambda address: address.is_link_local,
    "cidr": _network,
    "isCIDR": _is(_network),
    "containsIP": lambda network, other: network.contains(_address(other) if isinstance(other, str) else other),
    "containsCIDR": _contains_network,
    "prefixLength": lambda network: network.prefix,
    **{name: (lambda time, zone="UTC", of=of: of(m.shift(time, _minutes(zone)))) for name, of in m.TIME_FIELDS.items()},
}


def m_durations(text: str) -> int:
    """Return the milliseconds of a duration with one unit."""
    number, unit = re.fullmatch("(-?[0-9]+)(ms|s|m|h)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[unit]


def _minutes(zone: str) -> int:
    if zone == "UTC":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[4:])
    return (-1 if zone[0] == "-" else 1) * (60 * hours + minutes)
