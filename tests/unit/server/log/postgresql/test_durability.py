"""Which settings of a PostgreSQL count as losing acknowledged events, and for how many standbys commits wait."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.postgresql.durability import Durability, acknowledgement_problem, standby_count, volatility_reasons

DURABLE = Durability(
    is_standby=False,
    fsync="on",
    full_page_writes="on",
    synchronous_commit="on",
    synchronous_standby_names="",
    standbys=0,
    slots=0,
    unlogged_tables="",
)


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ("", 0),
        ("  ", 0),
        ("*", 1),
        ("one, two", 1),
        ("FIRST 2 (one, two, three)", 2),
        ("first 2(one,two)", 2),
        ("ANY 3 (*)", 3),
        ("2 (one, two)", 2),
        ('"2nd", one', 1),
        ("any, one", 1),
    ],
)
def test_standby_count(names: str, count: int) -> None:
    """Every form of synchronous_standby_names that PostgreSQL's manual lists is understood."""
    assert count == standby_count(names)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_standby": True}, "it is a standby"),
        ({"fsync": "off"}, "fsync is off"),
        ({"full_page_writes": "off"}, "full_page_writes is off"),
        ({"synchronous_commit": "off"}, "synchronous_commit is off"),
        ({"unlogged_tables": "events"}, "the tables events are unlogged"),
        ({"standbys": 1}, "1 standby(s)"),
        ({"slots": 2, "standbys": 1}, "2 standby(s)"),
        ({"standbys": 1, "synchronous_standby_names": "*", "synchronous_commit": "local"}, "1 standby(s)"),
        ({"standbys": 1, "synchronous_standby_names": "*", "synchronous_commit": "remote_write"}, "1 standby(s)"),
    ],
)
def test_volatile_settings(changes: dict[str, Any], reason: str) -> None:
    """Each setting that may lose acknowledged events gives one reason."""
    assert [] == volatility_reasons(DURABLE)
    (actual,) = volatility_reasons(DURABLE._replace(**changes))
    assert actual.startswith(reason)


@pytest.mark.parametrize("commit", ["on", "remote_apply"])
def test_synchronous_standbys_are_durable(commit: str) -> None:
    """Standbys that commits wait for lose nothing."""
    settings = DURABLE._replace(standbys=2, slots=2, synchronous_standby_names="ANY 1 (*)", synchronous_commit=commit)
    assert ([], 1) == (volatility_reasons(settings), settings.synchronous_standbys)


@pytest.mark.parametrize(
    ("acknowledgement", "is_met"),
    [
        (Acknowledgement(), True),
        (Acknowledgement(1), True),
        (Acknowledgement(2), True),
        (Acknowledgement(3), False),
        (Acknowledgement(0, is_synced=True), False),
    ],
)
def test_acknowledgement(acknowledgement: Acknowledgement, is_met: bool) -> None:
    """--ack replicas:N is met by commits that wait for N standbys or more; --ack aof:N is for Redis."""
    settings = DURABLE._replace(synchronous_standby_names="ANY 2 (*)")
    assert is_met == (acknowledgement_problem(settings, acknowledgement) == "")
