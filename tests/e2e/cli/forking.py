"""The program `gavel`, imported once and forked for each run: a run then costs its own work, not Python's start and a hundred imports.

Each run is a process of its own with its own arguments, environment, standard streams and exit status, and ends as any Python
process does. What the start itself does is looked at by the tests that run the installed program.

Started by `programs` with a socket; a request is a line of JSON, its answer the exit status of the run.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from typing import Any, Final

from gavel_server.cli.main import main

# What commands import when they run.
PRELOADED: Final = (
    "gavel_client",
    "gavel_rules.authoring.formatting",
    "gavel_rules.authoring.graph",
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
    """Run what is asked for, one after the other, until nobody asks any more."""
    with control.makefile("rw") as lines:
        for line in lines:
            run = os.fork()
            if not run:
                become(json.loads(line))
            _, status = os.waitpid(run, 0)
            print(os.waitstatus_to_exitcode(status), file=lines, flush=True)


def become(request: dict[str, Any]) -> None:
    """Be the program: its streams are files, SIGALRM ends it when it hangs."""
    for number, name in enumerate(request["streams"]):
        stream = os.open(name, os.O_RDWR)
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.alarm(request["seconds_max"])
    sys.argv[1:] = request["arguments"]
    main()


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
