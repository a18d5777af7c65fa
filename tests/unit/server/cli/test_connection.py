"""The errors of failed calls, and interrupts."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress

from gavel_client import GavelError, Violation
from gavel_server.cli.connection import command_error
from grpc import StatusCode


def test_violations_of_a_rule_set() -> None:
    """A server's violations of a rule set are shown like the compiler's messages, with their places."""
    violations = (Violation("document:3:9", "wrong-type: no"), Violation("document:7:1", "unknown-key: no"))
    error = GavelError(StatusCode.INVALID_ARGUMENT, "INVALID_RULE_SET", "document:3:9: no", violations)
    shown = command_error(error, "here", "default", "tiny.yaml")
    assert (2, ["tiny.yaml:3:9: wrong-type: no", "tiny.yaml:7:1: unknown-key: no"]) == (shown.exit_status, str(shown).splitlines()[1:])


def test_violations() -> None:
    """Every violation of a request is shown with its field."""
    violations = (Violation("proposal.risk", "must be 0..1"), Violation("subject", "is required"))
    error = GavelError(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "proposal.risk must be 0..1 (and 1 more)", violations)
    shown = command_error(error, "here", "default")
    assert 2 == shown.exit_status
    assert ["  proposal.risk: must be 0..1", "  subject: is required"] == str(shown).splitlines()[1:]


def test_unknown_bus() -> None:
    """The message on an unknown bus names the bus and the server, and says what to do; exit status 1."""
    error = command_error(GavelError(StatusCode.NOT_FOUND, "BUS_NOT_FOUND", "bus x does not exist"), "here", "x")
    assert 1 == error.exit_status
    assert "the server at here has no bus x (BUS_NOT_FOUND); check --bus or GAVEL_BUS, or create it: gavel bus create x" == str(error)


def test_interrupt_shows_the_cursor() -> None:
    """An interrupt leaves a terminal with the cursor that a progress bar has hidden."""
    script = """
import signal
from gavel_server.cli.connection import _exit_on_interrupt
from gavel_server.cli.rendering.progress import Passes

with _exit_on_interrupt(), Passes(["one"]):
    signal.raise_signal(signal.SIGINT)
"""
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen([sys.executable, "-c", script], stderr=theirs, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(theirs)
        with suppress(OSError):  # the terminal's other side is closed
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert (130, True) == (process.returncode, shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"))
