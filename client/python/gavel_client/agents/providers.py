"""Providers: functions, registered by fact key, that get the evidence a rejection requires (constitution §5.6).

There are two kinds of provider for the two kinds of evidence. A *tool* provider reads through a tool: the call, the result and the reading
become TOOL_CALL, TOOL_RESULT and OBSERVATION events, which are evidence of tier 2. With a runtime of tools (`gavel_client.tools`) the
runtime calls the tool, records it and keeps the result, and the function only reads the values in it. A *fact* provider asks a controlled
channel (a gateway, an adapter of a database) to publish and returns the recorded FACT events, which are evidence of tier 1. An agent never
states facts itself.

    providers = FactProviders(tools=runtime)

    @providers.tool("customer.fraud_score", tool_name="fraud-mcp")
    async def fraud_score(need: FactNeed) -> ToolReading:
        answer = await fraud.score(need.subject)
        return ToolReading(answer, {"customer.fraud_score": answer["score"]})

    @providers.reading("customer.risk", tool_name="crm.lookup", arguments=lambda need: {"customer": need.subject})
    def risk(need: FactNeed, data: Mapping[str, object]) -> Mapping[str, object]:
        return {"customer.risk": data["risk"]}

    @providers.facts("order.status", "order.total", source="orders-db")
    async def order(need: FactNeed) -> list[Envelope]:
        return await orders_gateway.refresh(need.subject)

Providers are coroutine functions, or plain functions, which run in a thread. They only read; any action on the world requires a
proposal (constitution §5.3). This module only registers providers; `evidence_collection` calls them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from gavel.v1.common_pb2 import TRUST_TIER_1_SYSTEM_FACT
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.tools.runtime import ToolRuntime

PROVIDER_TIMEOUT_MS_DEFAULT: Final = 30_000


@dataclass(frozen=True)
class FactNeed:
    """The request to one provider: the rows of the hint that it can meet, all of one subject."""

    subject: str
    """Subject of the facts, "type/id"."""
    rows: tuple[FactRequirement, ...]
    """Rows of the hint: key, defect, tier, age, sources."""
    trace_id: str
    """Trace of the proposal. Publish events for the need in this trace."""
    causation_id: str
    """The rejecting decision."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The requested fact keys, each once."""
        return tuple(dict.fromkeys(row.key for row in self.rows))


@dataclass(frozen=True)
class ToolReading:
    """The result of a tool and the values read from it."""

    result: object
    """The tool's raw result (JSON values). The log stores its hash."""
    fields: Mapping[str, object]
    """The values read about the need's subject, by fact key."""
    confidence: float = 1.0
    """Confidence in the reading, 0..1."""
    observed_at: datetime | None = None
    """When the value was observed; None: when the call was recorded, just before the tool was called."""
    summary: str = ""
    """Summary for people, recorded in the log; put no secret into it."""
    query_ref: str = ""
    """The query, so that it can be repeated."""
    evidence_uri: str = ""
    """Location of the raw result."""


ToolFunction = Callable[[FactNeed], Awaitable[ToolReading] | ToolReading]
FactFunction = Callable[[FactNeed], Awaitable[Sequence[Envelope]] | Sequence[Envelope]]
ReadingFunction = Callable[[FactNeed, Mapping[str, Any]], Awaitable[Mapping[str, object]] | Mapping[str, object]]
Arguments = Callable[[FactNeed], Mapping[str, object]]

_Tool = TypeVar("_Tool", bound=ToolFunction)
_Reading = TypeVar("_Reading", bound=ReadingFunction)
_Fact = TypeVar("_Fact", bound=FactFunction)


def _is_met_by_observation(row: FactRequirement, tool_name: str) -> bool:
    return row.required_trust_tier != TRUST_TIER_1_SYSTEM_FACT and (not row.sources or tool_name in row.sources)


def _default_arguments(need: FactNeed) -> Mapping[str, object]:
    return {"subject": need.subject, "keys": list(need.keys)}


