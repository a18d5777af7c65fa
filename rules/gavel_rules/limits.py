"""The limits that callers can reach, each with its unit in its name. docs/contract.md lists them."""

from typing import Final

MESSAGE_BYTES_MAX: Final = 1024 * 1024
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
BATCH_ITEMS_MAX: Final = 500
BASED_ON_EVENTS_MAX: Final = 256
TRANSITION_EVENTS_MAX: Final = 256
REQUIRED_FACTS_MAX: Final = 64
EXTRACTED_FIELDS_MAX: Final = 64
COMPLETED_STEPS_MAX: Final = 256
LLM_ATTEMPTS_MAX: Final = 64
COMPENSATION_PARAMS_BYTES_MAX: Final = 512 * 1024
PRODUCER_ID_LENGTH_MAX: Final = 128
VERSION_LENGTH_MAX: Final = 128
# Groups of a principal, and characters of a group's name.
PRINCIPAL_GROUPS_MAX: Final = 256
PRINCIPAL_GROUP_LENGTH_MAX: Final = 256
TRACE_ID_LENGTH_MAX: Final = 128
REQUEST_ID_LENGTH_MAX: Final = 128
EVENT_NAME_LENGTH_MAX: Final = 128
PERSON_LENGTH_MAX: Final = 128
ACTION_TYPE_LENGTH_MAX: Final = 128
FACT_KEY_LENGTH_MAX: Final = 256
TEXT_BYTES_MAX: Final = 64 * 1024
# Violations that one answer names. The search for more ends there.
VIOLATIONS_MAX: Final = 100
# Categories that one request may filter by.
CATEGORIES_MAX: Final = 16
# Action types, outcomes and phases that one request may filter by.
ACTION_TYPES_MAX: Final = 64
OUTCOMES_MAX: Final = 16
REASON_CODES_MAX: Final = 64
PHASES_MAX: Final = 16
# Characters of conditions that a decision quotes. The condition of the deciding rule is always quoted.
CONDITIONS_QUOTED_MAX: Final = 32 * 1024

# Fact keys and action types: parts of lower-case letters, digits, _ and -, joined by dots, e.g. "order.status".
DOTTED_NAME: Final = r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*"
# Reason codes of decisions, e.g. "NEED_MORE_FACTS".
REASON_CODE: Final = r"[A-Z][A-Z0-9_]{0,127}"
# Subjects of facts and proposals, "type/id", e.g. "order/123", as the core reads them. The server admits fewer (intake/formats.py): which
# characters are letters depends on Python's version of Unicode, and a decision must not.
SUBJECT: Final = r"[a-z][a-z0-9_-]{0,63}/[^\x00-\x1f\x7f]{1,256}"
# The same in arbiter version 2.
SUBJECT_IN_ASCII: Final = r"[a-z][a-z0-9_-]{0,63}/[\x21-\x7e]{1,256}"
SUBJECT_BYTES_MAX: Final = 256
# Subjects that the server admits, with A in place of each letter, mark and digit beyond ASCII.
RECORDABLE_SUBJECT: Final = r"[a-z][a-z0-9_-]{0,63}(/[A-Za-z0-9._~:@+ -]+)+"
# The name of a bus.
BUS: Final = r"[a-z0-9-]{1,63}"
# Producers, e.g. "orders-db".
PRODUCER_ID: Final = r"[A-Za-z0-9._:@/-]{1,128}"

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000
TRACE_EVENTS_MAX: Final = 10_000

# All proposals of a contest are decided and appended at once when it closes.
CONTEST_CANDIDATES_MAX: Final = 64
# Candidates of one producer_id: a producer that retries in ever new traces leaves room for others.
CONTEST_CANDIDATES_OF_PRODUCER_MAX: Final = 16
# Total size of the payloads of a contest's proposals in the log.
CONTEST_BYTES_MAX: Final = 4 * 1024 * 1024
# The same of one producer_id.
CONTEST_BYTES_OF_PRODUCER_MAX: Final = 1024 * 1024
# What the log keeps of the events that one candidate cites: their subjects, keys and evidence. A small proposal may cite large events.
CONTEST_CITATIONS_BYTES_MAX: Final = 128 * 1024
# At most TRACE_LAPSE_MS.
CONTEST_WINDOW_MS_MAX: Final = 24 * 60 * 60 * 1000

