"""The limits of streams of work, each with its unit in its name. docs/operating.md lists them with what callers hear."""

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
# Of a consumer that promises heartbeats.
CONSUMER_SILENCE_MS_MIN: Final = 1_000
CONSUMER_SILENCE_MS_MAX: Final = 600_000
REJECT_DELAY_MS_MAX: Final = 24 * 60 * 60 * 1000
REASON_LENGTH_MAX: Final = 1_024
# Items that were read and are not sent: of this server, and for one address. The item that reaches a limit is still read.
UNSENT_BYTES_MAX: Final = 32 * 1024 * 1024
ADDRESS_UNSENT_BYTES_MAX: Final = UNSENT_BYTES_MAX // 2
# Settlements of items that the consumer does not hold whose answers are not sent, of one stream.
NOT_HELD_MAX: Final = 100
# Items of one read.
READ_ITEMS_MAX: Final = 32
# A server that says nothing for so long has lost its items to the other servers. It is heard HEARTBEATS times in that time.
SILENCE_MS_MAX: Final = 30_000
HEARTBEATS: Final = 3
# How often a group looks for items that are due, or that a server or consumer has left.
SWEEP_SECONDS: Final = 1.0
# Left items that one look examines.
SWEEP_ITEMS_MAX: Final = 1_000
# Items that no stream here wants, of one group, whose types are remembered.
UNWANTED_ITEMS_MAX: Final = 10_000
# An item that cannot be parked because the group has too many is delivered again after this time.
PARK_RETRY_MS: Final = 60_000
# After an error of the log.
FAILURE_PAUSE_SECONDS: Final = 0.5
# Consumers of killed servers are forgotten after this time.
MEMBER_SILENCE_MS_MAX: Final = 60 * 60 * 1000
MEMBER_SWEEP_SECONDS: Final = 600.0