@dataclass(frozen=True)
class ToolProvider:
    """A tool from which the agent may read."""

    read: ToolFunction
    tool_name: str
    timeout_ms: int
    arguments: Arguments = _default_arguments
    tool_version: str = ""
    caller_role: str = ""

    def suits(self, row: FactRequirement) -> bool:
        """Report whether an observation of this tool can meet the row."""
        return _is_met_by_observation(row, self.tool_name)


@dataclass(frozen=True)
class RuntimeProvider:
    """A tool that the runtime calls; `read` returns the values in its result, by fact key."""

    read: ReadingFunction
    runtime: ToolRuntime
    tool_name: str
    timeout_ms: int
    arguments: Arguments
    caller_role: str

    def suits(self, row: FactRequirement) -> bool:
        """Report whether an observation of this tool can meet the row."""
        return _is_met_by_observation(row, self.tool_name)


@dataclass(frozen=True)
class FactProvider:
    """A controlled channel that publishes facts on request. `source` is its producer's id; empty: unknown."""

    publish: FactFunction
    source: str
    timeout_ms: int

    def suits(self, row: FactRequirement) -> bool:
        """Report whether a fact of this channel can meet the row."""
        return not row.sources or not self.source or self.source in row.sources


Provider = ToolProvider | RuntimeProvider | FactProvider


@dataclass
class FactProviders:
    """Providers by fact key, in the order of their registration. `tools` is the runtime for `reading`."""

    tools: ToolRuntime | None = None
    _of_key: dict[str, list[Provider]] = field(default_factory=dict)

    def tool(
        self,
        *keys: str,
        tool_name: str,
        timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT,
        arguments: Arguments = _default_arguments,
        tool_version: str = "",
        caller_role: str = "",
    ) -> Callable[[_Tool], _Tool]:
        """Register the decorated function, which reads `keys` through the tool `tool_name`.

        `arguments` returns the arguments of the tool call, whose hash is recorded; default: the subject and the keys.
        """

        def register(function: _Tool) -> _Tool:
            self._add(keys, ToolProvider(function, tool_name, timeout_ms, arguments, tool_version, caller_role))
            return function

        return register

    def reading(
        self,
        *keys: str,
        tool_name: str,
        timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT,
        arguments: Arguments = _default_arguments,
        caller_role: str = "",
    ) -> Callable[[_Reading], _Reading]:
        """Register the decorated function, which reads `keys` in the result of a tool that the runtime calls.

        `tool_name` is the canonical name. `arguments` returns the arguments of the call; default: the subject and the keys. Raises
        ValueError without a runtime.
        """
        runtime = self.tools
        if runtime is None:
            raise ValueError("reading needs a runtime of tools; pass FactProviders(tools=...)")

        def register(function: _Reading) -> _Reading:
            self._add(keys, RuntimeProvider(function, runtime, tool_name, timeout_ms, arguments, caller_role))
            return function

        return register

    def facts(self, *keys: str, source: str = "", timeout_ms: int = PROVIDER_TIMEOUT_MS_DEFAULT) -> Callable[[_Fact], _Fact]:
        """Register the decorated function, which gets `keys` published as facts and returns the recorded events."""

        def register(function: _Fact) -> _Fact:
            self._add(keys, FactProvider(function, source, timeout_ms))
            return function

        return register

    def assign(
        self, rows: Iterable[FactRequirement], trace_id: str, causation_id: str
    ) -> tuple[list[tuple[Provider, FactNeed]], list[FactRequirement]]:
        """Return the providers with their needs, one need for each provider and subject, and the rows without a provider."""
        groups: dict[tuple[int, str], tuple[Provider, list[FactRequirement]]] = {}
        unmet: list[FactRequirement] = []
        for row in rows:
            provider = next((one for one in self._of_key.get(row.key, ()) if one.suits(row)), None)
            if provider is None:
                unmet.append(row)
            else:
                groups.setdefault((id(provider), row.subject), (provider, []))[1].append(row)
        needs = [(provider, FactNeed(subject, tuple(group), trace_id, causation_id)) for (_, subject), (provider, group) in groups.items()]
        return needs, unmet

    def _add(self, keys: Sequence[str], provider: Provider) -> None:
        if not keys:
            raise ValueError("a provider needs at least one fact key")
        for key in keys:
            self._of_key.setdefault(key, []).append(provider)
