"""The details of a rule: values that the agent or the person sees with the decision, such as what is left of a limit.

A detail is computed after its rule has decided, on the same case. It never changes the outcome: one that fails is missing, and a warning
names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.syntax_tree import Node
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.engines.case import Case, CaseReader
from gavel_rules.language.engines.cel import Program, condition_source
from gavel_rules.text import clip
from gavel_rules.values import INTEGER_MAX

DETAIL_LENGTH_MAX: Final = 1_024


class Details:
    """The details of one rule, compiled."""

    def __init__(self, environment: Environment, checked: Mapping[str, CheckedExpression]) -> None:
        self.environment: Final = environment
        self.trees: Final[Mapping[str, Node]] = {name: expression.tree for name, expression in checked.items()}
        trees = self.trees.values()
        self._reader: Final = CaseReader(
            (variable for tree in trees for variable in find_variables(tree, environment.types)),
            [path for tree in trees for path in find_presence_tests(tree)],
        )
        self._program: Final = Program(environment, [condition_source(expression.source) for expression in checked.values()])

    def values(self, case: Case) -> dict[str, object]:
        """Return the values by name, None for one that fails or is not a finite number below 2^53. Long texts are cut."""
        variables = self._reader.read(case)
        answers = self._program.evaluate_all(variables)
        if answers is None:
            answers = self._program.evaluate_each(variables)
        return {name: _value(answer) for name, answer in zip(self.trees, answers, strict=True)}


def _value(answer: object) -> object:
    if isinstance(answer, str):
        return clip(answer, DETAIL_LENGTH_MAX)
    if isinstance(answer, bool):
        return answer
    if isinstance(answer, (int, float)) and math.isfinite(answer) and abs(answer) <= INTEGER_MAX:
        return float(answer)
    return None
