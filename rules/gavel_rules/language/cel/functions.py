"""The functions that the language's second version adds to CEL, each written in plain CEL.

The library could call functions of Python, but it leaks their arguments (cel-expr-python 0.1.3). A call is therefore replaced in the
checked tree by the function's body, with its arguments bound as `cel.bind` binds them, and the library evaluates the result. Both
engines see the same tree, the cost follows from the bodies, and no evaluation leaves the library.

The names, types and results are those of Kubernetes' CEL libraries. A quantity is a double that counts thousandths: sums and comparisons
are exact for every multiple of a thousandth up to 2^53 of them, and for the binary multiples beyond. An IP address is a list of four
bytes or of eight groups of 16 bits, a CIDR is a list of its address and its prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple


class Function(NamedTuple):
    """A function. `overloads` are (types of the receiver and arguments, type of the result); `body` is CEL over `parameters`."""

    name: str
    is_member: bool
    overloads: tuple[tuple[tuple[str, ...], str], ...]
    parameters: tuple[str, ...]
    body: str


QUANTITY: Final = "kubernetes.Quantity"
IP: Final = "net.IP"
CIDR: Final = "net.CIDR"

# A method of lists of numbers that no macro of CEL can write: see `expansion`.
SUM: Final = "sum"
SUM_OVERLOADS: Final = tuple(((f"list<{kind}>",), kind) for kind in ("int", "double", QUANTITY))

_NUMBERS: Final = ("int", "double", QUANTITY)
# The longest quantity, IP address or CIDR that is read, in characters.
_QUANTITY_LENGTH_MAX: Final = 24
_ADDRESS_LENGTH_MAX: Final = 39
_CIDR_LENGTH_MAX: Final = 43

# Always an error: no text of this kind is a number.
_ERROR: Final = 'double("{}")'


def _cut(text: str, length_max: int) -> str:
    """Return the beginning of a text: its length has a bound for the cost, and differs from the text's if that is longer or has spaces."""
    return f'({text} + "{" " * (length_max + 1)}").substring(0, {length_max}).trim()'


def _without_digits(text: str) -> str:
    """Return what a text has besides digits. The library would compile a regular expression for each evaluation, which takes longer."""
    return text + "".join(f'.replace("{digit}", "")' for digit in range(10))


def _function(name: str, parameters: str, types: str, result: str, body: str, *, is_member: bool = False) -> Function:
    return Function(name, is_member, ((tuple(types.split()), result),), tuple(parameters.split()), body)


def _member(name: str, parameters: str, types: str, result: str, body: str) -> Function:
    return _function(name, parameters, types, result, body, is_member=True)


# Of the text n: whether it is a number without a sign and an exponent.
_IS_NUMBER: Final = f'cel.bind(o, {_without_digits("n")}, (o == "" && n != "") || (o == "." && n != "."))'
# Of the text q: how long its suffix is.
_SUFFIX: Final = (
    'q.endsWith("i") ? (size(q) > 1 && "KMGTPE".contains(q.charAt(size(q) - 2)) ? 2 : 0) : '
    '(q != "" && "numkMGTPE".contains(q.charAt(size(q) - 1)) ? 1 : 0)'
)
# Of the text q: where the exponent begins; the suffix E has nothing behind it.
_EXPONENT: Final = 'q.lowerAscii().indexOf("e")'
_IS_EXPONENT: Final = (
    'cel.bind(n, q.substring(e + 1), cel.bind(d, n.startsWith("+") || n.startsWith("-") ? n.substring(1) : n, '
    f'd != "" && size(d) <= 3 && {_without_digits("d")} == ""))'
)
_IS_QUANTITY: Final = (
    f'cel.bind(q, {_cut("s", _QUANTITY_LENGTH_MAX)}, q != "" && size(q) == size(s) && cel.bind(f, {_SUFFIX}, cel.bind(e, {_EXPONENT}, '
    'cel.bind(w, e > 0 && f == 0 && e < size(q) - 1 ? e : size(q) - f, cel.bind(b, q.startsWith("+") || q.startsWith("-") ? 1 : 0, '
    f'w > b && cel.bind(n, (q + " ").substring(b, w), {_IS_NUMBER}) && (w == size(q) - f || {_IS_EXPONENT}))))))'
)
_BINARY: Final = ", ".join(f'"{letter}": {1024.0**power!r}' for power, letter in enumerate("KMGTPE", 1))
_DECIMAL: Final = ", ".join(
    f'"{letter}": "{exponent}"'
    for letter, exponent in zip("numkMGTPE", ("e-6", "e-3", "", "e6", "e9", "e12", "e15", "e18", "e21"), strict=True)
)
# Thousandths are counted in the text, by its exponent: a product of the number with 1000.0 would round twice.
_QUANTITY: Final = (
    f"isQuantity(s) ? cel.bind(q, {_cut('s', _QUANTITY_LENGTH_MAX)}, cel.bind(f, {_SUFFIX}, cel.bind(e, {_EXPONENT}, "
    f'f == 2 ? double(q.substring(0, size(q) - 2) + "e3") * {{{_BINARY}}}[q.charAt(size(q) - 2)] : '
    f"f == 1 ? double(q.substring(0, size(q) - 1) + {{{_DECIMAL}}}[q.charAt(size(q) - 1)]) : "
    'e > 0 ? double(q.substring(0, e + 1) + string(int(q.substring(e + 1)) + 3)) : double(q + "e3")))) : ' + _ERROR.format("not a quantity")
)

