"""The cost of decisions: which actions of a rule set a server does not deploy, and what to change (ADR 0036).

A server decides beside other work, and one decision must not hold it up for more than about 5 ms. The compiler accepts more, because a
log may hold rule sets that were deployed before this limit: replay compiles them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gavel_rules.language.cel.cost import DECISION_STEPS_MAX
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

# The code of the diagnostic.
COSTLY: Final = "costly-decision"
# Without bounds to declare.
_GENERAL_SUGGESTION: Final = "loop over fewer elements, search shorter texts, or use costly expressions in fewer rules"


class CostlyAction(NamedTuple):
    """An action whose decisions may take too long. `path` is the place of its most costly expression or pattern in the document."""

    path: Path
    message: str
    suggestion: str


def find_costly_actions(rule_set: CompiledRuleSet) -> list[CostlyAction]:
    """Return the actions of a rule set whose expressions and patterns may take more than DECISION_STEPS_MAX in all."""
    actions = []
    for name, action in sorted(rule_set.actions.items()):
        steps = total_steps([action])
        if steps > DECISION_STEPS_MAX:
            most = max(action.costs, key=lambda cost: cost.steps)
            message = (
                f"one decision of {name} may take {steps:,} steps, {most.steps:,} of them in {most.name}; "
                f"a server deploys at most {DECISION_STEPS_MAX:,}"
            )
            actions.append(CostlyAction(most.path, message, most.suggestion or _GENERAL_SUGGESTION))
    return actions


def total_steps(actions: Iterable[CompiledAction]) -> int:
    """Return the worst cost of one decision that these actions make together, in steps of about a nanosecond."""
    return sum(cost.steps for action in actions for cost in action.costs)
