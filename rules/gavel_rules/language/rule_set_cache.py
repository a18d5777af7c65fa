"""The rule sets that this process compiled last, by digest.

A bus may hold thousands of deployed versions, few of them active, and a compiled rule set takes about a hundred times the memory of its
text. The state therefore keeps texts, and compiled rule sets only of what is active. The cache spares a second compilation when a deployed
version is activated, or when a decision outlives the version that made it (ADR 0018). Compiling is a pure function of the text, so no
decision depends on what is cached.

Only rule sets compiled from canonical text are cached: declarations then have the same order on every replica.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set

# Limits of the cache. The newest rule set is cached whatever its length.
RECENT_RULE_SETS_MAX: Final = 8
RECENT_TEXT_LENGTH_MAX: Final = 256 * 1024

_recent: Final[OrderedDict[str, CompiledRuleSet]] = OrderedDict()


def compile_cached(digest: str, canonical_json: str) -> CompiledRuleSet:
    """Return the rule set with this digest, compiled from its canonical text if it is not cached. Raises DocumentError."""
    return get(digest) or put(compile_rule_set(canonical_json))


def get(digest: str) -> CompiledRuleSet | None:
    """Return the rule set with this digest if it is cached."""
    rule_set = _recent.get(digest)
    return None if rule_set is None else put(rule_set)


def put(rule_set: CompiledRuleSet) -> CompiledRuleSet:
    """Cache a rule set that was compiled from its canonical text, and return it."""
    _recent[rule_set.digest] = rule_set
    _recent.move_to_end(rule_set.digest)
    while len(_recent) > RECENT_RULE_SETS_MAX or (len(_recent) > 1 and _text_length() > RECENT_TEXT_LENGTH_MAX):
        _recent.popitem(last=False)
    return rule_set


def _text_length() -> int:
    return sum(len(rule_set.canonical_json) for rule_set in _recent.values())
