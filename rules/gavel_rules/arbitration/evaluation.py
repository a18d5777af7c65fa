"""Which engines evaluate the rules of a decision: Rete, Rete with the cross-check, or the reference engine alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gavel.v1 import decision_pb2, fact_pb2
from gavel.v1.decision_pb2 import Engine

from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, Verdict
from gavel_rules.state.state import State

# Evaluates the rules of an action for a case.
Evaluate = Callable[[CompiledAction, Case], Verdict]

_REFERENCE: Final = decision_pb2.ENGINE_REFERENCE
_ALWAYS: Final = fact_pb2.CROSS_CHECK_MODE_ALWAYS
_SAMPLE: Final = fact_pb2.CROSS_CHECK_MODE_SAMPLE


def evaluator(state: State, sequence_number: int, engine: Engine.ValueType) -> Evaluate:
    """Return the evaluation for the decision with this sequence number.

    The bus's cross-check mode chooses; `engine` REFERENCE overrides it (replay).
    """
    if engine == _REFERENCE:
        return _evaluate_by_reference
    mode = state.cross_check.mode
    is_cross_checked = mode == _ALWAYS or (mode == _SAMPLE and sequence_number % state.cross_check.sample_every == 0)
    return _evaluate_by_both if is_cross_checked else evaluate_by_rete


def _evaluate_by_both(action: CompiledAction, case: Case) -> Verdict:
    return action.evaluate(case, True)


def evaluate_by_rete(action: CompiledAction, case: Case) -> Verdict:
    """Evaluate by the Rete engine alone."""
    return action.evaluate(case, False)


def _evaluate_by_reference(action: CompiledAction, case: Case) -> Verdict:
    return action.evaluate_reference(case)
