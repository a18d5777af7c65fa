"""The demo's timeline: the log, event by event, with a sentence before each step that explains it."""

from __future__ import annotations

import textwrap
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.kinds import FACT_DERIVATION_REACTOR
from gavel_rules.text import printable

from gavel_server.cli.rendering.events import category_name, describe, evidence_lines, verdict_line
from gavel_server.cli.rendering.output import console, text_width

_KINDS: Final = {
    "FACT": ("fact", "cyan"),
    "PROPOSAL": ("proposal", "blue"),
    "DECISION": ("decision", "bold"),
    "EXECUTION": ("execution", "magenta"),
    "OBSERVATION": ("observation", "cyan"),
    "TOOL_CALL": ("tool call", "dim"),
    "TOOL_RESULT": ("tool result", "dim"),
    "AGENT_DIAGNOSTIC": ("notice", "yellow"),
}
_OUTCOME_STYLES: Final = {
    decision_pb2.OUTCOME_APPROVED: "bold green",
    decision_pb2.OUTCOME_REJECTED: "bold red",
    decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW: "bold yellow",
}
# The columns of numbers, kinds and producers have these widths; the description takes the rest.
_NUMBER_WIDTH: Final = 5
_KIND_WIDTH: Final = 11
_PRODUCER_WIDTH: Final = 13
_INDENT: Final = _NUMBER_WIDTH + 2 + _KIND_WIDTH + 1 + _PRODUCER_WIDTH + 1
# Short names of producers whose ids are too long for their column.
_SHORT_NAMES: Final = {FACT_DERIVATION_REACTOR: "fact reactor"}


class Timeline:
    """Prints headings, sentences and events, each event with its sequence number."""

    def heading(self, text: str) -> None:
        """Print the heading of a chapter."""
        console().print()
        console().print(text, style="bold underline")

    def sentence(self, text: str) -> None:
        """Print a sentence that explains the next step."""
        console().print()
        for line in textwrap.wrap(text, text_width()):
            console().print(line, style="italic")

    def event(self, envelope: Envelope) -> None:
        """Print one event of the log."""
        kind, style = _KINDS.get(category_name(envelope), ("event", ""))
        producer = _SHORT_NAMES.get(envelope.producer.id, printable(envelope.producer.id))
        if not envelope.HasField("decision"):
            self._row(str(envelope.sequence_number), kind, producer, describe(envelope), kind_style=style)
            return
        decision = envelope.decision
        style = _OUTCOME_STYLES.get(decision.outcome, style)
        self._row(str(envelope.sequence_number), kind, producer, verdict_line(decision), kind_style=style, description_style=style)
        label = "retry hint:" if decision.retry_hint.fact_requirements else ""
        for line in evidence_lines(decision):
            self._row("", "", label, line)

    def _row(self, number: str, kind: str, producer: str, description: str, *, kind_style: str = "", description_style: str = "") -> None:
        from rich.text import Text

        first, *rest = textwrap.wrap(description, max(text_width() - _INDENT, 20)) or [""]
        console().print(
            Text.assemble(
                f"{number:>{_NUMBER_WIDTH}}  ",
                (f"{kind:<{_KIND_WIDTH}} ", kind_style),
                f"{producer:<{_PRODUCER_WIDTH}} ",
                (first, description_style),
            ),
            soft_wrap=True,
        )
        for line in rest:
            console().print(Text(" " * _INDENT + line, style=description_style), soft_wrap=True)
