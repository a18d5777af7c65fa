"""The program `gavel`, imported once and forked for each run: a run then costs its own work, not Python's start and hundreds of imports.

Each run is a process of its own with its own arguments, environment, standard streams and exit status; it takes signals, starts
children and ends as any Python process does. What the start itself does is looked at by the tests that run the installed program.
All runs of one of these have Python's hashes in common, which the installed program makes anew at each start.

Started by `runs` with a socket. A request is JSON, and comes with the run's three standard streams and a socket, which is answered
with the run's process id and later with its exit status. Whatever still runs when nobody can ask any more is killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, Final

from gavel_server.cli.main import main

REQUEST_BYTES_MAX: Final = 128 * 1024
STREAMS: Final = 3
# What commands import when they run.
PRELOADED: Final = (
    "gavel_client",
    "gavel_rules.authoring.formatting",
    "gavel_rules.authoring.graph",
    "gavel_server.bootstrap",
    "gavel_server.cli.author_reports",
    "gavel_server.cli.impact",
    "gavel_server.cli.proposing",
    "gavel_server.cli.rule_analysis",
    "gavel_server.cli.offline",
    "gavel_server.replaying",
    "google.protobuf.json_format",
    "rich.progress",
    "rich.table",
)


def serve(control: socket.socket) -> None:
    """Start what is asked for, and tell how each run ends, until nobody asks any more."""
    runs: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells when it has ended
    asking = select.poll()
    asking.register(control, select.POLLIN)
    while True:
        for descriptor, _ in asking.poll():
            if descriptor in runs:
                asking.unregister(descriptor)
                run, asker = runs.pop(descriptor)
                os.close(descriptor)
                with asker:
                    tell(asker, os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]))
                continue
            request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, STREAMS + 1)
            if not request:
                for run, _ in runs.values():
                    os.kill(run, signal.SIGKILL)
                return
            asker = socket.socket(fileno=descriptors.pop())
            run = os.fork()
            if not run:
                for kept in (control, asker, *(other for _, other in runs.values())):
                    kept.close()
                for watched in runs:
                    os.close(watched)
                become(json.loads(request), descriptors)
            tell(asker, run)
            for stream in descriptors:
                os.close(stream)
            watched = os.pidfd_open(run)
            runs[watched] = run, asker
            asking.register(watched, select.POLLIN)


def tell(asker: socket.socket, number: int) -> None:
    """Send a number to whoever asked for a run, if he is still there."""
    try:
        asker.send(b"%d" % number)
    except BrokenPipeError:
        return


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Be the program."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # As Python opens them at its start.
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=errors, closefd=False, buffering=1 if number == 2 else -1)  # noqa: SIM115
        for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    main()


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    # No run looks through what all of them share: that would copy it.
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
