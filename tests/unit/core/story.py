"""One log in which nearly everything happens, for tests that replay, rebuild or take apart a log."""

from __future__ import annotations

from functools import cache

from gavel_rules.commands import ActivateRuleSet, DeployRuleSet
from gavel_rules.values import python_to_value

from tests.unit.core.driver import FAILED, OTHER_EXECUTOR, PARTIAL, SUCCESS, Core, compiled, document

STORY = document(rejection_limit=3)


def tell() -> Core:
    """Tell the story anew: a bus with all kinds of events, timers that spoke, reviews that are open."""
    core = Core(STORY)
    # A trace that is refused until a person is called.
    note = core.fact("k.note", "x")
    for _ in range(3):
        core.propose([note], trace_id="stubborn")
    core.propose([note], trace_id="stubborn")
    # Evidence below the tier, then enough of it.
    core.propose([core.observe("order.status", "delivered", tool="orders-db", subject="order/2")], subject="order/2", trace_id="trace-2")
    core.observe("order.score", 0.2, evidence=core.tool_result("trace-2"), subject="order/2", trace_id="trace-2")
    done = core.approve("order/2", trace_id="trace-2")
    core.propose([core.fact("order.status", "delivered", subject="order/2")], subject="order/2", trace_id="rival")
    # Facts that change before the start, in two ways.
    core.fact("order.status", "delivered", subject="order/3")
    changed = core.approve("order/3", trace_id="trace-3")
    core.fact("order.status", "lost", subject="order/3")
    core.refuse_start(changed)
    core.derive(core.named("ExecutionAborted")[-1])
    # A retry that goes well, its lease renewed.
    core.pass_time(500)
    core.approve("order/4", trace_id="trace-4")
    core.approve("order/5", trace_id="trace-5")
    fresh = core.approve("order/6", trace_id="trace-6")
    core.derive(core.report(core.start(fresh), FAILED))
    retried = core.start(fresh)
    core.run(core.renewal(retried, lease_ms=3_000))
    core.derive(core.report(retried, SUCCESS, result=python_to_value({"amount": 50}).struct_value))
    # Half done; taken over with a late report; abandoned; expired.
    core.derive(core.report(core.start(core.approve("order/7", trace_id="trace-7")), PARTIAL))
    overtaken = core.approve("order/8", trace_id="trace-8")
    first = core.start(overtaken, lease_ms=1_000)
    abandoned = core.approve("order/9", trace_id="trace-9")
    core.start(abandoned, lease_ms=2_000)
    core.pass_time(1_000)
    core.start(overtaken, OTHER_EXECUTOR)
    core.report(first, SUCCESS)
    core.tick(30_000)
    # A rule set that is replaced and one that is taken out.
    core.activate(document(version=2, rejection_limit=2))
    core.propose([core.fact("order.status", "cancelled", subject="order/10")], subject="order/10", trace_id="trace-10")
    # A shadow that would have decided otherwise.
    stricter = document(
        rules=[{"id": "no", "when": 'facts.status != "x" || has(facts.score)', "effect": "reject", "reason_code": "NO"}], version=3
    )
    core.run(DeployRuleSet(core.new_id(), compiled(stricter), stricter))
    core.run(ActivateRuleSet(core.new_id(), "refunds", 3, None, shadow=True))
    core.propose([core.fact("order.status", "delivered", subject="order/12")], subject="order/12", trace_id="trace-12")
    core.deactivate("refunds")
    core.propose([core.fact("order.status", "delivered", subject="order/11")], subject="order/11", trace_id="trace-11")
    core.refuse_start(done)
    return core


@cache
def told() -> Core:
    """The story, told once. Do not change it."""
    return tell()