# Active rule sets that govern one action. Each of them evaluates every proposal.
RULE_SETS_PER_ACTION_MAX: Final = 16
# Shadows of one action, which also evaluate every proposal.
SHADOWS_PER_ACTION_MAX: Final = 4

# Deployed versions of the grants that a bus remembers beside the log: the newest, and the one in force.
GRANTS_VERSIONS_MAX: Final = 64

# The registry of tools, of one bus.
TOOL_CONTRACTS_MAX: Final = 1_000
TOOL_CONTRACT_BYTES_MAX: Final = 48 * 1024
TOOL_SCHEMA_PATTERNS_MAX: Final = 64
# By which one place of a value is checked, with references followed.
TOOL_SCHEMA_PARTS_MAX: Final = 2_000
TOOL_PROVIDERS_MAX: Final = 1_000
TOOL_BINDINGS_MAX: Final = 10_000
TOOL_ALIASES_MAX: Final = 32
TOOL_EFFECTS_MAX: Final = 32
TOOL_REDACTIONS_MAX: Final = 64

LEASE_MS_DEFAULT: Final = 30_000
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 86_400_000

# How far `occurred_at` and `observed_at` may be ahead of the server's clock, as the clocks of producers differ.
CLOCK_AHEAD_MS_MAX: Final = 5_000

# A trace without an event for longer than this lapses: its rejections and its tool evidence are forgotten.
TRACE_LAPSE_MS: Final = 24 * 60 * 60 * 1000
# Entries stored per trace, which bound a trace that never lapses. At the limit the oldest entries are forgotten if that only lowers the
# tier of evidence or lets a proposal be evaluated again. If it could hide a contradiction, the new event is rejected.
TRACE_TOOL_CALLS_MAX: Final = 4_096
TRACE_TOOL_RESULTS_MAX: Final = 4_096
TRACE_CLOSED_ACTIONS_MAX: Final = 1_024
TRACE_PRODUCERS_MAX: Final = 1_024
# Traces of a bus in which refusals count. Beyond, the producers with the most lose their oldest.
REFUSED_TRACES_MAX: Final = 20_000
# Traces of a bus whose versions are remembered, and what is remembered of each: schemas of tools, answers of models, and versions that
# differ from the bound ones. Beyond, the oldest are forgotten: a warning of drift may be missing.
VERSIONED_TRACES_MAX: Final = 10_000
TRACE_VERSIONS_MAX: Final = 64
# Prompts whose last answer a bus remembers.
PROMPTS_MAX: Final = 10_000
# Readings of one tool result: values of fact keys of subjects in its observations.
READINGS_PER_RESULT_MAX: Final = 4_096
# Sources that state a fact key of a subject, for each trust tier. Every selection of evidence goes through them.
SOURCES_PER_KEY_MAX: Final = 64

# Persons that a review may need, which bounds its votes; comments are bounded by themselves, so that they leave room for votes.
REVIEW_QUORUM_MAX: Final = 16
REVIEW_GROUPS_MAX: Final = 32
REVIEW_COMMENTS_MAX: Final = 64
# Total size of the comments on one review.
REVIEW_COMMENTS_BYTES_MAX: Final = 256 * 1024

# How long after the end of a decision its attempts may report. A late report opens a review.
LATE_REPORT_MS_MAX: Final = 24 * 60 * 60 * 1000

REJECTION_LIMIT_DEFAULT: Final = 3
IDEMPOTENCY_WINDOW_MS_DEFAULT: Final = 7 * 24 * 60 * 60 * 1000