# An octet of an IPv4 address as a number; -1 if the text is not an octet.
_OCTET: Final = (
    f'cel.bind(x, {_cut("y", 4)}, size(x) == size(y) && x != "" && size(x) <= 3 && '
    '[0, 1, 2].all(k, k >= size(x) || "0123456789".contains(x.charAt(k))) && '
    '(size(x) == 1 || !x.startsWith("0")) && int(x) <= 255 ? int(x) : -1)'
)
# A group of an IPv6 address as a number; -1 if the text is not a group.
_DIGITS: Final = '[4, 3, 2, 1].map(k, "0123456789abcdef".indexOf(d.charAt(size(d) - k)))'
_GROUP: Final = (
    f'cel.bind(x, {_cut("y", 5)}, cel.bind(d, "000" + x.lowerAscii(), size(x) == size(y) && x != "" && size(x) <= 4 ? '
    f"cel.bind(v, {_DIGITS}, v.exists(z, z < 0) ? -1 : ((v[0] * 16 + v[1]) * 16 + v[2]) * 16 + v[3]) : -1))"
)
# "::" stands for one or more groups of zeros.
_LEFT: Final = '(h[0] == "" ? [] : h[0].split(":", 9))'
_RIGHT: Final = '(h[1] == "" ? [] : h[1].split(":", 9))'
_GROUPS: Final = (
    f'cel.bind(h, a.split("::", 3), size(h) == 1 ? a.split(":", 9) : size(h) == 2 ? cel.bind(l, {_LEFT}, cel.bind(r, {_RIGHT}, '
    'size(l) + size(r) > 7 ? [] : l + [0, 1, 2, 3, 4, 5, 6, 7].filter(i, i < 8 - size(l) - size(r)).map(i, "0") + r)) : [])'
)
# Of a text s: its address as a list of numbers, [] if the text is not an address. An IPv4 address written as IPv6 is not one.
_PARSED: Final = (
    f"cel.bind(a, {_cut('s', _ADDRESS_LENGTH_MAX)}, size(a) != size(s) ? [] : "
    f'cel.bind(g, a.contains(":") ? cel.bind(t, {_GROUPS}, '
    f"size(t) == 8 ? [0, 1, 2, 3, 4, 5, 6, 7].map(i, cel.bind(y, t[i], {_GROUP})) : []) : "
    f'cel.bind(t, a.split(".", 5), size(t) == 4 ? [0, 1, 2, 3].map(i, cel.bind(y, t[i], {_OCTET})) : []), '
    "g.exists(z, z < 0) || (size(g) == 8 && g[5] == 65535 && g[0] + g[1] + g[2] + g[3] + g[4] == 0) ? [] : g))"
)
_POWERS: Final = ", ".join(str(2**power) for power in range(17))
# Whether address i is in the network of address n with prefix p.
_CONTAINS: Final = (
    "size(i) == size(n) && [0, 1, 2, 3, 4, 5, 6, 7].all(k, k >= size(n) || "
    "cel.bind(w, size(n) == 4 ? 8 : 16, cel.bind(b, p - w * k, cel.bind(m, "
    f"[{_POWERS}][w - (b < 0 ? 0 : b > w ? w : b)], i[k] / m == n[k] / m))))"
)


# Of the time t in the zone z: its date, like "2026-12-25".
_DATE: Final = (
    "cel.bind(m, t.getMonth(z) + 1, cel.bind(d, t.getDate(z), "
    'string(t.getFullYear(z)) + (m < 10 ? "-0" : "-") + string(m) + (d < 10 ? "-0" : "-") + string(d)))'
)


def _added() -> Iterator[Function]:
    for name, body in (("min", "math.least(items)"), ("max", "math.greatest(items)")):
        yield Function(name, True, tuple(((f"list<{kind}>",), kind) for kind in _NUMBERS), ("items",), body)
    yield _member("toDate", "t z", "timestamp string", "string", _DATE)
    yield from _of_quantities()
    yield from _of_addresses()


