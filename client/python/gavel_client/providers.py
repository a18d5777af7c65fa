"""Where an agent gets what a rejection asks for: functions registered per fact key (seeds 002 §5.6).

A provider answers needs. There are two kinds, as there are two kinds of evidence. A *tool* is asked by the agent itself: its call,
its answer and what was read in it become TOOL_CALL, TOOL_RESULT and OBSERVATION events, which are evidence of tier 2. A *fact*
provider asks a controlled channel (a gateway, an adapter of a database) to publish, and returns the recorded FACT events, which
are tier 1; an agent never states facts itself.

    providers = FactProviders()

    @providers.tool("customer.fraud_score", tool_name="fraud-mcp")
    async def fraud_score(need: FactNeed) -> ToolReading:
        answer = await fraud.score(need.subject)
        return ToolReading(answer, {"customer.fraud_score": answer["score"]})

    @providers.facts("order.status", "order.total", source="orders-db")
    async def order(need: FactNeed) -> list[Envelope]:
        return await orders_gateway.refresh(need.subject)

Providers are coroutine functions, or plain functions, which run in a thread. They only read: whatever changes the world goes through a
proposal (seeds 002 §5.3). This module calls nothing and publishes nothing; `proposal_loop` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar

from gavel.v1.common_pb2 import TRUST_TIER_1_SYSTEM_FACT
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.envelope_pb2 import Envelope

PROVIDER_TIMEOUT_MS_DEFAULT: Final = 30_000


@dataclass(frozen=True)
class FactNeed:
    """What one provider is asked for: the hint's rows that are its own, all of one subject."""

    subject: str
    """Whose facts, "type/id"."""
    rows: tuple[FactRequirement, ...]
    """The rows of the hint: key, what is wrong, tier, age, sources."""
    trace_id: str
    """The trace of the proposal; what is published for it belongs there."""
    causation_id: str
    """The rejecting decision."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The fact keys that are asked for, each once."""
        return tuple(dict.fromkeys(row.key for row in self.rows))


@dataclass(frozen=True)
class ToolReading:
    """What a tool answered, and what is read in it."""

    result: object
    """The tool's raw answer (JSON values). The log keeps its hash."""
    fields: Mapping[str, object]
    """Fact keys and the values that were read, of the need's subject."""
    confidence: float = 1.0
    """How sure the reading is, 0..1."""
    observed_at: datetime | None = None
    """When it was seen, if not just now."""
    summary: str = ""
    """For people; goes into the log as it is, so put no secret into it."""
    query_ref: str = ""
    """What was asked, so that it can be asked again."""
    evidence_uri: str = ""
    """Where the raw answer is kept."""


ToolFunction = Callable[[FactNeed], Awaitable[ToolReading] | ToolReading]
FactFunction = Callable[[FactNeed], Awaitable[Sequence[Envelope]] | Sequence[Envelope]]
Arguments = Callable[[FactNeed], Mapping[str, object]]

_Tool = TypeVar("_Tool", bound=ToolFunction)
_Fact = TypeVar("_Fact", bound=FactFunction)


def _asked(need: FactNeed) -> Mapping[str, object]:
    return {"subject": need.subject, "keys": list(need.keys)}


@dataclass(frozen=True)
class ToolProvider:
    """A tool that the agent may read from."""

    read: ToolFunction
    tool_name: str
    timeout_ms: int
    arguments: Arguments = _asked
    tool_version: str = ""
    caller_role: str = ""

    def suits(self, row: FactRequirement) -> bool:
        """Whether an observation of this tool can be what the row wants."""
        return row.required_trust_tier != TRUST_TIER_1_SYSTEM_FACT and (not row.sources or self.tool_name in row.sources)


@dataclass(frozen=True)
class FactProvider:
    """A controlled channel that can be asked to publish facts. `source` is its producer's id, where it is known."""

    ask: FactFunction
    source: str
    timeout_ms: int

    def suits(self, row: FactRequirement) -> bool:
        """Whether a fact of this channel can be what the row wants."""
        return not row.sources or not self.source or self.source in row.sources


Provider = ToolProvider | FactProvider


@dataclass
class FactProviders:
    """Which providers can answer for which fact key, in the order of their registration."""

    _of_key: dict[str, list[Provider]] = field(default_factory=dict)

    def tool(
        self,
        *keys: str,
        tool_name: str,
        timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT,
        arguments: Arguments = _asked,
        tool_version: str = "",
        caller_role: str = "",
    ) -> Callable[[_Tool], _Tool]:
        """Register the decorated function as the reading of `keys` through the tool `tool_name`.

        `arguments` says what the tool is called with, for the log, which keeps their hash; by default subject and keys.
        """

        def register(function: _Tool) -> _Tool:
            self._add(keys, ToolProvider(function, tool_name, timeout_ms, arguments, tool_version, caller_role))
            return function

        return register

    def facts(self, *keys: str, source: str = "", timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT) -> Callable[[_Fact], _Fact]:
        """Register the decorated function, which has `keys` published as facts and returns them as recorded."""

        def register(function: _Fact) -> _Fact:
            self._add(keys, FactProvider(function, source, timeout_ms))
            return function

        return register

    def assign(
        self, rows: Iterable[FactRequirement], trace_id: str, causation_id: str
    ) -> tuple[list[tuple[Provider, FactNeed]], list[FactRequirement]]:
        """Return which provider is to be asked for what, one need per provider and subject, and the rows that nobody can answer."""
        groups: dict[tuple[int, str], tuple[Provider, list[FactRequirement]]] = {}
        unanswered: list[FactRequirement] = []
        for row in rows:
            provider = next((one for one in self._of_key.get(row.key, ()) if one.suits(row)), None)
            if provider is None:
                unanswered.append(row)
            else:
                groups.setdefault((id(provider), row.subject), (provider, []))[1].append(row)
        needs = [(provider, FactNeed(subject, tuple(own), trace_id, causation_id)) for (_, subject), (provider, own) in groups.items()]
        return needs, unanswered

    def _add(self, keys: Sequence[str], provider: Provider) -> None:
        if not keys:
            raise ValueError("a provider needs at least one fact key")
        for key in keys:
            self._of_key.setdefault(key, []).append(provider)
