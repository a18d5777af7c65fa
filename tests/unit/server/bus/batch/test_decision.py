"""Deciding a batch: the answer to each command and the log entries of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.common_pb2 import EventReference
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.commands import BeginExecution, Command, EventAnswer, Fault, PublishEvent, References, SubmitProposal
from gavel_rules.errors import NetworkFaultError
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import timestamp
from gavel_rules.language.engines.rete import Network
from gavel_server.bus.answers.delivery import result_of
from gavel_server.bus.batch.decision import TIMERS_PER_COMMIT, DecidedBatch, decide_batch
from gavel_server.bus.recent_events import RecentEvents
from gavel_server.bus.request import CommittedAnswer, Request
from gavel_server.errors import ServiceError
from gavel_server.log import Head, chain
from gavel_server.log.memory import MemoryLog
from gavel_server.process import metrics
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.support.citations import references_to
from tests.support.driver import ACTION, BUS, EXECUTOR, RULES, SUCCESS, Core, document, event_id, fact_envelope, proposal_envelope


def pending(core: Core, command: Command, named_in_batch: Sequence[str] = ()) -> Request:
    """A request with its references resolved."""
    request = Request(command, lambda _: None, "", 0, references=core.references(command))
    request.named_in_batch = list(named_in_batch)
    return request


def planned(core: Core, *commands: Command) -> DecidedBatch:
    """Decide commands as one batch on top of the bus's log."""
    return planned_batch(core, [pending(core, command) for command in commands])


def planned_batch(core: Core, batch: list[Request]) -> DecidedBatch:
    """Decide a batch on top of the bus's log, with a RecentEvents that holds all of it."""
    recent_events = RecentEvents(MemoryLog(BUS, lambda: core.now_ms))
    for event in core.events:
        recent_events.add(event)
    for item in batch:
        if isinstance(item.command, SubmitProposal):
            item.references = References(cited_events=recent_events.citable)
    last = core.records[-1]
    return decide_batch(core.state, recent_events, Head(last.sequence_number, last.chain_hash), batch, core.now_ms)


def fact(core: Core, **changes: Any) -> PublishEvent:
    """A fact to publish."""
    return PublishEvent(core.admit(fact_envelope("order.status", "delivered", **changes)))


def test_entries_are_chained_and_have_their_keys() -> None:
    """Entries are numbered and chained on the head; they name their event, its work queue, and a proposal's first decision."""
    core = Core(document())
    core.fact("order.status", "delivered")
    approval = core.propose([core.fact("order.status", "delivered", subject="order/2")], subject="order/2", trace_id="t2")
    started = core.start(approval)
    proposal = core.proposal([core.events[3]])
    decided = planned(core, proposal, core.report_command(started, SUCCESS), core.proposal(trace_id="t3"), fact(core))
    first = core.state.head - len(decided.entries) + 1
    assert list(range(first, first + 6)) == [entry.sequence_number for entry in decided.entries]
    assert [envelope.event_id for envelope in decided.envelopes] == [entry.event_id for entry in decided.entries]
    assert [envelope.trace_id for envelope in decided.envelopes] == decided.trace_ids
    assert ["", "decisions", "executions", "", "", ""] == [entry.work for entry in decided.entries]
    assert [first + 1, 0, 0, first + 4, 0, 0] == [entry.decision_sequence_number for entry in decided.entries]
    chain_hash = decided.expected_head.chain_hash
    for entry in decided.entries:
        chain_hash = chain(chain_hash, entry.envelope)
        assert chain_hash == entry.chain_hash
    assert Head(first + 5, chain_hash) == decided.head


