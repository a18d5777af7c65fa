"""The functions and macros of the language's second version, against their meaning and against Python's own libraries."""

from __future__ import annotations

import ipaddress
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from gavel_rules.language.cel.checker import Environment
from gavel_rules.language.cel.inference import infer_type
from gavel_rules.language.cel.library import parse
from gavel_rules.language.cel.vocabulary import DOUBLE, INT, Field, ValueType
from gavel_rules.language.engines.cel import Program, condition_source
from hypothesis import given, settings
from hypothesis import strategies as st

TEXT = ValueType("string", size_max=60)
CONTAINER = ValueType(
    "object", fields={"cpu": Field(TEXT), "note": Field(TEXT, required=False), "count": Field(INT), "price": Field(DOUBLE)}
)
SCOPE = {
    "s": TEXT,
    "t": TEXT,
    "words": ValueType("list", TEXT, size_max=20),
    "ints": ValueType("list", INT, size_max=20),
    "doubles": ValueType("list", DOUBLE, size_max=20),
    "items": ValueType("list", CONTAINER, size_max=20),
}
ENVIRONMENT = Environment(SCOPE, version=2)
SUFFIXES = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
ERROR = "error"


def mistakes(text: str) -> list[str]:
    """Return the codes of an expression's mistakes."""
    codes: list[str] = []
    ENVIRONMENT.check(text, lambda offset, code, message, hint: codes.append(f"{code}: {message}"), "")
    return codes


@cache
def compiled(text: str) -> Program:
    """Return an expression without mistakes, ready to evaluate."""
    assert [] == mistakes(text)
    return Program(ENVIRONMENT, [condition_source(text)])


def value(text: str, **values: Any) -> Any:
    """Return the value of an expression without mistakes; "error" if it errs."""
    program = compiled(text)
    answers = program.evaluate_all(values)
    (single,) = program.evaluate_each(values)
    assert (None if answers is None else answers[0]) == single
    return ERROR if answers is None else single


def amount(text: str) -> Decimal | None:
    """Return what Kubernetes reads in a quantity; None if it is none."""
    for suffix, power in BINARY.items():
        if text.endswith(suffix):
            number, factor = text.removesuffix(suffix), Decimal(1024) ** power
            break
    else:
        suffix = text[-1:] if text[-1:] in SUFFIXES else ""
        number, factor = text.removesuffix(suffix), Decimal(10) ** SUFFIXES[suffix]
        mantissa, mark, exponent = number.replace("E", "e").partition("e")
        digits = exponent[1:] if exponent[:1] in ("+", "-") else exponent
        if mark and (suffix or not digits.isdecimal() or len(digits) > 3):
            return None
        number, factor = mantissa, factor * Decimal(10) ** int(exponent or 0)
    unsigned = number[1:] if number[:1] in ("+", "-") else number
    if not unsigned.replace(".", "", 1).isdecimal():
        return None
    return Decimal(number) * factor


QUANTITIES = st.builds(
    lambda sign, number, suffix: f"{sign}{number}{suffix}",
    st.sampled_from(["", "", "+", "-"]),
    st.integers(0, 10**6).map(str)
    | st.decimals(0, 1000, places=3).map(str)
    | st.sampled_from([".5", "5.", ".", "", "1.2.3", "0x1", "inf"]),
    st.sampled_from(["", *SUFFIXES, *BINARY, "e3", "E2", "e-3", "e+2", "e", "ki", "i", "mm", "Ee1", " "]),
)


@settings(max_examples=150, deadline=None)
@given(QUANTITIES, QUANTITIES)
def test_quantities_compare_as_in_kubernetes(one: str, other: str) -> None:
    """A text is a quantity if Kubernetes reads it as one, and quantities compare by their exact values."""
    left, right = amount(one), amount(other)
    assert (left is not None) == value("isQuantity(s)", s=one), one
    expected: Any = ERROR if left is None or right is None else (left > right) - (left < right)
    assert expected == value("quantity(s).compareTo(quantity(t))", s=one, t=other), (one, other)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**9).map(lambda milli: f"{milli}m") | st.integers(0, 2**20).map(lambda number: f"{number}Mi"), max_size=6))
def test_sums_of_quantities_are_exact(parts: list[str]) -> None:
    """The sum of quantities is exact, whatever their order and suffixes."""
    total = sum((amount(part) or Decimal(0)) for part in parts)
    items = [{"cpu": part, "count": 1, "price": 1.0} for part in parts]
    milli = f"{int(total * 1000)}m"
    assert value("items.map(i, quantity(i.cpu)).sum() == quantity(s)", items=items, s=milli) is True


