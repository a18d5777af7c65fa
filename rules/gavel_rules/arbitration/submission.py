"""A proposal's submission: join its contest, enter one, or record the first decision."""

from __future__ import annotations

from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.decision_pb2 import Decision, Engine
from gavel.v1.diagnostic_pb2 import ShadowDifference

from gavel_rules.arbitration import contest, shadow
from gavel_rules.arbitration.evaluation import evaluator
from gavel_rules.arbitration.first_decision import record_first
from gavel_rules.arbitration.pipeline import arbitrate
from gavel_rules.commands import ContestEntry, EventAnswer, Fault, References, SubmitProposal
from gavel_rules.recorder import Recorder

# Bound once: docs/performance.md#module-constants
_has_field: Final = Decision.HasField


def submit(
    recorder: Recorder, command: SubmitProposal, references: References, engine: Engine.ValueType
) -> EventAnswer | ContestEntry | Fault:
    """Record a proposal and its first decision, or record that it waits for a contest."""
    envelope = command.envelope
    state = recorder.state
    proposal = command.proposal
    proposal.attest(recorder.attestation)
    fault = version_fault(proposal.projection_version, state.head) or recorder.clock_fault(envelope)
    if fault is not None:
        return fault
    if state.open_proposals:  # between commands, only the candidates of contests are open
        waiting = contest.find_entry(state, envelope, recorder.attestation)
        if waiting is not None:
            return waiting
    answer = recorder.new_decision()
    decision = answer.decision
    evaluate = evaluator(state, state.head + 2, engine)
    arbitrate(state, proposal, references.cited_events, recorder.now_ms, evaluate, empty_decision=decision)
    if _has_field(decision, "contest"):
        return contest.enter(recorder, envelope, decision, references.cited_events)
    differences: list[ShadowDifference] = []
    if state.shadows_by_action:
        differences = shadow.find_differences(state, proposal, references.cited_events, recorder.now_ms, evaluate, decision)
    return EventAnswer(record_first(recorder, answer, recorder.record_proposal(proposal), differences))


def version_fault(projection_version: int | None, head: int) -> Fault | None:
    """Return a fault if a proposal rests on a state that the log has not reached."""
    if projection_version is None or projection_version <= head:
        return None
    message = f"projection_version {projection_version} is ahead of the log, whose head is {head}"
    return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, message, (("envelope.proposal.projection_version", message),))