def test_engine_disagreements_are_counted_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine disagreement is counted in the metrics and logged as an alarm; an approval is not."""
    core = Core(document(conflict_key="string(params.amount)"))
    status = core.fact("order.status", "delivered")
    match = Network.match
    calls = 0

    def wrong_at_last(network: Network, text: str) -> list[int]:
        nonlocal calls
        calls += 1
        return match(network, text) if calls == 1 else []

    monkeypatch.setattr(Network, "match", wrong_at_last)
    decided = planned(core, *(core.proposal([status], amount=amount, trace_id=f"t{amount}") for amount in (1, 2)))
    labels = {"bus": "alarmed", "reason": reason_codes.ENGINE_DISAGREEMENT}
    with capture_logs() as logs:
        metrics.count_committed("alarmed", len(decided.envelopes), decided.alarm_candidates)
    assert 1.0 == REGISTRY.get_sample_value("gavel_decision_alarms_total", labels)
    assert float(len(decided.envelopes)) == REGISTRY.get_sample_value("gavel_events_total", {"bus": "alarmed"})
    assert [decided.answers[1][1].envelope.event_id] == [line["decision_id"] for line in logs]  # type: ignore[union-attr]  # a decision's


def test_events_that_counters_cannot_count_are_counted_and_logged() -> None:
    """An approval that a counter cannot count, and a report that cannot settle one, are counted in the metrics and logged, without their
    contents.
    """
    never = {"id": "never", "when": "history.spent() < 0.0", "effect": "reject", "reason_code": "NEVER"}
    text = document(rules=[never, *RULES], gavel="v2")
    counter = {"of": "approvals", "action": ACTION, "sum": "params.amount", "window_ms": 60_000, "keep": "reserved"}
    core = Core(json.dumps({**json.loads(text), "counters": {"spent": {**counter, "settle": "double(execution.result.refunded)"}}}))
    started = core.start(core.propose([core.fact("order.status", "delivered")]))
    status = core.fact("order.status", "delivered", subject="order/2")
    decided = planned(
        core, core.proposal([status], amount=2.0**53, subject="order/2", trace_id="t2"), core.report_command(started, SUCCESS), fact(core)
    )
    approval, report = decided.envelopes[1:3]
    with capture_logs() as logs:
        metrics.count_committed("uncounted", 4, decided.alarm_candidates, decided.lease_lapses, decided.uncounted_events)
    common = {"event": "counter.event_not_counted", "log_level": "warning", "bus": "uncounted", "policy_id": "refunds", "counter": "spent"}
    until = timestamp(core.now_ms + 60_000).ToJsonString()
    assert [
        {**common, "sequence_number": approval.sequence_number, "until": "the decision ends"},
        {**common, "sequence_number": report.sequence_number, "until": until},
    ] == logs
    labels = {"bus": "uncounted", "policy_id": "refunds", "counter": "spent"}
    assert 2.0 == REGISTRY.get_sample_value("gavel_events_not_counted_total", labels)
    assert ("", True) == (approval.decision.reason_code, report.HasField("execution"))


def test_refused_command_appends_nothing() -> None:
    """A command that gets a Fault appends nothing and is answered with an error; the other commands of the batch are decided."""
    core = Core(document())
    ahead = fact(core, occurred_at_ms=core.now_ms + 10_000)
    decided = planned(core, fact(core), ahead, fact(core))
    assert 2 == len(decided.entries)
    outcomes = [result_of(decided, answer) for _, answer in decided.answers]
    error = outcomes[1]
    assert isinstance(error, ServiceError)
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == error.reason
    records = [completed.record for completed in outcomes if isinstance(completed, CommittedAnswer)]
    assert decided.entries[0].envelope == cast(Any, records[0]).envelope
    assert decided.entries[1].chain_hash == cast(Any, records[1]).chain_hash


def test_failed_command_is_undone() -> None:
    """A command that fails in the decider is undone, timers included, and answered INTERNAL with an id; the next one is decided."""
    core = Core(document())
    core.approve()
    core.pass_time(10_000)
    strange = PublishEvent(Envelope())  # no payload: admission would have refused it
    decided = planned(core, strange, fact(core))
    (_, broken), (_, fine) = decided.answers
    assert isinstance(broken, Fault)
    assert error_pb2.ERROR_REASON_INTERNAL == broken.reason
    assert isinstance(fine, EventAnswer)
    assert ["DecisionExpired", "FactRecorded"] == [envelope.event_name for envelope in decided.envelopes]


def test_broken_engine_fails_one_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposal on which an engine breaks is answered INTERNAL and undone; the other proposals of the batch are decided."""
    core = Core(document(conflict_key="string(params.amount)"))
    status = core.fact("order.status", "delivered")
    match = Network.match
    calls = 0

    def broken(network: Network, text: str) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise NetworkFaultError("the engine is gone")
        return match(network, text)

    monkeypatch.setattr(Network, "match", broken)
    decided = planned(core, *(core.proposal([status], amount=amount, trace_id=f"t{amount}") for amount in (1, 2, 3)))
    answers = [answer for _, answer in decided.answers]
    assert [EventAnswer, Fault, EventAnswer] == [type(answer) for answer in answers]
    assert error_pb2.ERROR_REASON_INTERNAL == cast(Fault, answers[1]).reason
    approved = [answer.envelope.decision.outcome for answer in answers if isinstance(answer, EventAnswer)]
    assert [decision_pb2.OUTCOME_APPROVED] * 2 == approved