ADDRESSES = (
    st.ip_addresses().map(str)
    | st.ip_addresses(v=6).map(lambda address: address.exploded)
    | st.text("0123456789abcdefF:.", max_size=20)
    | st.sampled_from(
        ["::", "::1", "1::", ":::", "1::2::3", "1:2:3:4:5:6:7::", "::ffff:1.2.3.4", "::ffff:102:304", "01.2.3.4", "1.2.3", "", " ::1"]
    )
)


def address(text: str) -> Any:
    """Return the address that Kubernetes reads; None if it is none, or IPv4 written as IPv6."""
    if "." in text and ":" in text:
        return None  # Gavel does not read mixed notations
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if ip.version == 6 and ip.ipv4_mapped is not None else ip


@settings(max_examples=150, deadline=None)
@given(ADDRESSES)
def test_addresses_are_read_as_in_kubernetes(text: str) -> None:
    """A text is an address if Python's ipaddress reads it, and has the same family and properties."""
    ip = address(text)
    assert (ip is not None) == value("isIP(s)", s=text), text
    if ip is None:
        assert ERROR == value("ip(s).family()", s=text)
        return
    assert ip.version == value("ip(s).family()", s=text)
    assert ip.is_loopback == value("ip(s).isLoopback()", s=text)
    assert ip.is_unspecified == value("ip(s).isUnspecified()", s=text)
    assert ip.is_link_local == value("ip(s).isLinkLocalUnicast()", s=text)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.ip_addresses(), st.integers(0, 130), st.ip_addresses(), st.booleans())
def test_networks_contain_addresses(network: Any, prefix: int, other: Any, is_near: bool) -> None:
    """A network contains an address, and another network, if Python's ipaddress says so."""
    text = f"{network}/{prefix}"
    size = 32 if network.version == 4 else 128
    known = address(str(network)) is not None and prefix <= size
    assert known == value("isCIDR(s)", s=text)
    if is_near and other.version == network.version and known:
        other = type(network)((int(network) >> (size - prefix) << (size - prefix)) ^ (int(other) % (1 << min(size - prefix + 1, size))))
    if known and address(str(other)) is not None:
        whole = ipaddress.ip_network(text, strict=False)
        assert (other in whole) == value("cidr(s).containsIP(t)", s=text, t=str(other))
        assert (other in whole) == value("cidr(s).containsIP(ip(t))", s=text, t=str(other))
        narrow = f"{other}/{32 if other.version == 4 else 128}"
        assert (other in whole) == value("cidr(s).containsCIDR(t)", s=text, t=narrow)
        assert prefix == value("cidr(s).prefixLength()", s=text)


@pytest.mark.parametrize(("text", "kind"), [("[].sum()", "int"), ("([] + []).sum()", "int"), ("e.sum()", "dyn"), ("([] + e).sum()", "dyn")])
def test_the_sum_of_a_declared_list_without_elements_is_no_literal(text: str, kind: str) -> None:
    """Only a literal list without elements adds up to an int: a list that is declared empty is one of doubles, as it always was."""
    assert kind == infer_type(parse(text, 2), {"e": ValueType("list", size_max=0)}).kind


