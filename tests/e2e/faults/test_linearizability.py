"""The checker of histories refuses every kind of fault that the campaign looks for: it is shown each in a history of a few operations."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope

from tests.campaigns.faults import history as histories
from tests.campaigns.faults.__main__ import checker_program
from tests.campaigns.faults.history import History, HistoryError, check_history, claim_id

BUS = "parcels"
LIMIT = 10.0


@pytest.fixture(scope="module")
def checker() -> Path:
    """The checker."""
    return checker_program()


class Script:
    """A history whose times a test gives: `at` is that of the next call, and of its return."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._time = 0
        monkeypatch.setattr(histories, "now", lambda: self._time)
        self.history = History(path)

    def write(self, number: int, entry_id: str, event: Envelope | None = None, *, called: int, returned: int = 0) -> None:
        """Add a write that was answered with the event at `returned`; 0: without an answer."""
        self.history.announce_write(BUS, entry_id)
        self._time = returned
        self.history.add_write(number, BUS, entry_id, called, event, answered=returned > 0)

    def read(self, events: list[Envelope], *, called: int, returned: int, after: int = 0, complete: bool = True) -> None:
        """Add a read."""
        self._time = returned
        self.history.add_read(0, BUS, called, after, events, complete=complete)

    def refuse(self, decision_id: str, *, called: int, returned: int) -> None:
        """Add a refused claim."""
        self._time = returned
        self.history.add_refused_claim(0, BUS, decision_id, called)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """A history without operations."""
    return Script(tmp_path / "history.jsonl", monkeypatch)


def fact(number: int, event_id: str) -> Envelope:
    """Return a fact at a position."""
    event = Envelope(event_id=event_id, sequence_number=number, chain_hash=bytes([number]) * 32)
    event.fact.key = "parcel.note"
    return event


def decision(number: int, proposal_id: str, weight: float, *, approved: bool = True) -> Envelope:
    """Return a decision at a position."""
    event = Envelope(event_id=f"decision-{proposal_id}", sequence_number=number, chain_hash=bytes([number]) * 32)
    event.decision.proposal_id = proposal_id
    event.decision.outcome = decision_pb2.OUTCOME_APPROVED if approved else decision_pb2.OUTCOME_REJECTED
    event.decision.reason_code = "" if approved else histories.OVER_BUDGET
    event.decision.params["weight"] = weight
    return event


def start(number: int, decision_id: str, executor: str) -> Envelope:
    """Return the start of an attempt at a position."""
    event = Envelope(event_id=f"start-{number}", sequence_number=number, chain_hash=bytes([number]) * 32)
    event.execution.decision_id = decision_id
    event.execution.status = execution_pb2.EXECUTION_STATUS_STARTED
    event.producer.id = executor
    return event


def verdict(script: Script, checker: Path) -> str:
    """Return "linearizable", or the checker's whole report."""
    script.history.close()
    try:
        report = check_history(script.history.path, checker, LIMIT)
    except HistoryError as error:
        report = str(error)
    *_, last = report.splitlines()
    return last if last == "linearizable" else report


def refusal(script: Script, checker: Path) -> str:
    """Return the checker's report, which must refuse the history."""
    report = verdict(script, checker)
    assert report.endswith("\nnot linearizable\n"), report
    return report


def test_one_log_explains_overlapping_calls(script: Script, checker: Path) -> None:
    """Calls that overlap may take effect in any order; a repetition changes nothing, and a call without an answer may have taken effect."""
    one, two, three = fact(1, "one"), fact(2, "two"), fact(4, "three")
    script.write(1, "two", two, called=1, returned=9)
    script.write(2, "one", one, called=2, returned=4)
    script.write(1, "one", one, called=5, returned=12)
    script.write(3, "three", called=3)
    script.write(3, "four", called=3)
    script.read([one], called=3, returned=6)
    script.read([two], called=10, returned=11, after=1, complete=False)
    script.read([one, two, three], called=13, returned=14)
    script.write(3, "three", three, called=15, returned=16)
    assert "linearizable" == verdict(script, checker)


def test_a_lost_write_is_refused(script: Script, checker: Path) -> None:
    """A write that was answered and that a later read lacks is refused."""
    script.write(1, "one", fact(1, "one"), called=1, returned=2)
    script.write(1, "two", fact(2, "two"), called=3, returned=4)
    script.read([fact(1, "one")], called=5, returned=6)
    assert '"kind":"read"' in refusal(script, checker)


def test_a_replaced_write_is_refused(script: Script, checker: Path) -> None:
    """Two writes that were answered with one position are refused, as after a failover that lost the first."""
    script.write(1, "one", fact(1, "one"), called=1, returned=2)
    script.write(1, "two", fact(1, "two"), called=3, returned=4)
    assert "has the position of one" in refusal(script, checker)


