"""Facts that a rule set derives from reports, for tools that compare two versions of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.derivation import STATUS_RULE_ID
from gavel_rules.values import value_to_python


class DerivedFact(NamedTuple):
    """A fact that a rule set derives from the report of an execution. Its value is a string, a number or a boolean."""

    key: str
    subject: str
    value: object


def derived_facts(envelopes: Iterable[Envelope]) -> tuple[DerivedFact, ...]:
    """Return the facts that a rule set derives, sorted, without Gavel's own."""
    facts = [
        DerivedFact(one.fact.key, one.subject, value_to_python(one.fact.value))
        for one in envelopes
        if one.fact.derivation_rule_id != STATUS_RULE_ID
    ]
    return tuple(sorted(facts, key=repr))


def facts_beyond(facts: Sequence[DerivedFact], others: Sequence[DerivedFact]) -> tuple[DerivedFact, ...]:
    """Return the facts that are not among others. The values 1 and true differ, which are equal in Python."""
    known = set(map(repr, others))
    return tuple(fact for fact in facts if repr(fact) not in known)
