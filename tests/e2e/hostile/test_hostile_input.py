"""Hostile requests to a real server: each is refused with its code and is not recorded.

The services' own tests go through every field. Here every call that may write meets the same few kinds of bad input.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import grpc
import pytest
from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import common_pb2, decision_pb2, execution_pb2
from gavel.v1 import event_service_pb2 as events
from gavel.v1 import execution_service_pb2 as executions
from gavel.v1 import rule_set_service_pb2 as rule_sets
from gavel.v1 import tool_service_pb2 as tools
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel.v1.execution_pb2 import Execution
from gavel.v1.fact_pb2 import BusOpened, RuleSetActivated
from gavel_client import GavelError, SyncGavelClient, execution_envelope, fact_envelope
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value

from tests.e2e.world import AGENT, COURIER, DEPOT, POLICY, Server, proposal, rule_set

UNKNOWN_ID = "0198c5a0-0000-7000-8000-000000000001"
RESERVED_ID = "0198c5a0-0000-8000-8000-000000000001"
EXECUTION_ID = "exec_0123456789ab"
MIB = 1024 * 1024
TRANSPORT_BYTES_MAX = 16 * MIB
CALL_SECONDS_MAX = 30.0

ARBITRATOR = Producer(type=common_pb2.PRODUCER_TYPE_ARBITRATOR, id="gavel")
SYSTEM = Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="operator")
REACTOR = Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="fact-derivation-reactor")

SUBMIT, SUBMIT_BATCH = "ArbitrationService/SubmitProposal", "ArbitrationService/BatchSubmitProposals"
PUBLISH, PUBLISH_BATCH = "EventService/PublishEvent", "EventService/BatchPublishEvents"
BEGIN, RENEW, REPORT = (f"ExecutionService/{name}Execution" for name in ("Begin", "Renew", "Report"))
VALIDATE = "RuleSetService/ValidateRuleSet"
DEPLOY, ACTIVATE, DEACTIVATE = (f"RuleSetService/{name}RuleSet" for name in ("Deploy", "Activate", "Deactivate"))
# Every call that writes, with its request.
WRITES: dict[str, type[Message]] = {
    SUBMIT: arbitration.SubmitProposalRequest,
    SUBMIT_BATCH: arbitration.BatchSubmitProposalsRequest,
    "ArbitrationService/ResolveReview": arbitration.ResolveReviewRequest,
    "ArbitrationService/RevokeDecision": arbitration.RevokeDecisionRequest,
    "EventService/AcceptClock": events.AcceptClockRequest,
    "EventService/AcceptLoss": events.AcceptLossRequest,
    PUBLISH: events.PublishEventRequest,
    PUBLISH_BATCH: events.BatchPublishEventsRequest,
    BEGIN: executions.BeginExecutionRequest,
    RENEW: executions.RenewExecutionRequest,
    REPORT: executions.ReportExecutionRequest,
    DEPLOY: rule_sets.DeployRuleSetRequest,
    ACTIVATE: rule_sets.ActivateRuleSetRequest,
    DEACTIVATE: rule_sets.DeactivateRuleSetRequest,
}
REGISTRY: dict[str, type[Message]] = {
    "ToolService/RegisterContract": tools.RegisterContractRequest,
    "ToolService/RegisterProvider": tools.RegisterProviderRequest,
    "ToolService/BindTool": tools.BindToolRequest,
    "ToolService/UnbindTool": tools.UnbindToolRequest,
}
# The calls that take an envelope, each with its batch call.
BATCH_OF = {SUBMIT: SUBMIT_BATCH, PUBLISH: PUBLISH_BATCH}


class Target(NamedTuple):
    """A server that is sent raw bytes, and a bus on it that must not grow."""

    channel: grpc.Channel
    client: SyncGavelClient
    bus: str
    approved: Envelope
    approval: Envelope

    def call(self, method: str, data: bytes) -> bytes:
        """Send bytes; return the answer's. Raises GavelError, which must carry what the contract promises of every error."""
        rpc: Any = self.channel.unary_unary(f"/gavel.v1.{method}")
        try:
            answer: bytes = rpc(data, timeout=CALL_SECONDS_MAX)
        except grpc.RpcError as rpc_error:
            error = GavelError.from_rpc_error(rpc_error)
            assert ErrorReason.Value(f"ERROR_REASON_{error.reason}")
            assert bool(error.violations) == error.reason.startswith("INVALID"), error
            raise error from rpc_error
        return answer

    def refuses(self, method: str, **fields: Any) -> str:
        """Return the code and reason with which a request is refused; "" as `bus` means the test's."""
        request = {**WRITES, **REGISTRY}[method](**{"bus": self.bus, **fields})
        with pytest.raises(GavelError) as refusal:
            self.call(method, request.SerializeToString())
        return f"{refusal.value.code.name} {refusal.value.reason}"

    def refuses_in_batch(self, method: str, envelope: Envelope) -> str:
        """Return the code and reason that an item of a batch is answered with."""
        response = arbitration.BatchSubmitProposalsResponse if method == SUBMIT_BATCH else events.BatchPublishEventsResponse
        request = WRITES[method](bus=self.bus, envelopes=[envelope])
        (result,) = response.FromString(self.call(method, request.SerializeToString())).results
        error = GavelError.from_status(result.error)
        return f"{error.code.name} {error.reason}"


