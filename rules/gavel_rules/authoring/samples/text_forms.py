"""Sample texts that functions of conditions can read: times, durations, quantities, addresses, networks and numbers.

A text that such a function cannot read is an evaluation error, which hides every rule of the action. So the texts of a form come first
among the samples of a path that a function reads.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

# The time of a sample case by default: a Monday noon in UTC.
BASE_TIME: Final = datetime(2026, 1, 15, 12, 0, tzinfo=UTC)  # in the middle of a week and of a month

Constants = Iterable[str | float]

_UNIT_MS: Final = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_OFFSETS: Final = (timedelta(), timedelta(seconds=1), timedelta(seconds=-1))
_ADDRESS_PLAINEST: Final = "10.0.0.1"
_NETWORK_PLAINEST: Final = "10.0.0.0/8"


def texts_of_forms(functions: Iterable[str], constants: Constants) -> Iterator[str]:
    """Yield texts for every function of FORMS among `functions`. `constants` are those of the conditions that call the function."""
    values = tuple(constants)
    return chain.from_iterable(FORMS[name](values) for name in sorted(functions))


def _times(constants: Constants) -> Iterator[str]:
    """Yield times: the base time shifted by the durations among the constants, and by some others."""
    spans = [timedelta(), timedelta(days=1), timedelta(days=400), *_spans(constants)]
    for span in spans:
        for offset in _OFFSETS:
            for sign in (-1, 1):
                with suppress(OverflowError):  # beyond the longest span, or the years of the calendar
                    yield (BASE_TIME + (offset + sign * span)).isoformat().replace("+00:00", "Z")


def _durations(constants: Constants) -> Iterator[str]:
    """Yield durations: those among the constants, those a second shorter and longer, and some others."""
    for span in (timedelta(), *_spans(constants), timedelta(hours=1), timedelta(days=400)):
        for offset in _OFFSETS:
            with suppress(OverflowError):
                yield _duration_text(span + offset)


def _quantities(constants: Constants) -> Iterator[str]:
    """Yield quantities of Kubernetes: those among the constants, smaller and larger ones with the same suffix, and some others."""
    yield from ("0", "1")
    for constant in constants:
        match = re.fullmatch(r"(\d{1,9})([a-zA-Z]{0,2})", str(constant))
        if match is not None:
            number, suffix = int(match.group(1)), match.group(2)
            yield from (f"{value}{suffix}" for value in (number, number + 1, max(number - 1, 0)))
    yield from ("1m", "1Ki", "1Ti")


def _addresses(constants: Constants) -> Iterator[str]:
    """Yield IP addresses: those among the constants, and the ends and the neighbours of the networks among them."""
    yield _ADDRESS_PLAINEST
    for network in _networks_of(constants):
        for address, offset in ((network[0], 0), (network[-1], 0), (network[0], -1), (network[-1], 1)):
            with suppress(ipaddress.AddressValueError):  # below the first or above the last of all addresses
                yield str(address + offset)
    yield from ("192.0.2.1", "::1", "2001:db8::1")


def _networks(constants: Constants) -> Iterator[str]:
    """Yield networks: those among the constants, and for each the next narrower and wider one."""
    yield _NETWORK_PLAINEST
    for network in _networks_of(constants):
        yield str(network)
        if network.prefixlen < network.max_prefixlen:
            yield str(next(network.subnets()))
        if network.prefixlen > 0:
            yield str(network.supernet())
    yield from ("192.0.2.0/24", "2001:db8::/32")


def _addresses_and_networks(constants: Constants) -> Iterator[str]:
    values = tuple(constants)
    yield from _addresses(values)
    yield from _networks(values)


def _numbers(constants: Constants) -> Iterator[str]:
    """Yield whole numbers: those among the constants, and their neighbours."""
    numbers = [int(constant) for constant in constants if isinstance(constant, int | float) and abs(constant) < 2**53]
    yield from dict.fromkeys(str(number + offset) for number in (*numbers, 1) for offset in (0, 1, -1))


# By function: the texts that it reads. `ip` and `cidr` are called in one condition on different values, so each has both forms.
FORMS: Final[Mapping[str, Callable[[Constants], Iterator[str]]]] = {
    "timestamp": _times,
    "duration": _durations,
    "quantity": _quantities,
    "ip": _addresses,
    "cidr": _networks,
    "containsIP": _addresses_and_networks,
    "containsCIDR": _networks,
    "int": _numbers,
    "uint": _numbers,
    "double": _numbers,
}


def parse_duration(text: str) -> timedelta | None:
    """Return the value of CEL's duration() for a text such as "1h30m"; None for any other text."""
    parts = re.findall(r"([0-9.]+)(h|ms|m|s)", text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        return None
    try:
        return sum((timedelta(milliseconds=float(number) * _UNIT_MS[unit]) for number, unit in parts), timedelta())
    except (ValueError, OverflowError):
        return None


def _spans(constants: Constants) -> Iterator[timedelta]:
    return (span for constant in constants if isinstance(constant, str) and (span := parse_duration(constant)) is not None)


def _duration_text(span: timedelta) -> str:
    """Return a span as CEL's duration() reads it, e.g. "1h0m1s" or "-1s"."""
    left = abs(span)
    hours, left = divmod(left, timedelta(hours=1))
    minutes, left = divmod(left, timedelta(minutes=1))
    seconds = left / timedelta(seconds=1)
    text = f"{hours}h" if hours else ""
    text += f"{minutes}m" if minutes else ""
    text += f"{seconds:g}s" if seconds or not text else ""
    return f"-{text}" if span < timedelta() else text


def _networks_of(constants: Constants) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Yield the networks among constants; an address is a network of one."""
    for constant in constants:
        if isinstance(constant, str):
            with suppress(ValueError):
                yield ipaddress.ip_network(constant, strict=False)
