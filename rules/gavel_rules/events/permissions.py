"""The permission matrix: which producer type may publish which event category (constitution §4.9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import EventCategory, ProducerType

from gavel_rules.events.kinds import AGENT_DIAGNOSTIC, DECISION, EXECUTION, FACT, OBSERVATION, PROPOSAL, TOOL_CALL, TOOL_RESULT

_SENSES: Final = frozenset({FACT})
# Checked on every append and by every replay.
CATEGORIES_OF_PRODUCER: Final[Mapping[ProducerType.ValueType, frozenset[EventCategory.ValueType]]] = {
    common_pb2.PRODUCER_TYPE_SENSOR: _SENSES,
    common_pb2.PRODUCER_TYPE_API: _SENSES,
    common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT: _SENSES,
    common_pb2.PRODUCER_TYPE_AGENT: frozenset({PROPOSAL, OBSERVATION, TOOL_CALL, TOOL_RESULT, AGENT_DIAGNOSTIC}),
    common_pb2.PRODUCER_TYPE_ARBITRATOR: frozenset({DECISION}),
    common_pb2.PRODUCER_TYPE_EXECUTOR: frozenset({EXECUTION}),
    common_pb2.PRODUCER_TYPE_SYSTEM: frozenset({FACT, AGENT_DIAGNOSTIC}),
    common_pb2.PRODUCER_TYPE_TOOL_RUNTIME: frozenset({TOOL_CALL, TOOL_RESULT}),
}
