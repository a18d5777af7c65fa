"""Stage 5: versions that rule sets do not require are refused, warned of or ignored (constitution 000 §3.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.arbitration.evaluation import evaluator
from gavel_rules.arbitration.pipeline import arbitrate
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.language.rule_set import compile_rule_set

from tests.support.driver import Core, document, proposal_envelope

VERSIONS = {"planner_version": ["7", "8"], "execution_version": "2.1.0"}
FITTING = VersionBinding(planner_version="8", execution_version="2.1.0")
APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED


def decide(binding: VersionBinding | None, **action: Any) -> Decision:
    """Submit a proposal that is approved unless its versions prevent it; the log must replay."""
    core = Core(document(**action))
    decision = core.decide([core.fact("order.status", "delivered")], version_binding=binding)
    core.prove()
    return decision


def version_warnings(decision: Decision) -> list[str]:
    """Return the warnings about versions."""
    return [warning.message for warning in decision.warnings if warning.code == reason_codes.VERSION_MISMATCH]


@pytest.mark.parametrize(
    ("binding", "messages"),
    [
        (FITTING, []),
        (VersionBinding(planner_version="7", execution_version="2.1.0", schema_version="whatever"), []),
        (VersionBinding(planner_version="9", execution_version="2.1.0"), ["planner_version is 9; refunds requires 7 or 8"]),
        (VersionBinding(planner_version="7"), ["execution_version is not given; refunds requires 2.1.0"]),
        (None, ["execution_version is not given; refunds requires 2.1.0", "planner_version is not given; refunds requires 7 or 8"]),
    ],
)
@pytest.mark.parametrize("policy", ["ignore", "warn", "fail", None])
def test_policies(binding: VersionBinding | None, messages: list[str], policy: str | None) -> None:
    """`fail`, the default, refuses another version than required, `warn` warns of it, `ignore` does not compare."""
    changes = {} if policy is None else {"on_version_mismatch": policy}
    decision = decide(binding, versions=VERSIONS, **changes)
    is_refused = bool(messages) and policy in ("fail", None)
    assert (REJECTED if is_refused else APPROVED, reason_codes.VERSION_MISMATCH if is_refused else "") == (
        decision.outcome,
        decision.reason_code,
    )
    assert ([] if policy == "ignore" else messages) == version_warnings(decision)
    if is_refused:
        assert ("gavel", True) == (decision.policy_id, decision.retry_hint.retryable)


@pytest.mark.parametrize(
    ("schema_version", "messages"),
    [
        ("taskgraph-v1", []),
        ("taskgraph-v2", ["schema_version is taskgraph-v2; refunds requires taskgraph-v1"]),
        ("", ["schema_version is not given; refunds requires taskgraph-v1"]),
    ],
)
@pytest.mark.parametrize("policy", ["ignore", "warn", "fail", None])
def test_schema_version(schema_version: str, messages: list[str], policy: str | None) -> None:
    """A proposal of another schema version than a rule set requires is refused by default (constitution 000 §3.2)."""
    changes = {} if policy is None else {"on_version_mismatch": policy}
    decision = decide(VersionBinding(schema_version=schema_version), versions={"schema_version": "taskgraph-v1"}, **changes)
    is_refused = bool(messages) and policy in ("fail", None)
    assert (REJECTED if is_refused else APPROVED, reason_codes.VERSION_MISMATCH if is_refused else "") == (
        decision.outcome,
        decision.reason_code,
    )
    assert ([] if policy == "ignore" else messages) == version_warnings(decision)


def test_strictest_rule_set_applies() -> None:
    """If one of several governing rule sets has `fail`, the proposal is refused; the others' mismatches are warnings."""
    core = Core()
    governing = tuple(
        compile_rule_set(document(rule_set=name, on_version_mismatch=policy, versions={"planner_version": required})).actions[
            "refund.create"
        ]
        for name, policy, required in (("a", "warn", "1"), ("b", "fail", "2"), ("c", "ignore", "3"))
    )
    fact = core.fact("order.status", "delivered")
    envelope = core.admit(proposal_envelope([fact], version_binding=VersionBinding(planner_version="4")))
    decision = arbitrate(core.state, ProposalView(envelope), {}, core.now_ms, evaluator(core.state, 1, decision_pb2.ENGINE_RETE), governing)
    assert reason_codes.VERSION_MISMATCH == decision.reason_code
    assert ["planner_version is 4; a requires 1", "planner_version is 4; b requires 2"] == version_warnings(decision)
