"""The limits of streams of work, each with its unit in its name. docs/operating.md lists them with their effect on callers."""

from __future__ import annotations

from typing import Final

# Open streams of this server. A quota limits those of one caller.
STREAMS_MAX: Final = 1_000
# Of one stream.
IN_FLIGHT_MAX: Final = 1_000
IN_FLIGHT_DEFAULT: Final = 16
DELIVERIES_MAX: Final = 1_000
DELIVERIES_DEFAULT: Final = 16
ACTION_TYPES_MAX: Final = 64
KINDS_MAX: Final = 64
# The range of `silence_ms_max`, by which a consumer promises heartbeats.
CONSUMER_SILENCE_MS_MIN: Final = 1_000
CONSUMER_SILENCE_MS_MAX: Final = 600_000
REJECT_DELAY_MS_MAX: Final = 24 * 60 * 60 * 1000
REASON_LENGTH_MAX: Final = 1_024
# Bytes of items that were read and are not sent: of this server, and for one address. The item that reaches a limit is still read.
UNSENT_BYTES_MAX: Final = 32 * 1024 * 1024
ADDRESS_UNSENT_BYTES_MAX: Final = UNSENT_BYTES_MAX // 2
# Answers `not_held` of one stream that are not sent.
NOT_HELD_MAX: Final = 100
# Items of one read.
READ_ITEMS_MAX: Final = 32
# A server that sends no heartbeat for this time loses its items to other servers. It sends HEARTBEATS in that time.
SILENCE_MS_MAX: Final = 30_000
HEARTBEATS: Final = 3
# Interval at which a group looks for items that are due, or whose server or consumer has gone.
SWEEP_SECONDS: Final = 1.0
# Items whose server or consumer has gone that one such look examines.
SWEEP_ITEMS_MAX: Final = 1_000
# Items of one group that no stream of this server may take or selects, and whose traits are remembered.
UNWANTED_ITEMS_MAX: Final = 10_000
# Items that one stream may take and had no room for, and whose numbers are remembered.
WAITING_ITEMS_MAX: Final = 1_000
# An item that cannot be parked because the group has too many is delivered again after this time.
PARK_RETRY_MS: Final = 60_000
# After an error of the log.
FAILURE_PAUSE_SECONDS: Final = 0.5
# Consumers of killed servers are forgotten after this time.
MEMBER_SILENCE_MS_MAX: Final = 60 * 60 * 1000
MEMBER_SWEEP_SECONDS: Final = 600.0
