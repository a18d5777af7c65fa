"""The rule sets that this process has compiled lately, by digest, so that none is compiled twice in a row.

A bus may hold thousands of deployed versions, of which few are in force; compiled, one takes some hundred times the memory of its
text. So the state keeps texts, and here is where they become rule sets. What is in force is held by the state; here the last few
are held besides, for whoever needs one next: a deployment is activated, a decision outlives the version that made it. Compiling is
a pure function of the text, so what is found here is what compiling would give; nothing that is decided depends on it.

Only canonical texts: the order in which a document declares things is its canonical text's, for every replica.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from gavel_rules.language.ruleset import CompiledRuleSet, compile_rule_set

# What is held: the last few, and of large ones fewer; the last one always.
RECENT_RULE_SETS_MAX: Final = 8
RECENT_TEXT_LENGTH_MAX: Final = 256 * 1024

_recent: Final[OrderedDict[str, CompiledRuleSet]] = OrderedDict()


def compiled(digest: str, canonical_json: str) -> CompiledRuleSet:
    """Return the rule set of a canonical text with this digest; it is compiled if it is not at hand. DocumentError if it is none."""
    return find(digest) or keep(compile_rule_set(canonical_json))


def find(digest: str) -> CompiledRuleSet | None:
    """Return the rule set with this digest if it is at hand."""
    rule_set = _recent.get(digest)
    return None if rule_set is None else keep(rule_set)


def keep(rule_set: CompiledRuleSet) -> CompiledRuleSet:
    """Put a rule set at hand that was compiled from its canonical text, and return it."""
    _recent[rule_set.digest] = rule_set
    _recent.move_to_end(rule_set.digest)
    while len(_recent) > RECENT_RULE_SETS_MAX or (len(_recent) > 1 and _length() > RECENT_TEXT_LENGTH_MAX):
        _recent.popitem(last=False)
    return rule_set


def _length() -> int:
    return sum(len(rule_set.canonical_json) for rule_set in _recent.values())
