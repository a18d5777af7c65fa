"""Quotas of callers: rates, streams, and what is remembered."""

from __future__ import annotations

import pytest
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import address_of, caller_of
from gavel_server.fairness.quotas import ACCOUNTS_MAX, THROTTLED_SECONDS, QuotaLimits, Quotas, ThrottledAccount
from google.rpc.error_details_pb2 import QuotaFailure, RetryInfo
from hypothesis import given
from hypothesis import strategies as st

ALICE = "principal:jwt:https://issuer:alice"


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def read(self) -> float:
        """Return the time."""
        return self.seconds


def charges(quotas: Quotas, caller: str, calls: int, size_bytes: int = 1) -> int:
    """Make calls; return how many are not refused."""
    passed = 0
    for _ in range(calls):
        try:
            quotas.charge(caller, size_bytes)
        except ServiceError:
            continue
        passed += 1
    return passed


def test_calls_beyond_the_rate_are_refused() -> None:
    """A caller makes a second's calls at once, is refused then, and gets its rate back with time; other callers notice nothing."""
    clock = Clock()
    quotas = Quotas(QuotaLimits(calls_per_second=10), clock.read)
    assert 10 == charges(quotas, ALICE, 30)
    assert 10 == charges(quotas, "192.0.2.1", 30)
    clock.seconds = 0.5
    assert 5 == charges(quotas, ALICE, 30)


def test_bytes_beyond_the_rate_are_refused() -> None:
    """Once a caller has sent a second's bytes, its calls are refused until the overdraft is paid off."""
    clock = Clock()
    quotas = Quotas(QuotaLimits(bytes_per_second=1000), clock.read)
    assert 2 == charges(quotas, ALICE, 5, size_bytes=900)
    clock.seconds = 0.7
    assert 0 == charges(quotas, ALICE, 1)
    clock.seconds = 0.9
    assert 1 == charges(quotas, ALICE, 1)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 30)), max_size=20), st.integers(1, 50))
def test_no_second_exceeds_twice_the_rate(bursts: list[tuple[float, int]], rate: int) -> None:
    """However calls are spread, at most the rate for each elapsed second and one second's worth more pass."""
    clock = Clock()
    quotas = Quotas(QuotaLimits(calls_per_second=rate), clock.read)
    passed = 0
    for pause, calls in bursts:
        clock.seconds += pause
        passed += charges(quotas, ALICE, calls)
        assert passed <= rate * (clock.seconds + 1) + 1e-6


def test_refusal_says_what_and_when() -> None:
    """The error names quota and limit, says whom it concerns, and when the next call can pass."""
    quotas = Quotas(QuotaLimits(calls_per_second=4), Clock().read)
    charges(quotas, ALICE, 4)
    with pytest.raises(ServiceError) as caught:
        quotas.charge(ALICE, 1)
    status = caught.value.status()
    assert "calls_per_second of 4" in status.message
    failure, retry = QuotaFailure(), RetryInfo()
    assert [True, True] == [any(detail.Unpack(message) for detail in status.details) for message in (failure, retry)]
    assert (ALICE, "calls_per_second is limited to 4") == (failure.violations[0].subject, failure.violations[0].description)
    assert 251 == retry.retry_delay.ToMilliseconds()


def test_refusal_names_the_principal() -> None:
    """The error tells an authenticated caller its name, not the key under which it is counted."""
    alice = Principal("alice", "jwt", "https://issuer.example", ())
    quotas = Quotas(QuotaLimits(calls_per_second=1), Clock().read)
    quotas.charge(address_of(caller_of("192.0.2.1:1", alice)), 1, alice)
    with pytest.raises(ServiceError) as caught:
        quotas.charge(address_of(caller_of("192.0.2.1:1", alice)), 1, alice)
    assert ("alice", "calls_per_second is limited to 1") == caught.value.quota


def test_open_streams_are_counted() -> None:
    """A caller has at most so many streams open, and so many subscriptions among them; an ended one makes room."""
    quotas = Quotas(QuotaLimits(streams=2, subscriptions=1), Clock().read)
    with quotas.stream(ALICE, is_subscription=True):
        with pytest.raises(ServiceError, match="subscriptions of 1"), quotas.stream(ALICE, is_subscription=True):
            pass
        with quotas.stream(ALICE, is_subscription=False):
            with pytest.raises(ServiceError, match="streams of 2"), quotas.stream(ALICE, is_subscription=False):
                pass
            with quotas.stream("192.0.2.1", is_subscription=False):
                pass
    with quotas.stream(ALICE, is_subscription=True):
        pass


def test_throttled_callers_are_shown_for_a_minute() -> None:
    """The status shows who was refused, for which quota and how often, until the caller has kept to its quotas for a minute."""
    clock = Clock()
    quotas = Quotas(QuotaLimits(calls_per_second=1), clock.read)
    charges(quotas, ALICE, 4)
    charges(quotas, "192.0.2.1", 2)
    clock.seconds = 2.0
    assert [
        ThrottledAccount(ALICE, "calls_per_second", 3, 2.0),
        ThrottledAccount("192.0.2.1", "calls_per_second", 1, 2.0),
    ] == quotas.throttled_accounts()
    clock.seconds = THROTTLED_SECONDS
    assert [] == quotas.throttled_accounts()


def test_accounts_are_bounded() -> None:
    """A flood of addresses keeps a bounded number of accounts, and does not forget open streams."""
    quotas = Quotas(QuotaLimits(streams=1), Clock().read)
    with quotas.stream(ALICE, is_subscription=False):
        for number in range(3 * ACCOUNTS_MAX):
            quotas.charge(f"192.0.2.{number}", 1)
        assert len(quotas._accounts) <= ACCOUNTS_MAX
        with pytest.raises(ServiceError), quotas.stream(ALICE, is_subscription=False):
            pass


def test_limits_count_authenticated_callers_by_principal() -> None:
    """All connections of a principal belong to it, whatever their hosts; callers without authentication belong to their host."""
    alice, bob = Principal("alice", "jwt", "https://issuer"), Principal("bob", "token")
    one, two = caller_of("192.0.2.1:50000", alice), caller_of("[2001:db8::1]:50001", alice)
    assert one != two
    assert address_of(one) == address_of(two) != address_of(caller_of("192.0.2.1:50000", bob))
    assert "192.0.2.1" == address_of(caller_of("192.0.2.1:50000", ANONYMOUS))
    assert "unix:" == address_of(caller_of("unix:", ANONYMOUS))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("[2001:db8:1:2::7]", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:9::9]", "2001:db8:1:2::/64"),
        ("[2001:db8:1:3::7]", "2001:db8:1:3::/64"),
        ("[::ffff:192.0.2.1]", "192.0.2.1"),
        ("[::1]", "[::1]"),
        ("[fe80::1%eth0]", "[fe80::1%eth0]"),
        ("[host]", "[host]"),
    ],
)
def test_an_ipv6_network_is_one_address(host: str, address: str) -> None:
    """A caller with a network of 64 bits cannot evade a limit by calling from many of its hosts."""
    assert address == address_of(f"{host}:50000")
