"""What every event has in common: categories, names, who may publish what, derived identifiers, times.

Identifiers of events that Gavel itself makes are hashes of their causes, so a replay makes the same ones. Times are whole
milliseconds everywhere in the core; the contract's Timestamps are converted at its edge, rounding down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from gavel.v1 import common_pb2, decision_pb2, execution_pb2
from gavel.v1.common_pb2 import EventCategory, Producer, ProducerType
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from google.protobuf.timestamp_pb2 import Timestamp

# The semantics of this core. Any change that alters an outcome or an emitted event raises it.
ARBITER_VERSION: Final = 2
SCHEMA_VERSION: Final = "gavel.v1"
GAVEL: Final = "gavel"
# The last millisecond that a Timestamp can name: 9999-12-31T23:59:59.999Z.
TIME_MS_MAX: Final = 253_402_300_799_999
# Everything in a batch is decided at one time: of so many times, and buses, what is alike in all their decisions is kept made.
MOMENTS_KEPT_MAX: Final = 16
FACT_DERIVATION_REACTOR: Final = "fact-derivation-reactor"

FACT: Final = common_pb2.EVENT_CATEGORY_FACT_EVENT
PROPOSAL: Final = common_pb2.EVENT_CATEGORY_PROPOSAL_EVENT
DECISION: Final = common_pb2.EVENT_CATEGORY_DECISION_EVENT
EXECUTION: Final = common_pb2.EVENT_CATEGORY_EXECUTION_EVENT
OBSERVATION: Final = common_pb2.EVENT_CATEGORY_OBSERVATION_EVENT
TOOL_CALL: Final = common_pb2.EVENT_CATEGORY_TOOL_CALL_EVENT
TOOL_RESULT: Final = common_pb2.EVENT_CATEGORY_TOOL_RESULT_EVENT
AGENT_DIAGNOSTIC: Final = common_pb2.EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT

# Of decisions. Under names of this module, as the categories: compiled, those of another one are looked up at every use.
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

_SENSES: Final = frozenset({FACT})
# Who may publish what (seeds 002 §4.9). Checked on every append and by every replay.
CATEGORIES_OF_PRODUCER: Final[Mapping[ProducerType.ValueType, frozenset[EventCategory.ValueType]]] = {
    common_pb2.PRODUCER_TYPE_SENSOR: _SENSES,
    common_pb2.PRODUCER_TYPE_API: _SENSES,
    common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT: _SENSES,
    common_pb2.PRODUCER_TYPE_AGENT: frozenset({PROPOSAL, OBSERVATION, TOOL_CALL, TOOL_RESULT, AGENT_DIAGNOSTIC}),
    common_pb2.PRODUCER_TYPE_ARBITRATOR: frozenset({DECISION}),
    common_pb2.PRODUCER_TYPE_EXECUTOR: frozenset({EXECUTION}),
    common_pb2.PRODUCER_TYPE_SYSTEM: frozenset({FACT, AGENT_DIAGNOSTIC}),
}

# The name of an event whose producer gave none. Decisions and executions are named by what they say.
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

# Facts about Gavel itself: the name of the event and the key of the fact.
SYSTEM_FACT_KEY: Final[Mapping[str, str]] = {
    "BusOpened": "gavel.bus_opened",
    "CrossCheckChanged": "gavel.cross_check_changed",
    "RuleSetDeployed": "gavel.rule_set_deployed",
    "RuleSetActivated": "gavel.rule_set_activated",
    "RuleSetDeactivated": "gavel.rule_set_deactivated",
    "ReviewResolved": "gavel.review_resolved",
    "RevocationRequested": "gavel.revocation_requested",
}

# Their version is the semantics, not the build: a replay by another build of the same semantics makes the same producer.
ARBITRATOR_PRODUCER: Final = Producer(type=common_pb2.PRODUCER_TYPE_ARBITRATOR, id=GAVEL, version=str(ARBITER_VERSION))
SYSTEM_PRODUCER: Final = Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id=GAVEL, version=str(ARBITER_VERSION))


# The digit that holds the variant: its upper two bits become 10.
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_sha256: Final = hashlib.sha256
# Every hex digit as a zero, so that a UUID is told by one comparison.
_DIGITS_AS_ZERO: Final = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_UUID_SHAPE: Final = b"00000000-0000-0000-0000-000000000000"


def derived_event_id(cause_event_id: str, cause_sequence_number: int, kind: str, ordinal: int = 0) -> str:
    """Return the UUIDv8 of an event that Gavel makes: a SHA-256 of what caused it, its kind and its ordinal."""
    digest = _sha256(f"{cause_event_id}\n{cause_sequence_number}\n{kind}\n{ordinal}".encode()).hexdigest()
    # RFC 9562 §5.8: version 8 in bits 48..51, variant 10 in bits 64..65.
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{_VARIANT[digest[16]]}{digest[17:20]}-{digest[20:32]}"


def execution_id_of(decision_id: str, attempt: int) -> str:
    """Return the id of an attempt: "exec_" and 12 hex digits of SHA-256(decision_id, attempt) (seeds 001)."""
    return "exec_" + _sha256(f"{decision_id}\n{attempt}".encode()).hexdigest()[:12]


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID in canonical form, of any version: lower-case hex digits, 8-4-4-4-12."""
    return len(text) == len(_UUID_SHAPE) and text.isascii() and text.encode().translate(_DIGITS_AS_ZERO) == _UUID_SHAPE


def uuid_problem(text: str) -> str:
    """Return what is wrong with a producer's event_id, or "". Canonical lower-case form; version 8 is Gavel's own."""
    if not is_uuid(text) or text[14] not in "12345678" or text[19] not in "89ab":
        return "is not a UUID in canonical form: RFC 9562, lower case, with hyphens"
    if text[14] == "8":
        return "is a UUIDv8, which is reserved for events that Gavel makes"
    return ""


def milliseconds(timestamp: Timestamp) -> int:
    """Return a Timestamp as whole milliseconds since the epoch, rounded down."""
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def timestamp(at_ms: int) -> Timestamp:
    """Return milliseconds since the epoch as a Timestamp."""
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * 1_000_000)


def set_timestamp(target: Timestamp, at_ms: int) -> None:
    """Write milliseconds since the epoch into a Timestamp field in place."""
    target.seconds = at_ms // 1000
    target.nanos = at_ms % 1000 * 1_000_000


def fact_keys(envelope: Envelope) -> tuple[str, ...]:
    """Return the fact keys that a FACT or OBSERVATION speaks of; none for other events."""
    match envelope.WhichOneof("payload"):
        case "fact":
            return (envelope.fact.key,)
        case "observation":
            return tuple(sorted(envelope.observation.extracted_fields))
    return ()
