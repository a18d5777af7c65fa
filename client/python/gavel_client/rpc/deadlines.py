"""The default deadlines of calls, retries and pauses included."""

from __future__ import annotations

from typing import Final

READ_TIMEOUT_MS: Final = 10_000
# A proposal in a contest is decided when the contest closes. Its call needs a deadline longer than the contest's window.
WRITE_TIMEOUT_MS: Final = 30_000
# The server compiles a rule set before it responds.
COMPILE_TIMEOUT_MS: Final = 60_000
# Before a rule set with new counters comes into force, the server reads the whole log. It goes on if the call ends before: try again.
ACTIVATION_TIMEOUT_MS: Final = 300_000
# The first proof of a long log reads the whole log.
PROOF_TIMEOUT_MS: Final = 300_000
# An audit reads the log from its start, twice if it makes decisions again.
AUDIT_TIMEOUT_MS: Final = 300_000
# The longest wait of one WaitDecision.
WAIT_TIMEOUT_MS: Final = 60_000