def test_a_doubled_write_is_refused(script: Script, checker: Path) -> None:
    """A write that a read shows twice, or that its repetition answers with another position, is refused."""
    script.write(1, "one", fact(1, "one"), called=1, returned=2)
    script.read([fact(1, "one"), fact(2, "one")], called=3, returned=4)
    assert '"kind":"read"' in refusal(script, checker)


def test_a_repetition_with_another_answer_is_refused(script: Script, checker: Path) -> None:
    """A repeated request that gets another event is refused."""
    script.write(1, "one", fact(1, "one"), called=1, returned=2)
    script.write(1, "one", fact(2, "one"), called=3, returned=4)
    assert '"position":2' in refusal(script, checker)


@pytest.mark.parametrize("complete", [True, False])
def test_a_stale_read_is_refused(script: Script, checker: Path, complete: bool) -> None:
    """A read that lacks a write which another client was answered before its call is refused, unless it says that there may be more."""
    one, two = fact(1, "one"), fact(2, "two")
    script.write(1, "one", one, called=1, returned=2)
    script.write(2, "two", two, called=3, returned=4)
    script.read([one], called=5, returned=6, complete=complete)
    script.read([one, two], called=7, returned=8)
    assert complete == (verdict(script, checker) != "linearizable")


def test_a_read_of_the_future_is_refused(script: Script, checker: Path) -> None:
    """A read that shows a write which is called only later is refused."""
    script.history.announce_write(BUS, "one")
    script.read([fact(1, "one")], called=1, returned=2)
    script.write(1, "one", fact(1, "one"), called=3, returned=4)
    assert '"kind":"read"' in refusal(script, checker)


def test_a_vanished_write_is_refused(script: Script, checker: Path) -> None:
    """A write without an answer that one read shows and a later one lacks is refused."""
    script.write(1, "one", called=1)
    script.read([fact(1, "one")], called=2, returned=3)
    script.read([], called=4, returned=5)
    assert '"call":4' in refusal(script, checker)


def test_a_wrong_order_is_refused(script: Script, checker: Path) -> None:
    """A write that is called after another one was answered must have the later position."""
    script.write(1, "two", fact(2, "two"), called=1, returned=2)
    script.write(1, "one", fact(1, "one"), called=3, returned=4)
    assert '"id":"two"' in refusal(script, checker)


@pytest.mark.parametrize(
    ("weight", "approved", "reason"),
    [(4.0, True, ""), (4.5, True, "approves 10.5 in all"), (4.5, False, ""), (4.0, False, "refused although 4 of 10 are free")],
)
def test_a_budget_is_exact(script: Script, checker: Path, weight: float, approved: bool, reason: str) -> None:
    """Approvals within the limit and refusals beyond it are accepted; an approval beyond it and a refusal within are refused."""
    script.write(1, "one", decision(2, "one", 6.0), called=1, returned=2)
    script.write(1, "two", decision(4, "two", weight, approved=approved), called=3, returned=4)
    outcome = verdict(script, checker)
    assert reason in outcome
    assert (not reason) == (outcome == "linearizable")


def test_claims(script: Script, checker: Path) -> None:
    """A claim and the refusal of a later one are accepted."""
    script.write(1, claim_id("d", "ada"), called=1, returned=3)
    script.refuse("d", called=2, returned=4)
    script.read([start(3, "d", "ada")], called=5, returned=6)
    assert "linearizable" == verdict(script, checker)


def test_a_doubled_claim_is_refused(script: Script, checker: Path) -> None:
    """Two claims of one decision are refused."""
    script.write(1, claim_id("d", "ada"), called=1, returned=3)
    script.write(2, claim_id("d", "bob"), called=1, returned=3)
    script.read([start(3, "d", "ada"), start(4, "d", "bob")], called=5, returned=6)
    assert "claims a decision that is claimed" in refusal(script, checker)


def test_a_claim_that_is_refused_for_nobody_is_refused(script: Script, checker: Path) -> None:
    """The refusal of a claim before the first one is refused."""
    script.refuse("d", called=1, returned=2)
    script.write(1, claim_id("d", "ada"), called=3, returned=4)
    script.read([start(3, "d", "ada")], called=5, returned=6)
    assert '"kind":"refuse"' in refusal(script, checker)


def test_an_unreadable_history_is_no_verdict(tmp_path: Path, checker: Path) -> None:
    """A file that is no history is an error, not a verdict."""
    path = tmp_path / "history.jsonl"
    path.write_text("operations\n")
    with pytest.raises(HistoryError, match="exits with 2"):
        check_history(path, checker, LIMIT)
