"""The calls of RuleSetService: rule sets, their deployment and simulation."""

from __future__ import annotations

from gavel.v1 import rule_set_service_pb2 as rule_sets
from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE, ActivationMode
from gavel.v1.rule_set_service_pb2_grpc import RuleSetServiceStub

from gavel_client.rpc.calls.call import StreamCall, UnaryCall, stream_call, unary_call
from gavel_client.rpc.deadlines import ACTIVATION_TIMEOUT_MS, COMPILE_TIMEOUT_MS, READ_TIMEOUT_MS, WRITE_TIMEOUT_MS


def validate_rule_set(
    document: str, *, bus: str = "", timeout_ms: int = COMPILE_TIMEOUT_MS
) -> UnaryCall[rule_sets.ValidateRuleSetResponse]:
    """Compile a rule set document (YAML or JSON) and return every mistake. The server writes nothing."""
    request = rule_sets.ValidateRuleSetRequest(bus=bus, document=document)
    return unary_call(RuleSetServiceStub, lambda stub: stub.ValidateRuleSet, request, timeout_ms)


def deploy_rule_set(
    document: str, *, reason: str = "", bus: str = "", timeout_ms: int = COMPILE_TIMEOUT_MS
) -> UnaryCall[rule_sets.DeployRuleSetResponse]:
    """Record a rule set version. Deploying its digest again changes nothing; another digest under the version is ALREADY_EXISTS."""
    request = rule_sets.DeployRuleSetRequest(bus=bus, document=document, reason=reason)
    return unary_call(RuleSetServiceStub, lambda stub: stub.DeployRuleSet, request, timeout_ms)


def activate_rule_set(
    policy_id: str,
    version: int,
    *,
    mode: ActivationMode.ValueType = ACTIVATION_MODE_ACTIVE,
    expected_active_version: int | None = None,
    reason: str = "",
    bus: str = "",
    timeout_ms: int = ACTIVATION_TIMEOUT_MS,
) -> UnaryCall[rule_sets.ActivateRuleSetResponse]:
    """Put a deployed version in force, or start it as a shadow, which decides nothing.

    If `expected_active_version` is set and not the version in force (0: none), the call fails with ABORTED. A version with new counters
    comes into force when the server has counted the log. If the call ends before, that goes on: call again.
    """
    request = rule_sets.ActivateRuleSetRequest(
        bus=bus, policy_id=policy_id, version=version, mode=mode, expected_active_version=expected_active_version, reason=reason
    )
    return unary_call(RuleSetServiceStub, lambda stub: stub.ActivateRuleSet, request, timeout_ms, repeatable=False)


def deactivate_rule_set(
    policy_id: str,
    *,
    mode: ActivationMode.ValueType = ACTIVATION_MODE_ACTIVE,
    expected_active_version: int | None = None,
    reason: str = "",
    bus: str = "",
    timeout_ms: int = WRITE_TIMEOUT_MS,
) -> UnaryCall[rule_sets.DeactivateRuleSetResponse]:
    """Take a rule set out of force, or end its shadow.

    If `expected_active_version` is set and not the version in force (0: none), the call fails with ABORTED.
    """
    request = rule_sets.DeactivateRuleSetRequest(
        bus=bus, policy_id=policy_id, expected_active_version=expected_active_version, mode=mode, reason=reason
    )
    return unary_call(RuleSetServiceStub, lambda stub: stub.DeactivateRuleSet, request, timeout_ms, repeatable=False)


def get_rule_set(
    policy_id: str, *, version: int = 0, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[rule_sets.GetRuleSetResponse]:
    """Read a deployed version; 0: the active one, or else the newest."""
    request = rule_sets.GetRuleSetRequest(bus=bus, policy_id=policy_id, version=version)
    return unary_call(RuleSetServiceStub, lambda stub: stub.GetRuleSet, request, timeout_ms)


def list_rule_sets(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[rule_sets.ListRuleSetsResponse]:
    """Read a page of deployed versions, by policy_id and version."""
    request = rule_sets.ListRuleSetsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return unary_call(RuleSetServiceStub, lambda stub: stub.ListRuleSets, request, timeout_ms)


def simulate_rule_set(
    document: str,
    *,
    from_sequence_number: int = 0,
    to_sequence_number: int = 0,
    bus: str = "",
    timeout_ms: int | None = None,
) -> StreamCall[rule_sets.SimulateRuleSetResponse]:
    """Decide past proposals under a candidate document; stream the decisions that would change, then a summary."""
    request = rule_sets.SimulateRuleSetRequest(
        bus=bus, document=document, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number
    )
    return stream_call(RuleSetServiceStub, lambda stub: stub.SimulateRuleSet, request, timeout_ms)
