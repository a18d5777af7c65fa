"""The kinds of events: categories and their payloads, event names, keys of system facts, and names of producers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import common_pb2, decision_pb2, execution_pb2
from gavel.v1.common_pb2 import EventCategory, ProducerType
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus

SCHEMA_VERSION: Final = "gavel.v1"
GAVEL: Final = "gavel"
FACT_DERIVATION_REACTOR: Final = "fact-derivation-reactor"

FACT: Final = common_pb2.EVENT_CATEGORY_FACT_EVENT
PROPOSAL: Final = common_pb2.EVENT_CATEGORY_PROPOSAL_EVENT
DECISION: Final = common_pb2.EVENT_CATEGORY_DECISION_EVENT
EXECUTION: Final = common_pb2.EVENT_CATEGORY_EXECUTION_EVENT
OBSERVATION: Final = common_pb2.EVENT_CATEGORY_OBSERVATION_EVENT
TOOL_CALL: Final = common_pb2.EVENT_CATEGORY_TOOL_CALL_EVENT
TOOL_RESULT: Final = common_pb2.EVENT_CATEGORY_TOOL_RESULT_EVENT
AGENT_DIAGNOSTIC: Final = common_pb2.EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT

# Bound once, like the categories: docs/performance.md#module-constants.
OUTCOME_APPROVED: Final = decision_pb2.OUTCOME_APPROVED
OUTCOME_REJECTED: Final = decision_pb2.OUTCOME_REJECTED
OUTCOME_NEEDS_HUMAN_REVIEW: Final = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW

CATEGORY_OF_PAYLOAD: Final[Mapping[str, EventCategory.ValueType]] = {
    "fact": FACT,
    "proposal": PROPOSAL,
    "decision": DECISION,
    "execution": EXECUTION,
    "observation": OBSERVATION,
    "tool_call": TOOL_CALL,
    "tool_result": TOOL_RESULT,
    "agent_diagnostic": AGENT_DIAGNOSTIC,
}
PAYLOAD_OF_CATEGORY: Final[Mapping[EventCategory.ValueType, str]] = {category: payload for payload, category in CATEGORY_OF_PAYLOAD.items()}

# The name of an event if its producer sets none. Decisions are named by outcome, executions by status.
EVENT_NAME_DEFAULT: Final[Mapping[str, str]] = {
    "fact": "FactRecorded",
    "proposal": "ProposalSubmitted",
    "observation": "ObservationRecorded",
    "tool_call": "ToolCalled",
    "tool_result": "ToolReturned",
    "agent_diagnostic": "DiagnosticRecorded",
}
DECISION_NAME: Final[Mapping[Outcome.ValueType, str]] = {
    OUTCOME_APPROVED: "DecisionApproved",
    OUTCOME_REJECTED: "DecisionRejected",
    OUTCOME_NEEDS_HUMAN_REVIEW: "HumanReviewRequested",
    decision_pb2.OUTCOME_EXPIRED: "DecisionExpired",
    decision_pb2.OUTCOME_REVOKED: "DecisionRevoked",
}
EXECUTION_NAME: Final[Mapping[ExecutionStatus.ValueType, str]] = {
    execution_pb2.EXECUTION_STATUS_STARTED: "ExecutionStarted",
    execution_pb2.EXECUTION_STATUS_SUCCESS: "ExecutionSucceeded",
    execution_pb2.EXECUTION_STATUS_FAILED: "ExecutionFailed",
    execution_pb2.EXECUTION_STATUS_PARTIAL: "ExecutionPartiallySucceeded",
    execution_pb2.EXECUTION_STATUS_TIMEOUT: "ExecutionTimedOut",
    execution_pb2.EXECUTION_STATUS_ABORTED: "ExecutionAborted",
}
EXECUTION_RENEWED: Final = "ExecutionRenewed"
# The kind of diagnostic with which agents record the calls of language models.
LLM_INVOCATION_COMMITTED: Final = "LlmInvocationCommitted"

# Facts about Gavel itself: event name -> fact key.
SYSTEM_FACT_KEY: Final[Mapping[str, str]] = {
    "BusOpened": "gavel.bus_opened",
    "ArbiterVersionChanged": "gavel.arbiter_version_changed",
    "CrossCheckChanged": "gavel.cross_check_changed",
    "ClockAccepted": "gavel.clock_accepted",
    "DataLossAccepted": "gavel.data_loss_accepted",
    "RuleSetDeployed": "gavel.rule_set_deployed",
    "RuleSetActivated": "gavel.rule_set_activated",
    "RuleSetDeactivated": "gavel.rule_set_deactivated",
    "CountersOpened": "gavel.counters_opened",
    "CounterFilled": "gavel.counter_filled",
    "GrantsDeployed": "gavel.grants_deployed",
    "ReviewResolved": "gavel.review_resolved",
    "ReviewVoted": "gavel.review_voted",
    "RevocationRequested": "gavel.revocation_requested",
    "ToolContractRegistered": "gavel.tool_contract_registered",
    "ToolProviderRegistered": "gavel.tool_provider_registered",
    "ToolBound": "gavel.tool_bound",
    "ToolUnbound": "gavel.tool_unbound",
}


# By type of producer, without the prefix: "AGENT".
PRODUCER_TYPE_NAMES: Final[Mapping[ProducerType.ValueType, str]] = {
    number: name.removeprefix("PRODUCER_TYPE_") for name, number in ProducerType.items()
}


def producer_name(producer_type: int, producer_id: str) -> str:
    """Return the name of a producer: its type and id, e.g. "4 support-agent". All versions of a producer have the same name."""
    return f"{producer_type} {producer_id}"


def fact_keys(envelope: Envelope) -> tuple[str, ...]:
    """Return the fact keys that a FACT or OBSERVATION states; none for other events."""
    match envelope.WhichOneof("payload"):
        case "fact":
            return (envelope.fact.key,)
        case "observation":
            return tuple(sorted(envelope.observation.extracted_fields))
    return ()


def execution_status_key(action_type: str) -> str:
    """Return the key of the derived facts that say how executions of an action ended."""
    return f"execution.{action_type}.status"