@pytest.fixture(scope="module", params=[0, 1], ids=["front", "no-front"])
def opened(pair: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[Target]:
    """A bus with rules, a fact and an approved proposal, on a server with a front and on one without."""
    bus = f"hostile-{uuid.uuid4().hex[:12]}"
    with grpc.insecure_channel(pair[request.param].address) as channel, SyncGavelClient(channel, bus=bus) as client:
        client.deploy_rule_set(rule_set())
        client.activate_rule_set(POLICY, 1)
        approved = proposal(client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")).envelope)
        approval = client.submit_proposal(approved).decision
        assert decision_pb2.OUTCOME_APPROVED == approval.decision.outcome
        yield Target(channel, client, bus, approved, approval)


@pytest.fixture
def target(opened: Target) -> Iterator[Target]:
    """The bus. After the test it must be unchanged and the server must answer."""
    before = opened.client.get_status(include_projection_digest=True)
    yield opened
    after = opened.client.get_status(include_projection_digest=True)
    assert (before.head_sequence_number, before.head_chain_hash) == (after.head_sequence_number, after.head_chain_hash)
    assert (before.projection_digest, True) == (after.projection_digest, after.writable)


def proposal_with(**changes: Any) -> Envelope:
    """Return a proposal with changed payload fields; `envelope` changes fields of the envelope."""
    return _merge(proposal(Envelope(event_id=UNKNOWN_ID, sequence_number=1, subject="parcel/9")), changes)


def fact_with(**changes: Any) -> Envelope:
    """Return a fact of the depot with changed fields."""
    return _merge(fact_envelope("parcel/9", DEPOT, key="parcel.status", value="ready"), changes)


def report_with(**changes: Any) -> Envelope:
    """Return a report of an execution with changed fields."""
    execution = Execution(decision_id=UNKNOWN_ID, execution_id=EXECUTION_ID, status=execution_pb2.EXECUTION_STATUS_SUCCESS)
    return _merge(execution_envelope("parcel/9", COURIER, execution), changes)


def _merge(envelope: Envelope, changes: dict[str, Any]) -> Envelope:
    """Merge the changes; fields that hold messages are merged too."""
    payload = envelope.WhichOneof("payload")
    assert payload is not None
    of_envelope = changes.pop("envelope", {})
    getattr(envelope, payload).MergeFrom(type(getattr(envelope, payload))(**changes))
    envelope.MergeFrom(Envelope(**of_envelope))
    return envelope


def _citations(count: int) -> list[EventReference]:
    return [EventReference(event_id=UNKNOWN_ID, sequence_number=1)] * count


def _number(value: float) -> Struct:
    return Struct(fields={"weight": Value(number_value=value)})


def _nested(levels: int) -> Struct:
    struct = Struct()
    for _ in range(levels - 1):
        struct = Struct(fields={"deeper": Value(struct_value=struct)})
    return struct


INVALID = "INVALID_ARGUMENT INVALID_REQUEST"
WRONG_CATEGORY = "PERMISSION_DENIED CATEGORY_NOT_ALLOWED"
RESERVED_FIELD = "PERMISSION_DENIED FIELD_RESERVED"
WRONG_PRODUCER = "PERMISSION_DENIED PRODUCER_NOT_ALLOWED"
NO_EVENT = "NOT_FOUND EVENT_NOT_FOUND"
DERIVED: dict[str, Any] = {"decision_id": UNKNOWN_ID, "execution_id": EXECUTION_ID, "derivation_rule_id": "x", "derivation_rule_version": 1}

BAD_ENVELOPES = [
    pytest.param(SUBMIT, proposal_with(risk=math.nan), INVALID, id="nan"),
    pytest.param(SUBMIT, proposal_with(cost=math.inf), INVALID, id="infinite"),
    pytest.param(SUBMIT, proposal_with(params=_number(math.nan)), INVALID, id="nan-in-params"),
    pytest.param(SUBMIT, proposal_with(params=_number(2.0**53 + 2)), INVALID, id="integer-beyond-2-53"),
    pytest.param(SUBMIT, proposal_with(params=_nested(17)), INVALID, id="too-deep"),
    pytest.param(SUBMIT, proposal_with(params=Struct(fields={"we\0ight": Value(bool_value=True)})), INVALID, id="nul-in-a-name"),
    pytest.param(SUBMIT, proposal_with(expected_outcome="a\0b"), INVALID, id="nul-in-text"),
    pytest.param(SUBMIT, proposal_with(envelope={"subject": "parcel/9\0"}), INVALID, id="nul-in-subject"),
    pytest.param(SUBMIT, proposal_with(expected_outcome="x" * (64 * 1024 + 1)), INVALID, id="long-text"),
    pytest.param(
        SUBMIT, proposal_with(based_on_events=[EventReference(event_id=UNKNOWN_ID, sequence_number=1)] * 256), INVALID, id="257-cited"
    ),
    pytest.param(SUBMIT, proposal_with(projection_version=2**62), INVALID, id="projection-of-the-future"),
    pytest.param(SUBMIT, proposal_with(envelope={"event_id": RESERVED_ID}), INVALID, id="uuid-8"),
    pytest.param(SUBMIT, proposal_with(envelope={"sequence_number": 1}), INVALID, id="own-number"),
    pytest.param(SUBMIT, proposal_with(envelope={"event_category": 99}), INVALID, id="unknown-category"),
    pytest.param(SUBMIT, fact_with(), INVALID, id="fact-as-proposal"),
    pytest.param(SUBMIT, proposal_with(envelope={"producer": COURIER}, risk=math.nan), WRONG_CATEGORY, id="forged-before-malformed"),
    pytest.param(SUBMIT, proposal_with(envelope={"producer": ARBITRATOR}), WRONG_CATEGORY, id="as-arbitrator"),
    pytest.param(SUBMIT, proposal_with(envelope={"producer": Producer(id="gavel")}), WRONG_PRODUCER, id="as-gavel"),
    pytest.param(SUBMIT, proposal_with(envelope={"causation_id": UNKNOWN_ID}), NO_EVENT, id="unknown-cause"),
    pytest.param(PUBLISH, proposal_with(), INVALID, id="proposal"),
    pytest.param(PUBLISH, report_with(), INVALID, id="execution"),
    pytest.param(PUBLISH, Envelope(subject="parcel/9", producer=ARBITRATOR, decision=Decision()), WRONG_CATEGORY, id="decision"),
    pytest.param(PUBLISH, Envelope(subject="parcel/9", producer=AGENT, decision=Decision()), WRONG_CATEGORY, id="decision-of-an-agent"),
    pytest.param(PUBLISH, fact_with(envelope={"producer": AGENT}), WRONG_CATEGORY, id="fact-of-an-agent"),
    pytest.param(
        PUBLISH, fact_with(bus_opened=BusOpened(arbiter_version=9), envelope={"producer": SYSTEM}), RESERVED_FIELD, id="bus-opened"
    ),
    pytest.param(PUBLISH, fact_with(rule_set_activated=RuleSetActivated(policy_id=POLICY, version=1)), RESERVED_FIELD, id="activation"),
    pytest.param(PUBLISH, fact_with(**DERIVED), RESERVED_FIELD, id="derived-by-a-database"),
    pytest.param(PUBLISH, fact_with(**DERIVED, envelope={"producer": SYSTEM}), RESERVED_FIELD, id="derived-by-a-person"),
    pytest.param(PUBLISH, fact_with(envelope={"producer": REACTOR}), RESERVED_FIELD, id="reactor-without-derivation"),
    pytest.param(
        PUBLISH,
        fact_with(**DERIVED, envelope={"producer": REACTOR, "event_id": RESERVED_ID}),
        "FAILED_PRECONDITION DERIVATION_MISMATCH",
        id="derived-of-nothing",
    ),
    pytest.param(PUBLISH, fact_with(value=Value(number_value=math.nan)), INVALID, id="nan-value"),
    pytest.param(PUBLISH, fact_with(value=Value(string_value="\0")), INVALID, id="nul-value"),
    pytest.param(PUBLISH, fact_with(envelope={"event_id": RESERVED_ID}), INVALID, id="uuid-8-of-a-fact"),
    pytest.param(PUBLISH, fact_with(envelope={"causation_id": UNKNOWN_ID}), NO_EVENT, id="unknown-cause-of-a-fact"),
    pytest.param(REPORT, report_with(result=_number(math.inf)), INVALID, id="infinite-result"),
    pytest.param(REPORT, report_with(completed_steps=["a\0b"]), INVALID, id="nul-in-a-step"),
    pytest.param(REPORT, report_with(envelope={"event_id": RESERVED_ID}), INVALID, id="uuid-8-of-a-report"),
    pytest.param(REPORT, report_with(envelope={"producer": AGENT}), WRONG_CATEGORY, id="report-of-an-agent"),
    pytest.param(REPORT, report_with(), "NOT_FOUND DECISION_NOT_FOUND", id="report-of-nothing"),
    pytest.param(REPORT, fact_with(), INVALID, id="fact-as-report"),
]


@pytest.mark.parametrize(("method", "envelope", "expected"), BAD_ENVELOPES)
def test_bad_envelopes(target: Target, method: str, envelope: Envelope, expected: str) -> None:
    """An envelope that is malformed, forged or has dangling references gets its code, alone and in a batch."""
    assert expected == target.refuses(method, envelope=envelope)
    if method in BATCH_OF:
        assert expected == target.refuses_in_batch(BATCH_OF[method], envelope)


UNDECODABLE = {"tag": b"\xff\xff\xff\xff", "cut": b"\x12\xff\xff\xff\x7f", "json": b"{}", "surrogate": b"\x0a\x03\xed\xa0\x80"}


@pytest.mark.parametrize("method", WRITES)
def test_undecodable_requests(target: Target, method: str) -> None:
    """Bytes that are not a request, such as a lone surrogate, are INVALID_ARGUMENT for every write."""
    for name, data in UNDECODABLE.items():
        with pytest.raises(GavelError) as refusal:
            target.call(method, data)
        assert (name, grpc.StatusCode.INVALID_ARGUMENT, ["request"]) == (
            name,
            refusal.value.code,
            [violation.field for violation in refusal.value.violations],
        )


def test_surrogates_within_an_envelope(target: Target) -> None:
    """Text that is not UTF-8 is refused in every field."""
    for method, envelope in ((SUBMIT, proposal_with(expected_outcome="@@@")), (PUBLISH, fact_with(value=Value(string_value="@@@")))):
        data = WRITES[method](bus=target.bus, envelope=envelope).SerializeToString().replace(b"@@@", b"\xed\xa0\x80")
        with pytest.raises(GavelError) as refusal:
            target.call(method, data)
        assert grpc.StatusCode.INVALID_ARGUMENT == refusal.value.code


@pytest.mark.parametrize("method", WRITES)
def test_invalid_bus_names(target: Target, method: str) -> None:
    """Every write to an invalid bus name is refused."""
    for bus in ("Default", "a/b", "x" * 64, "a\0"):
        assert (bus, INVALID) == (bus, target.refuses(method, bus=bus))


BOMB = "a: &a [x, x, x, x, x]\n" + "".join(f"{name}: &{name} [*{of}, *{of}, *{of}, *{of}]\n" for of, name in pairwise("abcdefghijklmnop"))
GOVERNED = rule_set()
DOCUMENTS = [
    pytest.param("[" * 10_000, "too-deep", id="nested"),
    pytest.param('{"a":' * 10_000, "too-deep", id="nested-json"),
    pytest.param("- " * (MIB // 2 - 1), "too-deep", id="nested-in-a-line"),
    pytest.param(BOMB, "yaml-anchor", id="yaml-bomb"),
    pytest.param("- &a b\n" + "- *a\n" * 60_000, "document-too-long", id="aliases"),
    pytest.param('!!python/object/apply:os.system ["exit 1"]', "yaml-tag", id="python"),
    pytest.param(f"{GOVERNED}x: !!binary aGVsbG8=\n", "wrong-type", id="binary"),
    pytest.param(f"<<: {{gavel: v1}}\n{GOVERNED}", "unknown-key", id="merge"),
    pytest.param(f"{GOVERNED}x: a\0b\n", "bad-character", id="nul"),
    pytest.param(f'{GOVERNED}x: "a\\0b"\n', "bad-character", id="escaped-nul"),
    pytest.param('{"gavel": "v1", "rule_set": "\\ud800"}', "bad-character", id="escaped-surrogate"),
    pytest.param(GOVERNED.replace("version: 1", f"version: 1{'0' * 5_000}"), "bad-number", id="huge-integer"),
    pytest.param(f'{{"gavel": "v1", "version": 1{"0" * 5_000}}}', "bad-number", id="huge-integer-json"),
    pytest.param(GOVERNED.replace("version: 1", "version: .nan"), "bad-number", id="nan"),
    pytest.param(GOVERNED.replace("version: 1", "version: 1e400"), "bad-number", id="infinite"),
    pytest.param("[" + "1," * 60_000, "document-too-long", id="many-values"),
    pytest.param(f'"{"x" * (MIB - 2)}', "yaml-syntax", id="open-quote"),
    pytest.param("a: |\n" + " x\n" * (MIB // 3 - 2), "unknown-key", id="many-lines"),
    pytest.param("\ufeff" * (MIB // 3), "wrong-type", id="byte-order-marks"),
]


@pytest.mark.long
@pytest.mark.parametrize("opened", [0], ids=["front"], indirect=True)  # what is compiled does not depend on it
@pytest.mark.parametrize(("text", "code"), DOCUMENTS)
def test_hostile_documents(target: Target, text: str, code: str) -> None:
    """A document that would exhaust, crash or mislead a parser is refused with its code."""
    with pytest.raises(GavelError) as refusal:
        target.client.deploy_rule_set(text)
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_RULE_SET") == (refusal.value.code, refusal.value.reason)
    assert code in [violation.description.partition(":")[0] for violation in refusal.value.violations]


def test_undecodable_documents(target: Target) -> None:
    """A document that is not UTF-8, or is larger than 1 MiB or 10 MiB, is refused before it is parsed."""
    for method, request in ((DEPLOY, WRITES[DEPLOY]), (VALIDATE, rule_sets.ValidateRuleSetRequest)):
        for data in (b"gavel: \xff\xfe", b"gavel: \xed\xa0\x80", b"gavel: \xc0\x80"):
            message = request(document="@" * len(data)).SerializeToString().replace(b"@" * len(data), data)
            with pytest.raises(GavelError) as refusal:
                target.call(method, message)
            assert grpc.StatusCode.INVALID_ARGUMENT == refusal.value.code
        for size in (MIB + 1, 10 * MIB):
            with pytest.raises(GavelError) as refusal:
                target.call(method, request(document="#" * size).SerializeToString())
            assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (refusal.value.code, refusal.value.reason)


def test_oversized_messages(target: Target) -> None:
    """Every call that takes text or an envelope refuses a message over 1 MiB."""
    text = "x" * MIB
    long_params = {f"k{number}": Value(string_value="x" * 60_000) for number in range(20)}
    assert INVALID == target.refuses(SUBMIT, envelope=proposal_with(params=Struct(fields=long_params)))
    assert INVALID == target.refuses(PUBLISH, envelope=fact_with(value=Value(struct_value=Struct(fields=long_params))))
    assert INVALID == target.refuses(REPORT, envelope=report_with(result=Struct(fields=long_params)))
    assert INVALID == target.refuses(BEGIN, decision_id=text)
    assert INVALID == target.refuses(ACTIVATE, policy_id=text, version=0)
    assert target.refuses(DEPLOY, document=f"# {text}").startswith("INVALID_ARGUMENT ")


@pytest.mark.parametrize(("method", "envelope"), [(SUBMIT_BATCH, proposal_with()), (PUBLISH_BATCH, fact_with())], ids=["submit", "publish"])
def test_oversized_batches(target: Target, method: str, envelope: Envelope) -> None:
    """A batch that is empty, has 501 items or exceeds 4 MiB is refused as a whole."""
    large = Envelope()
    large.CopyFrom(envelope)
    large.event_name = "X" * (11 * 1024)
    assert INVALID == target.refuses(method, envelopes=[])
    assert INVALID == target.refuses(method, envelopes=[envelope] * 501)
    assert INVALID == target.refuses(method, envelopes=[large] * 400)


@pytest.mark.parametrize("method", [SUBMIT, SUBMIT_BATCH, PUBLISH, DEPLOY])
def test_messages_that_the_transport_refuses(target: Target, method: str) -> None:
    """A message beyond the transport's limit is refused before it is decoded, and the server keeps serving."""
    rpc: Any = target.channel.unary_unary(f"/gavel.v1.{method}")
    with pytest.raises(grpc.RpcError) as refusal:
        rpc(bytes(TRANSPORT_BYTES_MAX + 1), timeout=CALL_SECONDS_MAX)
    # The native front knows the limit of the method, which is lower.
    assert refusal.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)


def test_calls_about_unknown_objects(target: Target) -> None:
    """Unknown decisions and rule sets are NOT_FOUND; a producer without the right is refused before that."""
    assert "NOT_FOUND DECISION_NOT_FOUND" == target.refuses(BEGIN, decision_id=UNKNOWN_ID, producer=COURIER)
    assert "NOT_FOUND DECISION_NOT_FOUND" == target.refuses(RENEW, decision_id=UNKNOWN_ID, execution_id=EXECUTION_ID, producer=COURIER)
    assert WRONG_CATEGORY == target.refuses(BEGIN, decision_id=target.approval.event_id, producer=AGENT)
    assert WRONG_CATEGORY == target.refuses(RENEW, decision_id=target.approval.event_id, execution_id=EXECUTION_ID, producer=AGENT)
    assert "NOT_FOUND RULE_SET_NOT_FOUND" == target.refuses(ACTIVATE, policy_id="nobody", version=1)
    assert "NOT_FOUND RULE_SET_NOT_FOUND" == target.refuses(ACTIVATE, policy_id=POLICY, version=2)
    assert "NOT_FOUND RULE_SET_NOT_FOUND" == target.refuses(DEACTIVATE, policy_id="nobody")
    assert "ABORTED ACTIVATION_RACED" == target.refuses(ACTIVATE, policy_id=POLICY, version=1, expected_active_version=7)
    other = rule_set().replace("<= 30", "<= 31")
    assert "ALREADY_EXISTS VERSION_REUSED" == target.refuses(DEPLOY, document=other)
    assert "INVALID_ARGUMENT INVALID_RULE_SET" == target.refuses(DEPLOY, document="gavel: v1\nrule_set: x\0")
    unknown = target.client.preflight(proposal_with()).decision
    assert (decision_pb2.OUTCOME_REJECTED, "UNKNOWN_EVENT") == (unknown.outcome, unknown.reason_code)


def test_event_ids_are_not_reused(target: Target) -> None:
    """Every call answers the same content as the first time, and refuses other content under the same event_id."""
    assert target.approval == target.client.submit_proposal(target.approved).decision
    for method, other in ((SUBMIT, proposal_with()), (PUBLISH, fact_with())):
        other.event_id = target.approved.event_id
        assert "ALREADY_EXISTS EVENT_ID_REUSED" == target.refuses(method, envelope=other)
        assert "ALREADY_EXISTS EVENT_ID_REUSED" == target.refuses_in_batch(BATCH_OF[method], other)


def test_empty_changes_of_the_registry(target: Target) -> None:
    """A change of the registry of tools that names nothing is refused."""
    for method in REGISTRY:
        assert "INVALID_ARGUMENT INVALID_REQUEST" == target.refuses(method)
