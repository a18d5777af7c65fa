"""How a command fails: one sentence for people, what to do about it, and an exit status for machines."""

from __future__ import annotations

from typing import Final

EXIT_FAILURE: Final = 1
# Wrong usage, or a document that is not valid.
EXIT_INVALID: Final = 2
EXIT_INTERRUPTED: Final = 130
# What shells say of a program that SIGPIPE ended: 128 and its number.
EXIT_OUTPUT_CLOSED: Final = 141


class CommandError(Exception):
    """A command cannot do what it was asked; the message says what, where and what to do."""

    def __init__(self, message: str, exit_status: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class InvalidInputError(CommandError):
    """An argument or a document is not valid: exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_INVALID)


class OutputClosedError(CommandError):
    """Whoever read the output has had enough; nobody is left to tell."""

    def __init__(self) -> None:
        super().__init__("", EXIT_OUTPUT_CLOSED)
