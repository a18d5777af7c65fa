"""Diagnostics of documents: mistakes and warnings, each with its place in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gavel_rules.errors import GavelRulesError
from gavel_rules.text import clip

MESSAGES_MAX: Final = 1_000
# Characters of a message, and of a suggestion. They quote the document, and a thousand of them may quote the same long name.
MESSAGE_LENGTH_MAX: Final = 2_000

Path = tuple[str | int, ...]  # the keys and indexes that lead from a document's root to one of its parts


@dataclass(frozen=True, slots=True, order=True)
class DocumentMessage:
    """One mistake or warning. Lines and columns count from 1, columns in characters."""

    line: int
    column: int
    code: str  # one of `diagnostic_codes`
    message: str
    suggestion: str = ""

    def format(self, filename: str) -> str:
        """Return "file:line:column: code: message (suggestion)" as one line; characters that cannot be printed are escaped."""
        text = f"{filename}:{self.line}:{self.column}: {self.code}: {self.message}"
        text = f"{text} ({self.suggestion})" if self.suggestion else text
        return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class Messages:
    """Collects the diagnostics of a document; equal ones count once."""

    def __init__(self) -> None:
        self._messages: set[DocumentMessage] = set()

    def add(self, place: tuple[int, int], code: str, message: str, suggestion: str = "") -> None:
        """Record a diagnostic at a (line, column)."""
        self._messages.add(DocumentMessage(*place, code, clip(message, MESSAGE_LENGTH_MAX), clip(suggestion, MESSAGE_LENGTH_MAX)))

    def __len__(self) -> int:
        return len(self._messages)

    def sorted(self) -> tuple[DocumentMessage, ...]:
        """Return the diagnostics sorted by place; beyond `MESSAGES_MAX`, the first ones and how many were left out."""
        messages = sorted(self._messages)
        if len(messages) <= MESSAGES_MAX:
            return tuple(messages)
        last = messages[MESSAGES_MAX - 1]
        more = f"{len(messages) - MESSAGES_MAX} more mistakes follow"
        return (*messages[:MESSAGES_MAX], DocumentMessage(last.line, last.column, "more-mistakes", more, "correct these first"))


class DocumentError(GavelRulesError):
    """A document is invalid. `messages` holds every mistake, sorted by place."""

    def __init__(self, messages: tuple[DocumentMessage, ...]) -> None:
        super().__init__("\n".join(message.format("<document>") for message in messages))
        self.messages = messages
