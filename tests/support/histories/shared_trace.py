"""A bus on which two producers share traces, driven by hand: refusals, reviews, a contest, executions, and a day of silence.

tests/data has its log as a build with arbiter version 2 wrote it. Later builds replay that log, and write it again on a bus of version 2.
"""

from __future__ import annotations

import json
from typing import Any, Final

from gavel.v1 import common_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import Producer
from gavel_rules.commands import ActivateRuleSet, ChangeCrossCheck, DeployRuleSet
from gavel_rules.limits import TRACE_LAPSE_MS

from tests.support.driver import AGENT, SUCCESS, Core, compile_cached, document

OWNER: Final = AGENT
GUEST: Final = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="agent-2", version="1.0")
WINDOW_MS: Final = 1_000
APPROVE: Final = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT: Final = fact_pb2.REVIEW_VERDICT_REJECT

_PARAMS: Final = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}}
_STATUS: Final = {"status": {"key": "order.status", "type": "string", "max_age_ms": 600_000}}
_RULES: Final = [
    {"id": "cancelled", "when": 'facts.status == "cancelled"', "effect": "reject", "reason_code": "ORDER_CANCELLED"},
    {"id": "haggling", "when": "trace.consecutive_rejections >= 2 && params.amount == 77.0", "effect": "review", "reason_code": "HAGGLING"},
    {"id": "much", "when": "params.amount > 100.0", "effect": "reject", "reason_code": "TOO_MUCH"},
    {"id": "delivered", "when": 'facts.status == "delivered"', "effect": "approve"},
    {"id": "offer", "action": "offer.make", "when": 'facts.status == "delivered"', "effect": "approve"},
]


def rule_set(version: int = 1, **action: Any) -> str:
    """Return the rule set of the bus: refunds with a limit of three rejections, and offers, which compete."""
    offers = {"params": _PARAMS, "facts": _STATUS, "contest_window_ms": WINDOW_MS, "rejection_limit": 3}
    compensation = {"action": "refund.reverse", "params": {"amount": "execution.result.refunded"}}
    return document(
        _STATUS,
        _RULES,
        version=version,
        more_actions={"offer.make": offers},
        params=_PARAMS,
        rejection_limit=3,
        compensation=compensation,
        **action,
    )


def play_shared_traces(core: Core) -> None:
    """Play the story on an open bus without rule sets."""
    core.activate(rule_set())
    shadow = compile_cached(rule_set(version=2, rejection_limits={"policy": 9}))
    core.run(DeployRuleSet(core.new_id(), shadow, json.dumps(json.loads(shadow.canonical_json))))
    core.run(ActivateRuleSet(core.new_id(), shadow.policy_id, shadow.version, None, True))
    _reach_the_limit_together(core)
    _repeat_each_other(core)
    _close_an_action(core)
    _compete(core)
    _carry_out(core)
    core.run(ChangeCrossCheck(core.new_id(), fact_pb2.CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_OFF)))
    _fall_silent(core)


def _reach_the_limit_together(core: Core) -> None:
    """Both are refused until a human review is requested, and the person lets the trace go on."""
    fact = core.fact("order.status", "delivered")
    first = core.propose([fact], trace_id="limit", amount=501, producer=OWNER)
    core.propose([fact], trace_id="limit", amount=502, producer=GUEST, causation_id=first.event_id)
    third = core.propose([fact], trace_id="limit", amount=503, producer=OWNER)
    core.propose([fact], trace_id="limit", amount=50, producer=GUEST, causation_id=first.event_id)
    core.propose([fact], trace_id="limit", amount=504, producer=OWNER)
    if third.event_id in core.state.reviews:
        core.resolve(third, APPROVE)
    core.propose([fact], trace_id="limit", amount=-1, action_type="nobody.knows", producer=GUEST, causation_id=first.event_id)
    core.propose([fact], trace_id="limit", amount=505, producer=GUEST, causation_id=first.event_id)
    core.propose([fact], trace_id="limit", amount=77, producer=OWNER)
    core.propose([fact], trace_id="limit", amount=506, producer=OWNER)


