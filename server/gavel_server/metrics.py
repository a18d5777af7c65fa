"""What a server counts, for Prometheus. Served on an address of its own where `--metrics` gives one; never payloads.

One of them is an alarm: it counts decisions that the two engines disagreed on, decisions whose rules erred, and proposals that
could not be judged when their contest closed. None of it should ever happen, nothing of it approves, and somebody has to look.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reasons
from gavel_rules.events import AGENT_DIAGNOSTIC, DECISION
from prometheus_client import Counter, Gauge, start_http_server

EVENTS: Final = Counter("gavel_events", "Events that this server has committed.", ["bus"])
HEAD: Final = Gauge("gavel_head_sequence_number", "The last committed event that this server knows.", ["bus"])
WRITABLE: Final = Gauge("gavel_writable", "1 if this server accepts writes to the bus, else 0.", ["bus"])
WAITING_CALLERS: Final = Gauge("gavel_waiting_callers", "Callers of this server who wait for contests to close.", ["bus"])
OPEN_CONTESTS: Final = Gauge("gavel_open_contests", "Contests that wait for their windows to close.", ["bus"])
DECISION_ALARMS: Final = Counter("gavel_decision_alarms", "Decisions that need somebody to look, by reason code.", ["bus", "reason"])
SHADOW_DIFFERENCES: Final = Counter(
    "gavel_shadow_differences", "Decisions that a shadow would have made otherwise, by its rule set.", ["bus", "policy_id"]
)

ALARMING: Final = frozenset({reasons.ENGINE_DISAGREEMENT, reasons.EVALUATION_ERROR, reasons.NOT_JUDGED})

_LOG: Final = structlog.get_logger(__name__)


def serve(listen: str) -> None:
    """Serve /metrics on HOST:PORT from a thread. Raises OSError if the address cannot be had."""
    host, _, port = listen.rpartition(":")
    start_http_server(int(port), addr=host.strip("[]"))


def show(bus: str, head: int, writable: bool, waiting_callers: int, open_contests: int) -> None:
    """Set the gauges of a bus."""
    HEAD.labels(bus).set(head)
    WRITABLE.labels(bus).set(writable)
    WAITING_CALLERS.labels(bus).set(waiting_callers)
    OPEN_CONTESTS.labels(bus).set(open_contests)


def committed(bus: str, count: int, watched: Iterable[Envelope]) -> None:
    """Count a committed batch of `count` events, and raise the alarm where a decision calls for it.

    `watched` are those that may: its diagnostics, and its decisions that approve nothing.
    """
    for envelope in watched:
        category = envelope.event_category
        if category == AGENT_DIAGNOSTIC and envelope.agent_diagnostic.WhichOneof("detail") == "shadow_difference":
            SHADOW_DIFFERENCES.labels(bus, envelope.agent_diagnostic.shadow_difference.policy_id).inc()
        elif category == DECISION and envelope.decision.reason_code in ALARMING:
            decision = envelope.decision
            DECISION_ALARMS.labels(bus, decision.reason_code).inc()
            _LOG.error(
                "decision.alarm",
                bus=bus,
                reason_code=decision.reason_code,
                decision_id=decision.decision_id,
                sequence_number=envelope.sequence_number,
                rule_id=decision.rule_id,
                rule_sets=[f"{reference.policy_id}@{reference.version}" for reference in decision.active_rule_sets],
            )
    EVENTS.labels(bus).inc(count)
