"""The entry point of `gavel`: runs one command and turns its failure into a sentence and an exit status."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import typer

from gavel_server.cli import options
from gavel_server.cli.app import PROGRAM, groups_with_command, select_commands
from gavel_server.cli.commands.completion import COMPLETION_VARIABLE
from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OUTPUT_CLOSED, CommandError, OutputClosedError
from gavel_server.cli.rendering import output

STANDARD_ERROR: Final = 2


def main() -> NoReturn:
    """Run the command that this process's arguments name, and exit with its status."""
    _occupy_standard_descriptors()
    if sys.stderr is None:
        # The caller has closed it. Messages for it must not land in stdout.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open for the life of the process
    if sys.stdout is None:
        # The result would be lost, or land in a file that is opened later.
        print(f"{PROGRAM}: standard output is closed; redirect it, if only to /dev/null", file=sys.stderr)
        sys.exit(EXIT_FAILURE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe that cannot encode a character gets its escape.
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] == ["serve"]:
        # Here, because a process that calls `run`, such as a test, must not be replaced.
        from gavel_server.process.allocator import restart_with_tunables

        restart_with_tunables()
    sys.exit(run(sys.argv[1:]))


def _occupy_standard_descriptors() -> None:
    """Open /dev/null as each standard descriptor that the caller has closed, so that no later file takes its number.

    Libraries and child processes assume that descriptors 0 to 2 are the standard streams; the event loop aborts the process if one
    of them is its own.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status: 0, 1 failure, 2 wrong usage or invalid document, others as the command documents."""
    # A shell that completes a line passes it in variables.
    commands = select_commands(arguments if COMPLETION_VARIABLE not in os.environ else ())
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]  # Typer has no other way without its options

        completion_init()
    try:
        status = commands(args=output.read_json_names(arguments), prog_name=PROGRAM, standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except (OutputClosedError, SystemExit) as error:
        # Typer exits with 1 when the reader of its help has closed the output.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The interpreter flushes it at exit and would complain.
        sys.stdout = None
        return EXIT_OUTPUT_CLOSED
    except Exception as error:
        if options.debugging() and not isinstance(error, typer.TyperException):
            raise
        message, status = _message_and_status(error)
        if message:
            # The message may quote a file or a response: escape what could control the terminal.
            plain = "\n".join(line if line.isprintable() else repr(line)[1:-1] for line in message.split("\n"))
            print(f"{PROGRAM}: {plain}", file=sys.stderr)
        return status


def _message_and_status(error: Exception) -> tuple[str, int]:
    if isinstance(error, typer.TyperException):
        return _usage_message(error), error.exit_code
    if isinstance(error, CommandError):
        return str(error), error.exit_status
    if (expected := _expected_failure(error)) is not None:
        return expected
    name = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"failed unexpectedly: {name}; this is a bug, repeat the command with --debug for the traceback", EXIT_FAILURE


def _usage_message(error: typer.TyperException) -> str:
    """Return what is wrong with the usage; nothing for a group without a command, whose help Typer has printed."""
    # Typer puts the exception's type in front of a validator's message.
    message = error.format_message().replace("Value error, ", "")
    if not message:
        return ""
    context = getattr(error, "ctx", None)
    unknown = re.match(r"No such command '([^']+)'\.", message)
    if unknown and getattr(context, "parent", None) is None and (groups := groups_with_command(unknown[1])):
        message = unknown[0] + " Did you mean " + " or ".join(f"'{group} {unknown[1]}'" for group in groups) + "?"
    if hasattr(error, "option_name") and hasattr(getattr(context, "command", None), "commands"):
        message += "; a command's options follow it"
    return f"{message} (see {context.command_path if context else PROGRAM} --help)"


def _expected_failure(error: Exception) -> tuple[str, int] | None:
    """Return message and status of an error of the packages below. They are imported here, so that only a failure pays for it."""
    from gavel_rules.errors import EngineBuildError

    if isinstance(error, EngineBuildError):
        # Nothing that imports the core can be imported.
        return str(error), EXIT_FAILURE

    from gavel_server.config import SettingsError
    from gavel_server.log.protocol import LogError

    if isinstance(error, SettingsError):
        return str(error), EXIT_INVALID
    if isinstance(error, LogError):
        return str(error), EXIT_FAILURE
    if isinstance(error, OSError) and error.strerror:
        # A full disk, a file without permission: the operating system's words say what to do.
        return f"{error.filename}: {error.strerror}" if error.filename else f"cannot write the output: {error.strerror}", EXIT_FAILURE
    return None
