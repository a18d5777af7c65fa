"""Prometheus metrics of a server, served on the address given by `--metrics`. They never hold payloads.

`gavel_decision_alarms` counts decisions on which the two engines disagreed, decisions whose rules failed, and proposals that could
not be judged when their contest closed. None of these should ever happen, none approves anything, and each needs an operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import structlog
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.kinds import AGENT_DIAGNOSTIC, DECISION
from gavel_rules.events.timestamps import timestamp
from gavel_rules.reason_codes import ALARMING
from gavel_rules.state.counters import UncountedEvent
from prometheus_client import Counter, Gauge, start_http_server

from gavel_server.process.telemetry.instruments import APPEND_SECONDS, DECISION_SECONDS, QUEUE_SECONDS, QUEUED_COMMANDS

EVENTS: Final = Counter("gavel_events", "Events that this server has committed.", ["bus"])
HEAD: Final = Gauge("gavel_head_sequence_number", "The last committed event that this server knows.", ["bus"])
WRITABLE: Final = Gauge("gavel_writable", "1 if this server accepts writes to the bus, else 0.", ["bus"])
WAITING_CALLERS: Final = Gauge("gavel_waiting_callers", "Callers of this server who wait for contests to close.", ["bus"])
OPEN_CONTESTS: Final = Gauge("gavel_open_contests", "Contests that wait for their windows to close.", ["bus"])
OPEN_REVIEWS: Final = Gauge("gavel_open_reviews", "Reviews that wait for a person.", ["bus"])
REVIEW_AGE: Final = Gauge("gavel_oldest_review_age_seconds", "How long the oldest open review has waited; 0 if there is none.", ["bus"])
LEASE_LAPSES: Final = Counter(
    "gavel_lease_lapses", "Attempts whose lease lapsed without a report, when another one began or a human review was requested.", ["bus"]
)
REFUSALS_NOT_RECORDED: Final = Counter(
    "gavel_refusals_not_recorded", "Failed attempts to record refused calls in the log of a bus; they are tried again."
)
QUOTA_REFUSALS: Final = Counter("gavel_quota_refusals", "Calls that were refused because their caller had used up a quota.", ["quota"])
COMMANDS_DROPPED: Final = Counter("gavel_commands_dropped", "Queued commands that were not decided because their caller had gone.", ["bus"])
SNAPSHOT_NUMBER: Final = Gauge("gavel_snapshot_sequence_number", "The last event in the newest snapshot of the bus.", ["bus"])
INDEX_NUMBER: Final = Gauge("gavel_index_sequence_number", "The last event in the index of the bus.", ["bus"])
SNAPSHOT_PAUSE: Final = Gauge("gavel_snapshot_pause_seconds", "How long decisions waited for the last snapshot of the bus.", ["bus"])
DECISION_ALARMS: Final = Counter("gavel_decision_alarms", "Decisions that need an operator, by reason code.", ["bus", "reason"])
EVENTS_NOT_COUNTED: Final = Counter(
    "gavel_events_not_counted", "Events that a counter could not count, by the rule set that declares it.", ["bus", "policy_id", "counter"]
)
SHADOW_DIFFERENCES: Final = Counter(
    "gavel_shadow_differences", "Decisions that a shadow would have made differently, by its rule set.", ["bus", "policy_id"]
)

_LOG: Final = structlog.get_logger(__name__)


def serve(listen: str) -> None:
    """Serve /metrics on HOST:PORT from a thread. Raises OSError if the address is not available."""
    host, _, port = listen.rpartition(":")
    start_http_server(int(port), addr=host.strip("[]"))


def remove_series(bus: str, *, is_empty: bool) -> None:
    """Forget the gauges of a bus that is no longer in memory, and its histograms if it `is_empty`: callers may name ever new buses."""
    for gauge in (HEAD, WRITABLE, WAITING_CALLERS, OPEN_CONTESTS, OPEN_REVIEWS, REVIEW_AGE, SNAPSHOT_NUMBER, SNAPSHOT_PAUSE, INDEX_NUMBER):
        with suppress(KeyError):  # a bus that was in memory for less than a round has none
            gauge.remove(bus)
    with suppress(KeyError):
        QUEUED_COMMANDS.remove(bus)
    if is_empty:
        for histogram in (DECISION_SECONDS, QUEUE_SECONDS, APPEND_SECONDS):
            histogram.remove_by_labels({"bus": bus})


def set_gauges(bus: str, head: int, writable: bool, waiting_callers: int, open_contests: int) -> None:
    """Set the gauges of a bus."""
    HEAD.labels(bus).set(head)
    WRITABLE.labels(bus).set(writable)
    WAITING_CALLERS.labels(bus).set(waiting_callers)
    OPEN_CONTESTS.labels(bus).set(open_contests)


def set_review_gauges(bus: str, open_reviews: int, oldest_age_seconds: float) -> None:
    """Set the gauges of a bus's reviews."""
    OPEN_REVIEWS.labels(bus).set(open_reviews)
    REVIEW_AGE.labels(bus).set(oldest_age_seconds)


def count_committed(
    bus: str, count: int, alarm_candidates: Iterable[Envelope], lease_lapses: int = 0, uncounted_events: Iterable[UncountedEvent] = ()
) -> None:
    """Count a committed batch of `count` events, the leases that lapsed in it, the alarms among its decisions, and what counters could
    not count.

    `alarm_candidates` are the batch's diagnostics and its decisions that approve nothing.
    """
    for envelope in alarm_candidates:
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
    for event in uncounted_events:
        EVENTS_NOT_COUNTED.labels(bus, event.policy_id, event.counter).inc()
        _LOG.warning(
            "counter.event_not_counted",
            bus=bus,
            policy_id=event.policy_id,
            counter=event.counter,
            sequence_number=event.sequence_number,
            until=timestamp(event.until_ms).ToJsonString() if event.until_ms else "the decision ends",
        )
    if lease_lapses:
        LEASE_LAPSES.labels(bus).inc(lease_lapses)
    EVENTS.labels(bus).inc(count)
