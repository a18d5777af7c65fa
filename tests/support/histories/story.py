"""A log with nearly every kind of event, for tests that replay, rebuild or forge a log."""

from __future__ import annotations

from functools import cache

from gavel_rules.commands import ActivateRuleSet, DeployRuleSet
from gavel_rules.values import python_to_value

from tests.support.driver import FAILED, OTHER_EXECUTOR, PARTIAL, SUCCESS, Core, compile_cached, document

STORY = document(rejection_limit=3)


def play_story() -> Core:
    """Play the story on a new bus: all kinds of events, timers that fired, open reviews."""
    core = Core(STORY)
    # A trace is rejected until a human review is requested.
    note = core.fact("k.note", "x")
    for _ in range(3):
        core.propose([note], trace_id="stubborn")
    core.propose([note], trace_id="stubborn")
    # Evidence below the required tier, then enough of it.
    core.propose([core.observe("order.status", "delivered", tool="orders-db", subject="order/2")], subject="order/2", trace_id="trace-2")
    core.observe("order.score", 0.2, evidence=core.tool_result("trace-2"), subject="order/2", trace_id="trace-2")
    done = core.approve("order/2", trace_id="trace-2")
    core.propose([core.fact("order.status", "delivered", subject="order/2")], subject="order/2", trace_id="rival")
    # Facts that change before the start, in two ways.
    core.fact("order.status", "delivered", subject="order/3")
    changed = core.approve("order/3", trace_id="trace-3")
    core.fact("order.status", "lost", subject="order/3")
    core.refuse_start(changed)
    core.derive(core.events_named("ExecutionAborted")[-1])
    # A retry that succeeds; its lease is renewed.
    core.pass_time(500)
    core.approve("order/4", trace_id="trace-4")
    core.approve("order/5", trace_id="trace-5")
    fresh = core.approve("order/6", trace_id="trace-6")
    core.derive(core.report(core.start(fresh), FAILED))
    attempt = core.start(fresh)
    core.run(core.renewal(attempt, lease_ms=3_000))
    core.derive(core.report(attempt, SUCCESS, result=python_to_value({"amount": 50}).struct_value))
    # A partial execution, one taken over with a late report, an abandoned one and an expired approval.
    core.derive(core.report(core.start(core.approve("order/7", trace_id="trace-7")), PARTIAL))
    late_decision = core.approve("order/8", trace_id="trace-8")
    first = core.start(late_decision, lease_ms=1_000)
    abandoned_decision = core.approve("order/9", trace_id="trace-9")
    core.start(abandoned_decision, lease_ms=2_000)
    core.pass_time(1_000)
    core.start(late_decision, OTHER_EXECUTOR)
    core.report(first, SUCCESS)
    core.tick(30_000)
    # A new version of the rule set.
    core.activate(document(version=2, rejection_limit=2))
    core.propose([core.fact("order.status", "cancelled", subject="order/10")], subject="order/10", trace_id="trace-10")
    # A shadow that decides differently; then no rule set at all.
    stricter = document(
        rules=[{"id": "no", "when": 'facts.status != "x" || has(facts.score)', "effect": "reject", "reason_code": "NO"}], version=3
    )
    core.run(DeployRuleSet(core.new_id(), compile_cached(stricter), stricter))
    core.run(ActivateRuleSet(core.new_id(), "refunds", 3, None, shadow=True))
    core.propose([core.fact("order.status", "delivered", subject="order/12")], subject="order/12", trace_id="trace-12")
    core.deactivate("refunds")
    core.propose([core.fact("order.status", "delivered", subject="order/11")], subject="order/11", trace_id="trace-11")
    core.refuse_start(done)
    return core


@cache
def story() -> Core:
    """Return the story, played once per process. Do not change it."""
    return play_story()
