"""How a command fails: one sentence for people that says what to do, and an exit status for programs.

CommandError does not derive from GavelServerError, whose module loads gRPC: `gavel --help` must answer at once.
"""

from __future__ import annotations

from typing import Final

EXIT_FAILURE: Final = 1
# Of `rules diff` and `rules simulate`, as in diff(1): the rule sets decide something differently.
EXIT_DIFFERENT: Final = EXIT_FAILURE
# Wrong usage, or a document that is not valid.
EXIT_INVALID: Final = 2
# Outcomes of a proposal, with --exit-code only. `gavel replay` uses 3 to 5.
EXIT_REJECTED: Final = 10
EXIT_NEEDS_HUMAN_REVIEW: Final = 11
EXIT_INTERRUPTED: Final = 130
# The status that shells report for a program ended by SIGPIPE: 128 and the signal's number.
EXIT_OUTPUT_CLOSED: Final = 141


class CommandError(Exception):
    """A command failed. The message says what failed, where, and what to do."""

    def __init__(self, message: str, exit_status: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class InvalidInputError(CommandError):
    """An argument or a document is not valid: exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_INVALID)


class OutputClosedError(CommandError):
    """The reader of the output has closed it; there is nobody to report to."""

    def __init__(self) -> None:
        super().__init__("", EXIT_OUTPUT_CLOSED)