def _of_quantities() -> Iterator[Function]:
    yield _function("isQuantity", "s", "string", "bool", _IS_QUANTITY)
    yield _function("quantity", "s", "string", QUANTITY, _QUANTITY)
    for name, operator in (("isLessThan", "<"), ("isGreaterThan", ">")):
        yield _member(name, "a b", f"{QUANTITY} {QUANTITY}", "bool", f"a {operator} b")
    yield _member("compareTo", "a b", f"{QUANTITY} {QUANTITY}", "int", "a == b ? 0 : (a < b ? -1 : 1)")
    for name, operator in (("add", "+"), ("sub", "-")):
        overloads = (((QUANTITY, QUANTITY), QUANTITY), ((QUANTITY, "int"), QUANTITY))
        yield Function(name, True, overloads, ("a", "b"), f"a {operator} (type(b) == int ? double(b) * 1000.0 : double(b))")
    yield _member("sign", "a", QUANTITY, "int", "a == 0.0 ? 0 : (a < 0.0 ? -1 : 1)")
    whole = "(a > -9.2e21 && a < 9.2e21 && double(int(a / 1000.0)) * 1000.0 == a)"
    yield _member("isInteger", "a", QUANTITY, "bool", whole)
    yield _member("asInteger", "a", QUANTITY, "int", f"{whole} ? int(a / 1000.0) : int({_ERROR.format('not an integer')})")
    yield _member("asApproximateFloat", "a", QUANTITY, "double", "a / 1000.0")


def _of_addresses() -> Iterator[Function]:
    yield _function("isIP", "s", "string", "bool", f"size({_PARSED}) > 0")
    # The index is an error for the empty list.
    yield _function("ip", "s", "string", IP, f"cel.bind(r, {_PARSED}, size(r) > 0 ? r : [r[0]])")
    yield _member("family", "a", IP, "int", "size(a) == 4 ? 4 : 6")
    yield _member("isUnspecified", "a", IP, "bool", "a.all(x, x == 0)")
    yield _member("isLoopback", "a", IP, "bool", "size(a) == 4 ? a[0] == 127 : a == [0, 0, 0, 0, 0, 0, 0, 1]")
    local = "size(a) == 4 ? a[0] == 169 && a[1] == 254 : a[0] / 64 == 1018"
    yield _member("isLinkLocalUnicast", "a", IP, "bool", local)
    text = _cut("s", _CIDR_LENGTH_MAX)
    is_prefix = (
        f'size(c) == 2 && isIP(c[0]) && cel.bind(x, {_cut("c[1]", 4)}, size(x) == size(c[1]) && x != "" && size(x) <= 3 && '
        f'{_without_digits("x")} == "" && (x == "0" || !x.startsWith("0")) && int(x) <= (c[0].contains(":") ? 128 : 32))'
    )
    yield _function(
        "isCIDR", "s", "string", "bool", f'cel.bind(t, {text}, size(t) == size(s) && cel.bind(c, t.split("/", 3), {is_prefix}))'
    )
    yield _function(
        "cidr",
        "s",
        "string",
        CIDR,
        f'isCIDR(s) ? cel.bind(c, {text}.split("/", 3), [dyn(ip(c[0])), int(c[1])]) : [dyn({_ERROR.format("not a CIDR")})]',
    )
    yield _of_networks("containsIP", IP, "ip", _contains("o"))
    yield _of_networks("containsCIDR", CIDR, "cidr", f"o[1] >= c[1] && {_contains('o[0]')}")
    yield _member("ip", "c", CIDR, IP, "c[0]")
    yield _member("prefixLength", "c", CIDR, "int", "c[1]")


def _of_networks(name: str, kind: str, read: str, body: str) -> Function:
    """Return a method of networks. `body` is CEL over the network c and the argument o, of type `kind` or read from a text by `read`."""
    overloads = tuple(((CIDR, argument), "bool") for argument in (kind, "string"))
    argument = f"type(other) == string ? dyn({read}(string(other))) : other"
    return Function(name, True, overloads, ("c", "other"), f"cel.bind(o, {argument}, {body})")


def _contains(address: str) -> str:
    """Return whether an address is in the network c."""
    return f"cel.bind(i, {address}, cel.bind(n, c[0], cel.bind(p, c[1], {_CONTAINS})))"


# A name may be a function and a method: `ip("…")` and `cidr("…").ip()`.
FUNCTIONS: Final[Mapping[tuple[str, bool], Function]] = {(function.name, function.is_member): function for function in _added()}
