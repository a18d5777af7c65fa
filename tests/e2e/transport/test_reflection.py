"""Callers like grpcurl: without a .proto file they learn the contract by reflection and send plain JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from gavel_client import new_event_id
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.e2e.world import ACTION, DAY_MS, DEPOT, POLICY, WAIT_SECONDS_MAX, Server, rule_set

SERVICES = {
    "gavel.v1.AdministrationService",
    "gavel.v1.ArbitrationService",
    "gavel.v1.AuditService",
    "gavel.v1.EventService",
    "gavel.v1.ExecutionService",
    "gavel.v1.ProjectionService",
    "gavel.v1.ProofService",
    "gavel.v1.ReplayService",
    "gavel.v1.RuleSetService",
    "gavel.v1.ToolService",
    "gavel.v1.WorkService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}

Json = dict[str, Any]


class Curl:
    """Calls methods by name, with JSON in and out. Its message types come from the server's reflection only."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._database = ProtoReflectionDescriptorDatabase(channel)
        self._pool = DescriptorPool(self._database)

    def services(self) -> set[str]:
        """Return the names of the services that the server has."""
        return set(self._database.get_services())

    def method(self, name: str) -> MethodDescriptor:
        """Return the descriptor of a method, e.g. "gavel.v1.EventService/GetEvent"."""
        service, _, method = name.partition("/")
        return self._pool.FindServiceByName(service).methods_by_name[method]

    def call(self, name: str, request: Json) -> Json:
        """Make a call with one answer."""
        (answer,) = self.stream(name, request)
        return answer

    def stream(self, name: str, request: Json) -> Iterator[Json]:
        """Make a call and iterate over its answers."""
        method = self.method(name)
        path = f"/{method.containing_service.full_name}/{method.name}"
        message = json_format.ParseDict(request, GetMessageClass(method.input_type)())
        decode = GetMessageClass(method.output_type).FromString
        if method.server_streaming:
            answers: Any = self._channel.unary_stream(path, type(message).SerializeToString, decode)(message, timeout=WAIT_SECONDS_MAX)
        else:
            answers = [self._channel.unary_unary(path, type(message).SerializeToString, decode)(message, timeout=WAIT_SECONDS_MAX)]
        for answer in answers:
            yield json.loads(json_format.MessageToJson(answer, preserving_proto_field_name=True, descriptor_pool=self._pool))


@pytest.fixture(params=[0, 1], ids=["front", "no-front"])
def curl(pair: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[Curl]:
    """A caller of a server with a front, and of one without."""
    with grpc.insecure_channel(pair[request.param].address) as channel:
        yield Curl(channel)


def test_every_service_is_listed_and_described(curl: Curl) -> None:
    """Reflection lists every service and describes each of our methods."""
    assert curl.services() == SERVICES
    assert ("gavel.v1.SubmitProposalRequest", False) == (
        curl.method("gavel.v1.ArbitrationService/SubmitProposal").input_type.full_name,
        curl.method("gavel.v1.ArbitrationService/SubmitProposal").server_streaming,
    )
    assert curl.method("gavel.v1.EventService/SubscribeEvents").server_streaming


def test_a_trace_in_plain_json(curl: Curl, bus: str) -> None:
    """Reflection and JSON suffice to deploy rules, publish, preflight, submit, execute, read and replay."""
    document = curl.call("gavel.v1.RuleSetService/DeployRuleSet", {"bus": bus, "document": rule_set()})
    assert (POLICY, "1") == (document["policy_id"], document["version"])
    curl.call("gavel.v1.RuleSetService/ActivateRuleSet", {"bus": bus, "policy_id": POLICY, "version": 1, "mode": "ACTIVATION_MODE_ACTIVE"})
    depot = {"type": "PRODUCER_TYPE_DATABASE_SNAPSHOT", "id": DEPOT.id}
    fact = {"subject": "parcel/1", "producer": depot, "fact": {"key": "parcel.status", "value": "ready"}}
    fact_event = curl.call("gavel.v1.EventService/PublishEvent", {"bus": bus, "envelope": fact})["envelope"]
    proposal = {
        "event_id": new_event_id(),
        "subject": "parcel/1",
        "proposal": {
            "action_type": ACTION,
            "params": {"weight": 2.5},
            "max_fact_age_ms": DAY_MS,
            "based_on_events": [{"event_id": fact_event["event_id"], "sequence_number": fact_event["sequence_number"]}],
        },
    }
    request = {"bus": bus, "envelope": proposal}
    preflight = curl.call("gavel.v1.ArbitrationService/Preflight", {**request, "explain": True})
    assert ("OUTCOME_APPROVED", "light") == (preflight["decision"]["outcome"], preflight["decision"]["rule_id"])
    assert ["lost", "light"] == [rule["rule_id"] for rule in preflight["explanations"]]
    decision = curl.call("gavel.v1.ArbitrationService/SubmitProposal", request)["decision"]
    assert ("OUTCOME_APPROVED", {"weight": 2.5}) == (decision["decision"]["outcome"], decision["decision"]["params"])
    repetition = curl.call("gavel.v1.ArbitrationService/BatchSubmitProposals", {"bus": bus, "envelopes": [proposal]})
    assert [{"decision": decision}] == repetition["results"]

    start = curl.call("gavel.v1.ExecutionService/BeginExecution", {"bus": bus, "decision_id": decision["event_id"]})["started"]
    report = {"decision_id": decision["event_id"], "execution_id": start["execution_id"], "status": "EXECUTION_STATUS_SUCCESS"}
    curl.call("gavel.v1.ExecutionService/ReportExecution", {"bus": bus, "envelope": {"execution": report}})
    facts = curl.stream("gavel.v1.EventService/SubscribeEvents", {"bus": bus, "categories": ["EVENT_CATEGORY_FACT_EVENT"]})
    derivation = next(item["envelope"]["fact"] for item in facts if "decision_id" in item.get("envelope", {}).get("fact", {}))
    assert (decision["event_id"], "SUCCESS") == (derivation["decision_id"], derivation["value"])
    trace = curl.call("gavel.v1.EventService/GetTrace", {"bus": bus, "trace_id": decision["trace_id"]})["envelopes"]
    assert ["proposal", "decision", "execution", "execution", "fact"] == [
        next(name for name in ("proposal", "decision", "execution", "fact") if name in event) for event in trace
    ]
    projection = curl.call("gavel.v1.ProjectionService/GetProjection", {"bus": bus, "subject": "parcel/1"})["projection"]
    held = {fact["key"]: fact["value"] for fact in projection["facts"]}
    assert {"parcel.status": "ready", f"execution.{ACTION}.status": "SUCCESS"} == held
    *_, last = curl.stream("gavel.v1.ReplayService/VerifyReplay", {"bus": bus})
    assert ("REPLAY_STATUS_PROVED", "1") == (last["verdict"]["status"], last["verdict"]["decisions"])


def test_health_of_each_service(curl: Curl) -> None:
    """The health service answers for the server and for each of its services, and for no others."""
    for service in ("", *sorted(name for name in SERVICES if name.startswith("gavel."))):
        assert {"status": "SERVING"} == curl.call("grpc.health.v1.Health/Check", {"service": service})
    with pytest.raises(grpc.RpcError) as unknown:
        curl.call("grpc.health.v1.Health/Check", {"service": f"gavel.v1.{uuid.uuid4().hex}"})
    assert isinstance(unknown.value, grpc.Call)
    assert grpc.StatusCode.NOT_FOUND == unknown.value.code()
