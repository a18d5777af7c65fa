"""Drift: recorded versions compared with those of now (constitution 000).

Four comparisons, each with a code of its own. A decision and a start warn of drift unless every rule set of the action says
`on_version_mismatch: ignore`; reads, replay and audits show it always.

| code | recorded | now |
| --- | --- | --- |
| SCHEMA_DRIFT | the schema hashes of a tool's calls and results | those of the registered contract |
| MODEL_DRIFT | the model asked for; the answer to a prompt | the model that answered; the last answer to an equal prompt |
| EXECUTION_VERSION_MISMATCH | the versions that a trace is bound to | those that a later event of the trace names |
| RULE_SET_DRIFT | the rule sets that a decision consulted | the active ones of its action |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.decision_pb2 import Warning as DecisionWarning
from gavel.v1.drift_pb2 import Drift

from gavel_rules import reason_codes
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.state.state import State
from gavel_rules.state.versions import ModelAnswer, ToolSchemas, TraceVersions, VersionMismatch

SCHEMA_DRIFT: Final = "SCHEMA_DRIFT"
MODEL_DRIFT: Final = "MODEL_DRIFT"
EXECUTION_VERSION_MISMATCH: Final = reason_codes.EXECUTION_VERSION_MISMATCH
RULE_SET_DRIFT: Final = "RULE_SET_DRIFT"

# Digits of a hash in a message.
_DIGITS: Final = len("sha256:") + 12


def trace_drifts(state: State, versions: TraceVersions) -> list[Drift]:
    """Return the drift of what the events of a trace name."""
    return [
        *schema_drifts(state, versions.tools),
        *model_drifts(state, versions.answers),
        *[mismatch_drift(mismatch) for mismatch in versions.mismatches],
    ]


def schema_drifts(state: State, tools: Iterable[ToolSchemas]) -> list[Drift]:
    """Return a drift for every schema that differs from that of the registered contract. Tools without a contract have none."""
    drifts = []
    for tool in tools:
        registered = state.tools.contracts.get(tool.tool_name)
        if registered is None:
            continue
        for what, recorded, current in (
            ("argument", tool.request_schema_hash, registered.argument_schema_hash),
            ("result", tool.response_schema_hash, registered.result_schema_hash),
        ):
            if recorded and not _is_same_schema(recorded, current):
                version = f" in version {tool.tool_version}" if tool.tool_version else ""
                message = (
                    f"the {what} schema of {tool.tool_name} was {recorded[:_DIGITS]}{version}, and is {current[:_DIGITS]} in version "
                    f"{registered.contract.version}"
                )
                drifts.append(
                    Drift(
                        code=SCHEMA_DRIFT,
                        name=tool.tool_name,
                        recorded=recorded,
                        current=current,
                        recorded_sequence_number=tool.sequence_number,
                        current_sequence_number=registered.sequence_number,
                        message=message,
                    )
                )
    return drifts


def model_drifts(state: State, answers: Iterable[ModelAnswer]) -> list[Drift]:
    """Return a drift for every answer by another model than the requested one, and for every prompt whose last answer differs from this
    one.
    """
    drifts = []
    for answer in answers:
        number = answer.sequence_number
        model = f"{answer.llm_provider} {answer.llm_model}"
        if answer.requested_model and answer.requested_model != answer.llm_model:
            message = f"{model} answered instead of {answer.requested_model}"
            drifts.append(_model_drift(answer.requested_model, answer.llm_model, answer, number, message))
        last = state.answers.get(answer.prompt_hash)
        if last is None or last.sequence_number <= number:
            continue
        prompt = f"the prompt {answer.prompt_hash[:_DIGITS]}"
        last_model = f"{last.llm_provider} {last.llm_model}"
        if last_model != model:
            message = f"{model} answered {prompt}; the last answer is by {last_model}"
            drifts.append(_model_drift(model, last_model, answer, last.sequence_number, message))
        elif last.output_hash and answer.output_hash and last.output_hash != answer.output_hash:
            message = f"{model} answered {prompt} differently the last time"
            drifts.append(_model_drift(answer.output_hash, last.output_hash, answer, last.sequence_number, message))
    return drifts


def mismatch_drift(mismatch: VersionMismatch) -> Drift:
    """Return the drift of an event that names another version than its trace is bound to."""
    bound = mismatch.bound
    return Drift(
        code=EXECUTION_VERSION_MISMATCH,
        name=bound.field,
        recorded=bound.version,
        current=mismatch.version,
        recorded_sequence_number=bound.sequence_number,
        current_sequence_number=mismatch.sequence_number,
        message=f"{bound.field} is {mismatch.version}; the trace is bound to {bound.version}",
    )


def rule_set_drifts(state: State, decision: Decision, sequence_number: int) -> list[Drift]:
    """Return a drift for every rule set that decided and no longer governs the action, or that governs it now and did not."""
    recorded = {reference.policy_id: reference.version for reference in decision.active_rule_sets}
    active = {action.policy_id: action.version for action in state.active_actions.get(decision.action_type, ())}
    drifts = []
    for policy_id in sorted(recorded.keys() | active.keys()):
        before, now = recorded.get(policy_id), active.get(policy_id)
        if before == now:
            continue
        if before is None:
            message = f"{policy_id} version {now} governs {decision.action_type}, and did not when it was decided"
        else:
            what = "no version of it governs the action" if now is None else f"version {now} is active"
            message = f"{policy_id} version {before} decided {decision.action_type}; now {what}"
        current = state.active_rule_sets.get(policy_id)
        drifts.append(
            Drift(
                code=RULE_SET_DRIFT,
                name=policy_id,
                recorded="" if before is None else str(before),
                current="" if now is None else str(now),
                recorded_sequence_number=sequence_number,
                current_sequence_number=0 if current is None else current.sequence_number,
                message=message,
            )
        )
    return drifts


def refuses(action: CompiledAction, mismatches: Iterable[VersionMismatch]) -> bool:
    """Return whether a rule set refuses versions that differ from those of the trace.

    It does not refuse the versions that it lists as accepted.
    """
    if action.on_drift != "fail":
        return False
    accepted = dict(action.required_versions)
    return any(mismatch.version not in accepted.get(mismatch.bound.field, ()) for mismatch in mismatches)


def warn_of_drift(warnings: list[DecisionWarning], drifts: Iterable[Drift]) -> None:
    """Add a warning for each drift that is not among the warnings yet."""
    known = {(warning.code, warning.message) for warning in warnings}
    for drift in drifts:
        if (drift.code, drift.message) not in known:
            known.add((drift.code, drift.message))
            warnings.append(DecisionWarning(code=drift.code, message=drift.message))


def _model_drift(recorded: str, current: str, answer: ModelAnswer, current_number: int, message: str) -> Drift:
    return Drift(
        code=MODEL_DRIFT,
        name=answer.requested_model or answer.llm_model,
        recorded=recorded,
        current=current,
        recorded_sequence_number=answer.sequence_number,
        current_sequence_number=current_number,
        message=message,
    )


def _is_same_schema(recorded: str, current: str) -> bool:
    """Return whether two hashes of a schema are equal. A recorded one may have half of the digits."""
    return current.startswith(recorded)
