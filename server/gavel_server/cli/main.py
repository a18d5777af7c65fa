"""`gavel`, the program: gathers the commands, and turns whatever goes wrong in one into a sentence and an exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final, NoReturn

import typer

from gavel_server.cli import options
from gavel_server.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_INVALID, CommandError, OutputClosedError

PROGRAM: Final = "gavel"
STANDARD_ERROR: Final = 2  # the last of the three descriptors that every process has

app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: in a frame, option names that do not fit are cut.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        from gavel_server.build import build

        print(f"{PROGRAM} {version(PROGRAM)} ({build()})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and whether it is the compiled build.")
    ] = False,
) -> None:
    """Deterministic arbitration for systems of LLM agents."""


def main() -> NoReturn:
    """Run the command of this process's arguments and exit with its status."""
    _occupy_standard_descriptors()
    if sys.stderr is None:
        # Closed by the caller. What is said to it must not land in stdout.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        # Nobody would hear the result, and a file that is opened later could get it.
        print(f"{PROGRAM}: standard output is closed; send it somewhere, if only to /dev/null", file=sys.stderr)
        sys.exit(EXIT_FAILURE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe that cannot show a character gets its escape rather than a failure.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def _occupy_standard_descriptors() -> None:
    """Let nothing that is opened later be standard input, output or error, where the caller has closed these.

    Libraries and child processes take the first three descriptors to be that; the event loop ends the process if one is its own.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit status: 0, 1 failure, 2 wrong usage or invalid document, others as the command says."""
    try:
        status = app(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except OutputClosedError as error:
        # The interpreter must not complain about it when it flushes.
        sys.stdout = None
        return error.exit_status
    except Exception as error:
        if options.debugging() and not isinstance(error, typer.TyperException):
            raise
        message, status = _explained(error)
        if message:
            # It may quote a file or an answer: no terminal shall obey what stands there.
            plain = "\n".join(line if line.isprintable() else repr(line)[1:-1] for line in message.split("\n"))
            print(f"{PROGRAM}: {plain}", file=sys.stderr)
        return status


def _explained(error: Exception) -> tuple[str, int]:
    if isinstance(error, typer.TyperException):
        if not error.format_message():
            return "", error.exit_code  # a group without a command: its help was printed
        context = getattr(error, "ctx", None)
        # Typer's validators say of themselves what they are.
        said = error.format_message().replace("Value error, ", "")
        if hasattr(error, "option_name") and hasattr(getattr(context, "command", None), "commands"):
            said += "; a command's options follow it"
        return f"{said} (see {context.command_path if context else PROGRAM} --help)", error.exit_code
    if isinstance(error, CommandError):
        return str(error), error.exit_status
    if (known := _known(error)) is not None:
        return known
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"failed unexpectedly: {what}; this is a bug, repeat the command with --debug for the traceback", EXIT_FAILURE


def _known(error: Exception) -> tuple[str, int] | None:
    """Errors of the packages below, whose messages say what to do. Imported here: only a failure pays for it."""
    from gavel_server.config import SettingsError
    from gavel_server.log.protocol import LogError

    if isinstance(error, SettingsError):
        return str(error), EXIT_INVALID
    if isinstance(error, LogError):
        return str(error), EXIT_FAILURE
    if isinstance(error, OSError) and error.strerror:
        # A full disk, a file that may not be read: the machine's fault, and said in its words.
        return f"{error.filename}: {error.strerror}" if error.filename else f"cannot write the output: {error.strerror}", EXIT_FAILURE
    return None


def _gather() -> None:
    from gavel_server.cli import (
        authoring,
        consuming,
        demonstrating,
        proposing,
        publishing,
        reading,
        replaying,
        reviewing,
        rollout,
        rule_analysis,
        rules,
        serving,
    )

    for name, command in (
        ("serve", serving.serve),
        ("demo", demonstrating.demo),
        ("propose", proposing.propose),
        ("preflight", proposing.preflight),
        ("publish", publishing.publish),
        ("signal", publishing.signal),
        ("reviews", reviewing.reviews),
        ("revoke", reviewing.revoke),
        ("trace", reading.trace),
        ("projection", reading.projection),
        ("status", reading.status),
        ("replay", replaying.replay),
        ("fdr", consuming.fdr),
        ("executor", consuming.executor),
    ):
        app.command(name)(command)
    app.add_typer(reading.log, name="log")
    app.add_typer(reviewing.review, name="review")
    rules.rules.command("lint")(authoring.lint)
    rules.rules.command("fmt")(authoring.fmt)
    rules.rules.command("test")(authoring.run_tests)
    rules.rules.command("explain")(authoring.explain)
    rules.rules.command("schema")(authoring.schema)
    rules.rules.command("simulate")(rollout.simulate)
    rules.rules.command("shadow")(rollout.shadow)
    rules.rules.command("rollback")(rollout.rollback)
    rules.rules.command("diff")(rule_analysis.diff)
    rules.rules.command("graph")(rule_analysis.graph)
    rules.rules.command("bench")(rule_analysis.bench)
    app.add_typer(rules.rules, name="rules")


_gather()