def _repeat_each_other(core: Core) -> None:
    """One repeats what the other has been refused; an approval begins the count anew."""
    fact = core.fact("order.status", "delivered", subject="order/2")
    first = core.propose([fact], subject="order/2", trace_id="repeat", amount=500, producer=OWNER)
    core.propose([fact], subject="order/2", trace_id="repeat", amount=500, producer=GUEST, causation_id=first.event_id)
    approval = core.propose([fact], subject="order/2", trace_id="repeat", amount=20, producer=GUEST, causation_id=first.event_id)
    core.propose([fact], subject="order/2", trace_id="repeat", amount=20, producer=OWNER)
    core.revoke(approval)
    core.propose([fact], subject="order/2", trace_id="repeat", amount=500, producer=OWNER)


def _close_an_action(core: Core) -> None:
    """A terminal refusal of the one, or a person's rejection, closes the action for the other."""
    fact = core.fact("order.status", "cancelled", subject="order/3")
    first = core.propose([fact], subject="order/3", trace_id="closed", producer=OWNER)
    core.propose([fact], subject="order/3", trace_id="closed", amount=30, producer=GUEST, causation_id=first.event_id)
    fact = core.fact("order.status", "delivered", subject="order/7")
    first = core.propose([fact], subject="order/7", trace_id="rejected", amount=701, producer=OWNER)
    core.propose([fact], subject="order/7", trace_id="rejected", amount=702, producer=OWNER)
    review = core.propose([fact], subject="order/7", trace_id="rejected", amount=77, producer=OWNER)
    core.propose([fact], subject="order/7", trace_id="rejected", amount=77, producer=GUEST, causation_id=first.event_id)
    core.resolve(review, REJECT)
    core.propose([fact], subject="order/7", trace_id="rejected", amount=78, producer=GUEST, causation_id=first.event_id)


def _compete(core: Core) -> None:
    """Equal offers of one trace are duplicates; the offers of a trace that comes under review during the close are held."""
    fact = core.fact("order.status", "delivered", subject="order/4")
    offer: dict[str, Any] = {"subject": "order/4", "action_type": "offer.make", "trace_id": "offers"}
    first = core.enter([fact], **offer, amount=10, priority=5, producer=OWNER)
    core.run(core.proposal([fact], **offer, amount=10, producer=GUEST, causation_id=first.event_id))
    core.run(core.proposal([fact], **offer, amount=11, producer=GUEST, causation_id=first.event_id))
    core.run(core.proposal([fact], **offer, amount=12, producer=OWNER))
    core.enter([fact], **{**offer, "trace_id": "rival"}, amount=13, priority=9, producer=GUEST)
    core.tick(WINDOW_MS)
    core.tick(20_000)  # the approval expires


def _carry_out(core: Core) -> None:
    """Half-done work is compensated, a human review is requested, and the verdict begins the count anew."""
    fact = core.fact("order.status", "delivered", subject="order/5")
    approval = core.propose([fact], subject="order/5", trace_id="work", producer=OWNER)
    core.propose([fact], subject="order/5", trace_id="work", amount=900, producer=GUEST, causation_id=approval.event_id)
    partial = core.report(core.start(approval), execution_pb2.EXECUTION_STATUS_PARTIAL)
    review = core.events[-1]
    core.propose([fact], subject="order/5", trace_id="work", amount=901, producer=OWNER, causation_id=partial.event_id)
    core.resolve(review, APPROVE)
    core.report(core.start(core.events[-1]), SUCCESS)
    core.propose([fact], subject="order/5", trace_id="work", amount=902, producer=OWNER)
    report = {"refunded": 4}
    other = core.approve("order/6", trace_id="work-2", producer=OWNER)
    core.report(core.start(other), execution_pb2.EXECUTION_STATUS_PARTIAL, result=report)


def _fall_silent(core: Core) -> None:
    """After a day without an event of the trace, the counts begin anew; an open review stays."""
    note = core.fact("order.note", "x", subject="order/8")
    first = core.propose([note], subject="order/8", trace_id="silent", producer=OWNER)
    core.propose([note], subject="order/8", trace_id="silent", amount=60, producer=GUEST, causation_id=first.event_id)
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.propose([note], subject="order/8", trace_id="silent", producer=OWNER)
    core.propose([note], subject="order/8", trace_id="silent", producer=GUEST, causation_id=first.event_id)
    core.propose([note], subject="order/8", trace_id="limit", producer=OWNER)
    core.propose([note], subject="order/8", trace_id="limit", producer=GUEST, causation_id=first.event_id)
