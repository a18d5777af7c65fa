"""Every limit that a caller can meet, with its name and unit. docs/contract.md lists them."""

from typing import Final

MESSAGE_BYTES_MAX: Final = 1024 * 1024
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
BATCH_ITEMS_MAX: Final = 500
BASED_ON_EVENTS_MAX: Final = 256
REQUIRED_FACTS_MAX: Final = 64
EXTRACTED_FIELDS_MAX: Final = 64
COMPLETED_STEPS_MAX: Final = 256
COMPENSATION_PARAMS_BYTES_MAX: Final = 512 * 1024
PRODUCER_ID_LENGTH_MAX: Final = 128
VERSION_LENGTH_MAX: Final = 128
TRACE_ID_LENGTH_MAX: Final = 128
REQUEST_ID_LENGTH_MAX: Final = 128
EVENT_NAME_LENGTH_MAX: Final = 128
PERSON_LENGTH_MAX: Final = 128
ACTION_TYPE_LENGTH_MAX: Final = 128
FACT_KEY_LENGTH_MAX: Final = 256
TEXT_BYTES_MAX: Final = 64 * 1024
# Characters of conditions that a decision quotes; the deciding rule's is always there.
CONDITIONS_QUOTED_MAX: Final = 32 * 1024

# Fact keys and action types: parts of lower-case letters, digits, _ and - joined by dots, e.g. "order.status".
DOTTED_NAME: Final = r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*"
# Whose fact, and what a proposal is about: "type/id", e.g. "order/123".
SUBJECT: Final = r"[a-z][a-z0-9_-]{0,63}/[\x21-\x7e]{1,256}"
# The name of a bus.
BUS: Final = r"[a-z0-9-]{1,63}"
# Who speaks, e.g. "orders-db".
PRODUCER_ID: Final = r"[A-Za-z0-9._:@/-]{1,128}"

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000
TRACE_EVENTS_MAX: Final = 10_000

# What competes in one contest is judged and appended in one go when it closes. Bytes of the proposals' payloads as the log has them.
CONTEST_CANDIDATES_MAX: Final = 64
# Of one producer, by its id: whoever tries again and again, each time in another trace, leaves places to others.
CONTEST_CANDIDATES_OF_PRODUCER_MAX: Final = 16
CONTEST_BYTES_MAX: Final = 4 * 1024 * 1024
# No longer than a silent trace is remembered.
CONTEST_WINDOW_MS_MAX: Final = 24 * 60 * 60 * 1000

# Rule sets in force that govern one action together. Each of them is one more judgement of every proposal.
RULE_SETS_PER_ACTION_MAX: Final = 16
# Shadows that watch one action, likewise.
SHADOWS_PER_ACTION_MAX: Final = 4

LEASE_MS_DEFAULT: Final = 30_000
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 86_400_000

# How far `occurred_at` and `observed_at` may lie ahead of the server's clock, for producers whose own runs ahead.
CLOCK_AHEAD_MS_MAX: Final = 5_000

# A trace that has been silent for so long starts over: its count of rejections and its tool evidence lapse.
TRACE_LAPSE_MS: Final = 24 * 60 * 60 * 1000
# What is remembered of a trace that never falls silent. At the limit the oldest goes where that can only make evidence count for
# less, or a proposal be judged anew; where it could hide a contradiction, what comes is refused.
TRACE_TOOL_CALLS_MAX: Final = 4_096
TRACE_TOOL_RESULTS_MAX: Final = 4_096
TRACE_ENDINGS_MAX: Final = 1_024
# Values of keys of subjects that observations have read in one tool result.
READINGS_PER_RESULT_MAX: Final = 4_096
# Who has stated a key of a subject, for each trust tier. Each of them is looked at whenever a proposal needs the key.
SOURCES_PER_KEY_MAX: Final = 64

# How long after the end of a decision an attempt of it that never reported may still do so: then a person looks at it again.
LATE_REPORT_MS_MAX: Final = 24 * 60 * 60 * 1000

REJECTION_LIMIT_DEFAULT: Final = 3
IDEMPOTENCY_WINDOW_MS_DEFAULT: Final = 7 * 24 * 60 * 60 * 1000
