"""Whether rule sets in several files could be in force together, without a server: what `activate` would refuse, said beforehand."""

from __future__ import annotations

from collections.abc import Iterable

from gavel_rules.language.agreement import DISAGREEMENTS_NAMED_MAX, disagreements
from gavel_rules.language.ruleset import DocumentMessage
from gavel_rules.language.source import Messages, Source

from gavel_server.cli.author_files import Checked


def compared(files: Iterable[Checked]) -> list[Checked]:
    """Return what is to be said of several files, with warnings where rule sets could not be in force together.

    Each is compared with those before it; of several versions of one rule set with the newest. The server refuses to put such rule
    sets in force together, not to deploy them: it may well be meant, e.g. while a setting is changed in all of them.
    """
    answer: list[Checked] = []
    newest: dict[str, Checked] = {}
    for one in files:
        rule_set = one.rule_set
        if rule_set is None:
            answer.append(one)
            continue
        source = Source(rule_set.document, Messages())
        found = disagreements(rule_set, [other.rule_set for other in newest.values() if other.rule_set is not None])
        warnings = [
            DocumentMessage(
                *source.key_place(("actions", row.action_type)),
                "rule-sets-disagree",
                f"{row.setting} of {row.action_type} is {row.wanted}, but {row.in_force} in {newest[row.other_policy_id].file}",
                "rule sets that share an action have to agree on it to be in force together: write it alike",
            )
            for row in found[:DISAGREEMENTS_NAMED_MAX]
        ]
        answer.append(one._replace(warnings=tuple(sorted((*one.warnings, *warnings)))))
        known = newest.get(rule_set.policy_id)
        if known is None or known.rule_set is None or known.rule_set.version < rule_set.version:
            newest[rule_set.policy_id] = one
    return answer
