"""The document of the tests of counters, and documents with one change."""

from __future__ import annotations

from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set

SAMPLE = """\
gavel: v2
rule_set: refunds
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount, customer, payer]
      properties:
        amount: {type: number}
        count: {type: integer}
        customer: {type: string, maxLength: 20}
        payer: {type: string}
        region: {type: string}
        tip: {type: object, properties: {value: {type: number}}}
    facts: {owner: {key: order.owner, type: string, max_length: 20, max_age_ms: 1000, optional: true}}
counters:
  spent: {of: approvals, action: refund.*, by: params.customer, sum: params.amount, window_ms: 1000, keep: reserved}
  calls: {of: proposals, action: refund.create, window_ms: 1000}
rules:
  - id: over
    action: refund.create
    priority: 2
    when: history.spent(params.customer) > 9.0 || history.calls() > 5
    effect: reject
    reason_code: OVER
  - {id: ok, action: refund.create, priority: 1, when: 'true', effect: approve}
"""


def compile_changed(old: str = "", new: str = "") -> CompiledRuleSet:
    """Compile the sample with one change."""
    assert old in SAMPLE
    return compile_rule_set(SAMPLE.replace(old, new, 1) if old else SAMPLE)
