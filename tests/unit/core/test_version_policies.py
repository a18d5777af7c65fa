"""Stage 5: a proposal is bound to the versions that the rule sets require, or refused, or warned of (seeds 000 §3.1)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reasons
from gavel_rules.arbitration import arbitrate
from gavel_rules.decider import judge
from gavel_rules.language.ruleset import compile_rule_set
from gavel_rules.proposed import Proposed

from tests.unit.core.driver import Core, document, proposal_envelope

VERSIONS = {"planner_version": ["7", "8"], "execution_version": "2.1.0"}
FITTING = VersionBinding(planner_version="8", execution_version="2.1.0")
APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED


def decide(binding: VersionBinding | None, **action: Any) -> Decision:
    """Propose what is approved but for the versions; the log must replay."""
    core = Core(document(**action))
    decision = core.decide([core.fact("order.status", "delivered")], version_binding=binding)
    core.prove()
    return decision


def said(decision: Decision) -> list[str]:
    """What the warnings say of versions."""
    return [warning.message for warning in decision.warnings if warning.code == reasons.VERSION_MISMATCH]


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
    """`fail`, the default, refuses a version that is not required, `warn` says so, `ignore` does not look."""
    changes = {} if policy is None else {"on_version_mismatch": policy}
    decision = decide(binding, versions=VERSIONS, **changes)
    refused = bool(messages) and policy in ("fail", None)
    assert (REJECTED if refused else APPROVED, reasons.VERSION_MISMATCH if refused else "") == (decision.outcome, decision.reason_code)
    assert ([] if policy == "ignore" else messages) == said(decision)
    if refused:
        assert ("gavel", True) == (decision.policy_id, decision.retry_hint.retryable)


def test_the_strictest_rule_set_speaks() -> None:
    """Of several rule sets that govern an action, one that fails refuses; what the others say is warned of."""
    core = Core()
    governing = tuple(
        compile_rule_set(document(rule_set=name, on_version_mismatch=policy, versions={"planner_version": wanted})).actions["refund.create"]
        for name, policy, wanted in (("a", "warn", "1"), ("b", "fail", "2"), ("c", "ignore", "3"))
    )
    fact = core.fact("order.status", "delivered")
    envelope = core.admitted(proposal_envelope([fact], version_binding=VersionBinding(planner_version="4")))
    decision = arbitrate(core.state, Proposed(envelope), {}, core.now_ms, judge(core.state, 1, decision_pb2.ENGINE_RETE), governing)
    assert reasons.VERSION_MISMATCH == decision.reason_code
    assert ["planner_version is 4; a requires 1", "planner_version is 4; b requires 2"] == said(decision)
