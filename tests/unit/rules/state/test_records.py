"""The records of the state."""

from __future__ import annotations

from gavel_rules.state.records import EXECUTING, LiveDecision

from tests.support.driver import Core, document


def test_replace() -> None:
    """A copy of a live decision has the changed fields, and all other fields of the original."""
    core = Core(document())
    approval = core.approve()
    core.start(approval)
    live = core.state.decisions[approval.event_id]
    copy = live.replace(is_revoked=True, starts=9)
    assert (True, 9, EXECUTING) == (copy.is_revoked, copy.starts, copy.phase)
    assert live.values() == copy.replace(is_revoked=False, starts=live.starts).values()


def test_values() -> None:
    """The values of a live decision, in their order, construct an equal one."""
    core = Core(document())
    live = core.state.decisions[core.approve().event_id]
    assert live.values() == LiveDecision(*live.values()).values()
