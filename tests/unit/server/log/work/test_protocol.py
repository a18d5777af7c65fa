"""Places for groups of consumers in a work queue."""

from __future__ import annotations

import pytest
from gavel_server.log.work.protocol import (
    CALLER_GROUPS_MAX,
    FIRST_GROUPS_MIN,
    GROUPS_MAX,
    ConsumerGroup,
    GroupsFullError,
    group_to_remove,
)
from hypothesis import given
from hypothesis import strategies as st


def group(owner: str, *, name: str = "group", members: int = 1) -> ConsumerGroup:
    """Return a group of a caller."""
    return ConsumerGroup(name, "requests", 0, 0, members, 0, owner)


def limit_of(groups: list[ConsumerGroup], owner: str) -> str:
    """Return the limit at which a caller gets no place for another group, or ""."""
    try:
        group_to_remove(groups, owner)
    except GroupsFullError as error:
        return error.limit
    return ""


@given(st.lists(st.integers(0, 50), max_size=300))
def test_who_gets_places(arrivals: list[int]) -> None:
    """Whoever asks in whatever order, no limit is exceeded, and a caller without a group gets one unless the queue is full."""
    groups: list[ConsumerGroup] = []
    for caller in arrivals:
        owner = f"caller-{caller}"
        own = sum(one.owner == owner for one in groups)
        limit = limit_of(groups, owner)
        if limit:
            assert own > 0 or len(groups) == GROUPS_MAX
            assert (limit == "CALLER_GROUPS_MAX") == (own == CALLER_GROUPS_MAX)
        else:
            groups.append(group(owner))
    assert len(groups) <= GROUPS_MAX
    for owner in {one.owner for one in groups}:
        assert sum(one.owner == owner for one in groups) <= CALLER_GROUPS_MAX
    later_groups = len(groups) - len({one.owner for one in groups})
    assert later_groups <= GROUPS_MAX - FIRST_GROUPS_MIN


@pytest.mark.parametrize(
    ("groups", "removed"),
    [
        ([*(group("mallory") for _ in range(CALLER_GROUPS_MAX)), group("alice", name="other", members=0)], None),
        ([*(group("mallory") for _ in range(CALLER_GROUPS_MAX - 1)), group("mallory", name="own", members=0)], "own"),
        ([*(group("") for _ in range(GROUPS_MAX - FIRST_GROUPS_MIN)), group("mallory"), group("alice", name="other", members=0)], "other"),
    ],
    ids=["an unused one of another caller", "an unused one of its own", "any unused one"],
)
def test_unused_groups_make_place(groups: list[ConsumerGroup], removed: str | None) -> None:
    """At its own limit a caller replaces its own groups only; at the others, any group that nobody uses."""
    if removed is None:
        with pytest.raises(GroupsFullError):
            group_to_remove(groups, "mallory")
    else:
        assert removed == group_to_remove(groups, "mallory")


def test_groups_of_gavels_own_clients_stay() -> None:
    """The groups of Gavel's own clients count as used, whatever they hold."""
    own = [ConsumerGroup(name, queue, 0, 0, 0, 0) for queue, name in (("decisions", "executors"), ("executions", "fdr"))]
    assert [True, True, False] == [one.is_used for one in (*own, ConsumerGroup("fdr", "decisions", 0, 0, 0, 0))]