EXPRESSIONS: list[tuple[str, dict[str, Any], Any]] = [
    ("ints.sum()", {"ints": [1, 2, 3]}, 6),
    ("ints.sum()", {"ints": []}, 0),
    ("[].sum() + 1", {}, 1),
    ("([] + []).sum() + size(s)", {"s": "ab"}, 2),
    ("[].map(i, 1.0).sum() + 0.5", {}, 0.5),
    ("doubles.sum()", {"doubles": []}, 0.0),
    ("doubles.sum() + 0.5", {"doubles": [1.0, 2.0]}, 3.5),
    ("items.map(i, i.price).sum() + 1.0", {"items": []}, 1.0),
    ("items.filter(i, i.count > 1).map(i, i.count).sum() % 2", {"items": [{"cpu": "1", "count": 3, "price": 1.0}]}, 1),
    ("ints.min() + ints.max()", {"ints": [5, -2, 3]}, 3),
    ("ints.min()", {"ints": []}, ERROR),
    ('s.replace("a", "bb")', {"s": "banana"}, "bbbnbbnbb"),
    ('s.contains("zone:0+01:00 100")', {"s": "zone:0+01:00 100"}, True),
    ('words.join(", ")', {"words": ["a", "b"]}, "a, b"),
    ("cel.bind(n, size(words), n * n)", {"words": ["a", "b", "c"]}, 9),
    ("words.exists(i, word, i == 1 && word == s)", {"words": ["a", "b"], "s": "b"}, True),
    ("words.all(i, word, i < 2 && word != s)", {"words": ["a", "b"], "s": "b"}, False),
    ("words.transformList(i, word, i > 0, word + s)", {"words": ["a", "b"], "s": "!"}, ["b!"]),
    ("(size(words) > 0 ? words[0] : null) == null", {"words": []}, True),
    ("(size(words) > 0 ? words[0] : 1) == 1", {"words": ["a"]}, False),
    ("items.filter(i, has(i.note)).map(i, i.note)", {"items": [{"cpu": "1", "count": 1, "price": 1.0, "note": "n"}]}, ["n"]),
    ("items.filter(i, has(i.note)).transformList(n, i, i.note)", {"items": [{"cpu": "1", "count": 1, "price": 1.0, "note": "n"}]}, ["n"]),
    ('quantity("1500m").asInteger()', {}, ERROR),
    ('quantity("2").add(3).asInteger()', {}, 5),
    ('quantity("2").sub(quantity("2.5")).sign()', {}, -1),
    ('quantity("1Gi").asApproximateFloat()', {}, 2.0**30),
    ('cidr("10.1.2.3/8").ip() == ip("10.1.2.3")', {}, True),
    ("ints.sum // a comment\n() + 1", {"ints": [1, 2]}, 4),
    ('s.matches("^\U0001f600+$")', {"s": "\U0001f600\U0001f600"}, True),
]


@pytest.mark.parametrize(("text", "values", "expected"), EXPRESSIONS, ids=[text for text, _, _ in EXPRESSIONS])
def test_expression(text: str, values: dict[str, Any], expected: Any) -> None:
    """An expression has its value, or errs."""
    actual = value(text, **values)
    assert (type(expected), expected) == (type(actual), actual)


LOOPS = ("[7, 8].exists(i, i == 7)", "![7, 8].all(i, i == 8)", "[7, 8].exists(n, i, n == 0)", "![7, 8].all(n, i, n > 0)")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("text", "values", "expected"), EXPRESSIONS, ids=[text for text, _, _ in EXPRESSIONS])
def test_expression_behind_a_loop(text: str, values: dict[str, Any], expected: Any, loop: str) -> None:
    """An expression has its value also behind a loop that has its answer before its end: the loop leaves nothing behind."""
    actual = value(f"[dyn({loop}), dyn({text})]", **values)
    assert (ERROR if expected == ERROR else [True, expected]) == actual


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("items.map(i, i.note)", "unguarded-optional: i.note may be absent"),
        ("(items + items).map(i, i.note)", "unguarded-optional: i.note may be absent"),
        ("items.filter(i, has(i.note) || i.count > 1).map(i, i.note)", "unguarded-optional: i.note may be absent"),
        ("items.map(i, i.prize).sum()", "unknown-name: i has no field prize"),
        ("cel.bind(s, 1, s)", "shadowed-name: s already has a meaning"),
        ('quantity("1") < quantity("2")', "type-error: < cannot be applied"),
        ("quantity(ints[0])", "type-error: quantity cannot be applied to int"),
        ("words.sum()", "type-error: sum cannot be applied"),
        ('timestamp(s).getHours("+20:00") > 1', "bad-literal: no place has the offset +20:00"),
        ('timestamp(s).getHours("-01:75") > 1', "bad-literal: no place has the offset -01:75"),
        ('"%s".format([s])', "not-supported: format is not supported"),
        # Each function brings its body, so the library's depth is reached with few of them.
        ("string(quantity(" * 12 + "s" + ").asApproximateFloat())" * 12 + ' == "1"', "too-complex: the expression is nested too deep"),
    ],
)
def test_mistakes(text: str, part: str) -> None:
    """A mistake in a new form has its message."""
    assert any(part in mistake for mistake in mistakes(text)), mistakes(text)


@pytest.mark.parametrize("text", ["cel.bind(n, 1, n) == 1", "ints.sum() == 1", 's.replace("a", "b") == "b"', "(true ? null : 1) == null"])
def test_the_first_version_has_none_of_these(text: str) -> None:
    """Documents of the first version refuse what only the second one has."""
    codes: list[str] = []
    assert Environment(SCOPE).check(text, lambda offset, code, message, hint: codes.append(code)) is None
    assert codes
