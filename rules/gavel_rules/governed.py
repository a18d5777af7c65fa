"""One governing rule set's view of a proposal: its typed params, the evidence that it selects, and the case that its rules see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel.v1.common_pb2 import ProducerType

from gavel_rules.evidence import Evidence, gather
from gavel_rules.language.case import Case
from gavel_rules.language.ruleset import CompiledAction
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed

_PRODUCER_PREFIX: Final = "PRODUCER_TYPE_"
_PRODUCER_NAME: Final = {number: name.removeprefix(_PRODUCER_PREFIX) for name, number in ProducerType.items()}


class Governed:
    """One governing rule set's view of a proposal."""

    def __init__(self, action: CompiledAction, params: dict[str, object], evidence: Evidence) -> None:
        self.action: Final = action
        self.params: Final = params
        self.evidence: Final = evidence


def view_of(
    state: State,
    action: CompiledAction,
    actions: Sequence[CompiledAction],
    asked: Proposed,
    params: dict[str, object],
    now_ms: int,
) -> Governed:
    """Return an action's view of a proposal whose params fit its schema."""
    typed = action.typed_params(params)
    return Governed(action, typed, gather(state, action, actions, asked, typed, now_ms))


def case_of(state: State, asked: Proposed, now_ms: int, view: Governed) -> Case:
    """Return what the rules of one governing rule set see."""
    header = asked.header
    # By position: sixteen arguments by name cost as much again as the whole function.
    return Case(
        view.params,
        view.evidence.facts,
        asked.risk,
        asked.cost,
        asked.confidence,
        asked.priority,
        asked.expected_outcome,
        asked.subject,
        _PRODUCER_NAME[header.producer_type],
        header.producer_id,
        header.producer_version,
        view.evidence.present,
        view.evidence.worst_trust,
        view.evidence.oldest_age_ms,
        state.rejections(asked.trace_id, now_ms).total,
        now_ms,
    )
