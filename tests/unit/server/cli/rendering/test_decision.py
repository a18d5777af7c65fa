"""Decisions as the commands show them."""

from __future__ import annotations

import pytest
from gavel.v1.decision_pb2 import OUTCOME_REJECTED, REMEDY_WAIT, Decision, RetryHint
from gavel_server.cli.rendering.decision import print_decision


@pytest.mark.parametrize(
    ("conflicts", "text"),
    [([], "propose again after 30 s or more"), (["p-1"], "propose again when the conflicting work has ended, or after 30 s")],
)
def test_delay_before_a_retry(conflicts: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The delay is a minimum, but after a conflict the other work may end earlier."""
    hint = RetryHint(retryable=True, retry_after_ms=30_000, remedy=[REMEDY_WAIT])
    print_decision(Decision(outcome=OUTCOME_REJECTED, conflict_with_proposal_ids=conflicts, retry_hint=hint), [])
    shown = capsys.readouterr().out
    assert text in " ".join(shown.split()), shown
