"""The compiled rule sets that this process has, by digest: none is compiled twice while somebody uses it.

A bus may hold thousands of deployed versions, of which few are in force; each takes compiled some hundred times the memory of
its text. So the state keeps texts, and here is where they become rule sets: those in use are kept by their users, a few more
because they were used lately (a decision may outlive the version that made it). Compiling is a pure function of the text, so
what is found here is what compiling would give; nothing that is decided depends on what is found.

Only canonical texts: the order in which a document declares things is its canonical text's, for every replica.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Final

from gavel_rules.ruleset import CompiledRuleSet, compile_rule_set

# Rule sets that are kept although nobody may use them any more.
RECENT_RULE_SETS_MAX: Final = 8

_in_use: Final[weakref.WeakValueDictionary[str, CompiledRuleSet]] = weakref.WeakValueDictionary()
_recent: Final[OrderedDict[str, CompiledRuleSet]] = OrderedDict()


def compiled(digest: str, canonical_json: str) -> CompiledRuleSet:
    """Return the rule set of a canonical text with this digest; it is compiled if it is not at hand. DocumentError if it is none."""
    return find(digest) or keep(compile_rule_set(canonical_json))


def find(digest: str) -> CompiledRuleSet | None:
    """Return the rule set with this digest if it is at hand."""
    rule_set = _in_use.get(digest)
    return None if rule_set is None else keep(rule_set)


def keep(rule_set: CompiledRuleSet) -> CompiledRuleSet:
    """Put a rule set at hand that was compiled from its canonical text, and return the one to use."""
    rule_set = _in_use.setdefault(rule_set.digest, rule_set)
    _recent[rule_set.digest] = rule_set
    _recent.move_to_end(rule_set.digest)
    if len(_recent) > RECENT_RULE_SETS_MAX:
        _recent.popitem(last=False)
    return rule_set
