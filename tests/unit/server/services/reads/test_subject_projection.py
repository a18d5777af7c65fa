"""The items of one subject's projection."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_server.services.reads import subject_projection
from gavel_server.services.reads.subject_projection import DECISIONS, EXECUTIONS, Place, SubjectItem, count_items, subject_items

from tests.support.driver import Core, document

SUBJECT = "order/1"
APPROVALS = 40


@pytest.fixture(scope="module")
def core() -> Core:
    """A bus with many live decisions on one subject, half of which are executing."""
    core = Core(document(conflict_key="string(params.amount)", decision_ttl_ms=3_600_000))
    for number in range(APPROVALS):
        approval = core.approve(SUBJECT, amount=number + 1, trace_id=f"trace-{number}")
        if number % 2:
            core.start(approval, lease_ms=3_600_000)
    return core


def test_many_live_decisions_in_pages(core: Core) -> None:
    """Pages of any size hold each decision and each execution once, by age, the decisions first."""
    for size in (1, 7, 1_000):
        places: list[Place] = []
        while items := subject_items(core.state, SUBJECT, size, *places[-1:]):
            places += [item.place for item in items]
        work = [place for place in places if place.section in (DECISIONS, EXECUTIONS)]
        assert (APPROVALS, APPROVALS // 2) == tuple(sum(one.section == section for one in work) for section in (DECISIONS, EXECUTIONS))
        assert sorted(set(work)) == work


def test_a_page_makes_no_item_of_another_one(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a subject with many live decisions costs the items of the page."""
    count = 0

    def counted(*fields: Any) -> SubjectItem:
        nonlocal count
        count += 1
        return SubjectItem(*fields)

    monkeypatch.setattr(subject_projection, "SubjectItem", counted)
    assert 5 == len(subject_items(core.state, SUBJECT, 5))
    assert 5 == count


def test_live_decisions_make_a_subject_wide(core: Core) -> None:
    """Decisions count among the items that make the reads of a subject expensive, beside its keys."""
    assert count_items(core.state, SUBJECT) >= APPROVALS + 1
    assert 0 == count_items(core.state, "order/2")
