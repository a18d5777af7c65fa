"""The metrics that are only measured if somebody reads them: RPCs, and the times of decisions, queues and appends."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

# Milliseconds, as the semantic conventions have them: https://opentelemetry.io/docs/specs/semconv/rpc/rpc-metrics
RPC_DURATION_NAME: Final = "rpc_server_duration_milliseconds"
_MILLISECONDS: Final = (0.5, 1, 2.5, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000)
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Distinct values of a label that callers can influence. Further ones share the value OTHER.
LABEL_VALUES_MAX: Final = 200
OTHER: Final = "other"

RPC_DURATION: Final = Histogram(
    RPC_DURATION_NAME,
    "Duration of calls; of a stream of proposals, that of each request.",
    ["rpc_system", "rpc_service", "rpc_method", "rpc_grpc_status_code"],
    buckets=_MILLISECONDS,
)
REFUSALS: Final = Counter("gavel_refusals", "Calls that were answered with an error, by principal.", ["principal", "reason"])
DECISION_SECONDS: Final = Histogram(
    "gavel_decision_seconds", "Time from a command's place in the queue to its decision in the log.", ["bus", "outcome"], buckets=_SECONDS
)
QUEUE_SECONDS: Final = Histogram("gavel_queue_seconds", "Time that commands wait before they are decided.", ["bus"], buckets=_SECONDS)
APPEND_SECONDS: Final = Histogram("gavel_append_seconds", "Duration of appends to the log.", ["bus"], buckets=_SECONDS)
QUEUED_COMMANDS: Final = Gauge("gavel_queued_commands", "Commands that wait to be decided, when the last batch was taken.", ["bus"])


class BoundedLabel:
    """The values of a label, which come from callers. The first LABEL_VALUES_MAX are kept as they are."""

    def __init__(self, values_max: int = LABEL_VALUES_MAX) -> None:
        self._values_max: Final = values_max
        self._values: set[str] = set()

    def bound(self, value: str) -> str:
        """Return the value, or OTHER if there are too many."""
        if value not in self._values:
            if len(self._values) >= self._values_max:
                return OTHER
            self._values.add(value)
        return value