@pytest.mark.parametrize("alone", [True, False])
def test_failed_close_is_logged_without_its_payload(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """A contest that closes on a bug enters review; the line has the type and the place of the error, and no part of the payload."""
    core = Core(document(contest_window_ms=1_000))
    pending_batch = core.enter([core.fact("order.status", "delivered")])

    def broken(network: Network, text: str) -> list[int]:
        raise ValueError(f"a secret: {text}")

    monkeypatch.setattr(Network, "match", broken)
    core.pass_time(1_000)
    with capture_logs() as lines:
        decided = planned(core, *([] if alone else [fact(core)]))
    assert ["HumanReviewRequested"] == [envelope.event_name for envelope in decided.envelopes][:1]
    assert "NOT_JUDGED" == decided.envelopes[0].decision.reason_code
    (line,) = lines
    assert ("judgement.failed", "error", pending_batch.event_id, "ValueError") == tuple(
        line[name] for name in ("event", "log_level", "proposal_id", "error")
    )
    assert line["where"]
    assert "secret" not in str(lines)


def test_event_caused_by_a_refused_event_is_refused() -> None:
    """An event whose cause stands earlier in the batch is recorded only if the cause was."""
    core = Core(document())
    cause, effect = fact(core, occurred_at_ms=core.now_ms + 10_000), fact(core)
    good_cause, good_effect = fact(core), fact(core)
    batch = [
        pending(core, command, named_in_batch)
        for command, named_in_batch in (
            (cause, []),
            (effect, [cause.envelope.event_id]),
            (good_cause, []),
            (good_effect, [good_cause.envelope.event_id]),
        )
    ]
    decided = planned_batch(core, batch)
    answers = [answer for _, answer in decided.answers]
    assert [True, True, False, False] == [isinstance(answer, Fault) for answer in answers]
    assert error_pb2.ERROR_REASON_EVENT_NOT_FOUND == cast(Fault, answers[1]).reason


def test_empty_batch_emits_due_timers() -> None:
    """An empty batch emits due timers, at most TIMERS_PER_COMMIT."""
    core = Core(document(conflict_key="string(params.amount)"))
    status = core.fact("order.status", "delivered")
    for number in range(TIMERS_PER_COMMIT + 1):
        core.propose([status], amount=number + 1, trace_id=f"t{number}")
    core.pass_time(10_000)
    decided = planned(core)
    assert (TIMERS_PER_COMMIT, 1) == (len(decided.entries), core.state.due_count(core.now_ms))


def test_undoing_a_batch_restores_the_state() -> None:
    """A batch whose append failed is undone to its mark, and its commands can be decided again."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    commands: list[Command] = [fact(core), core.proposal([status]), fact(core)]
    digest = core.state.digest()
    first = planned(core, *commands)
    core.state.undo(first.mark)
    assert digest == core.state.digest()
    second = planned(core, *commands)
    assert [entry.envelope for entry in first.entries] == [entry.envelope for entry in second.entries]


# References within a batch


def test_a_proposal_may_cite_an_event_of_its_own_batch() -> None:
    """A proposal may cite an event of its own batch, and a replay makes the same decision."""
    core = Core(document())
    status = fact(core)
    status.envelope.sequence_number = core.state.head + 1
    reference = references_to([status.envelope])
    status.envelope.ClearField("sequence_number")
    proposal = SubmitProposal(ProposalView(core.admit(proposal_envelope(references=reference))))
    decided = planned(core, status, proposal)
    decision = decided.envelopes[-1].decision
    assert (decision_pb2.OUTCOME_APPROVED, "") == (decision.outcome, decision.reason_code)


def test_citation_within_a_batch_is_checked() -> None:
    """A citation of the same batch needs the right number and event_id, and must name an earlier fact or observation."""
    core = Core(document())
    core.fact("order.status", "delivered")
    number = core.state.head + 1
    for wrong_id, wrong_number in ((event_id(900), number), (event_id(901), number + 1), (event_id(902), number + 9)):
        proposal = core.proposal(references=[EventReference(event_id=wrong_id, sequence_number=wrong_number)])
        mark = core.state.mark()
        decided = planned(core, fact(core), proposal)
        assert reason_codes.UNKNOWN_EVENT == decided.envelopes[-1].decision.reason_code
        core.state.undo(mark)


def test_start_in_the_batch_of_the_expiry_is_refused() -> None:
    """A start in the batch in which its approval expires is refused as expired, whichever command emitted the timer."""
    core = Core(document())
    approval = core.approve()
    core.pass_time(10_000)
    decided = planned(core, fact(core), BeginExecution(approval.event_id, EXECUTOR, 1_000))
    assert reason_codes.EXPIRED == cast(Any, decided.answers[1][1]).reason_code
