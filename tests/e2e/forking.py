"""Programs, imported once and forked for each run, which saves Python's start and hundreds of imports.

A program is a module with a function `main`: `gavel`, a worker of the server, or one of the tests' own. Each run is a process with its
own arguments, environment, standard streams and exit status. It takes signals, starts children and ends as any Python process does.
Tests that run the installed program cover the start itself. All runs share one hash seed, unlike runs of the installed program.

`runs` starts this process with two sockets. A request on the first is JSON with four descriptors: the run's three standard streams and
a socket that gets the run's process id and later its exit status. When the requesting process ends, the remaining runs are killed.
The second one listens for `relay`, a command that stands for a run. A relay sends its request, with its standard streams, on the socket
that gets these numbers, and when it ends first, its run is killed. Servers that are forked here start their workers so.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Final, NoReturn

# Same as in process/allocator.py; importing that module here costs too much.
TUNABLES_VARIABLE: Final = "GLIBC_TUNABLES"
REQUEST_BYTES_MAX: Final = 128 * 1024
STREAMS: Final = 3
RELAY: Final = Path(__file__).with_name("relay.py")
# The worker programs of a server, by the module whose `_COMMAND` starts each.
WORKERS: Final = {
    "gavel_server.compile.compiler": "gavel_server.compile.worker",
    "gavel_server.history.replay_process": "gavel_server.history.replay_worker",
    "gavel_server.index.event_index": "gavel_server.index.worker",
}
# Python's exit status if it cannot flush the standard streams.
EXIT_OUTPUT_LOST: Final = 120
# Modules that commands import when they run.
PRELOADED: Final = (
    "gavel_client",
    "gavel_rules.authoring.format",
    "gavel_rules.authoring.graph",
    "gavel_server.bootstrap.process",
    "gavel_server.cli.main",
    "gavel_server.cli.rendering.suite_report",
    "gavel_server.identity.authenticator",
    "gavel_server.cli.rendering.simulation",
    "gavel_server.cli.rendering.decision",
    "gavel_server.cli.offline_log",
    *WORKERS,
    *WORKERS.values(),
    "gavel_server.history.replay",
    "google.protobuf.json_format",
    "rich.progress",
    "rich.table",
)


def relay_command(address: str, program: str) -> tuple[str, ...]:
    """Return the command that stands for a run of a program, for a process that listens at an abstract address."""
    return sys.executable, "-I", "-S", str(RELAY), address, program


def serve(control: socket.socket, listener: socket.socket) -> None:
    """Start a run for each request and report its exit status, until the control socket is closed."""
    runs: dict[int, tuple[int, socket.socket]] = {}  # process id and reply socket, by the process's pidfd
    relays: dict[int, int] = {}  # process id, by the descriptor of the reply socket
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(listener, select.POLLIN)

    def start(request: bytes, streams: list[int], reply: socket.socket) -> int:
        document = json.loads(request)
        importlib.import_module(document["program"])
        run = os.fork()
        if not run:
            for open_descriptor in (control, reply, *(other for _, other in runs.values())):
                open_descriptor.close()
            for pidfd in runs:
                os.close(pidfd)
            for module, worker in WORKERS.items():
                vars(sys.modules[module])["_COMMAND"] = relay_command(address_of(listener), worker)
            listener.close()
            run_program(document, streams)
        send_number(reply, run)
        for stream in streams:
            os.close(stream)
        pidfd = os.pidfd_open(run)
        runs[pidfd] = run, reply
        poller.register(pidfd, select.POLLIN)
        return run

    while True:
        # One at a time: handling an event may close the descriptor of another one.
        descriptor, _ = poller.poll()[0]
        if descriptor in runs:
            poller.unregister(descriptor)
            run, reply = runs.pop(descriptor)
            os.close(descriptor)
            if relays.pop(reply.fileno(), None) is not None:
                poller.unregister(reply)
            with reply:
                send_number(reply, os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]))
        elif descriptor in relays:
            poller.unregister(descriptor)
            os.kill(relays.pop(descriptor), signal.SIGKILL)
        elif descriptor == listener.fileno():
            reply, _ = listener.accept()
            request, streams, _, _ = socket.recv_fds(reply, REQUEST_BYTES_MAX, STREAMS)
            if request:
                relays[reply.fileno()] = start(request, streams, reply)
                poller.register(reply, 0)
        else:
            request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, STREAMS + 1)
            if not request:
                for run, _ in runs.values():
                    os.kill(run, signal.SIGKILL)
                return
            *streams, end = descriptors
            start(request, streams, socket.socket(fileno=end))


def address_of(listener: socket.socket) -> str:
    """Return the abstract address of a socket, without the zero byte in front."""
    address: bytes = listener.getsockname()
    return address[1:].decode()


def send_number(reply: socket.socket, number: int) -> None:
    """Send a number on the reply socket of a run, unless its reader has closed it, with or without reading the number before."""
    try:
        reply.send(b"%d" % number)
    except ConnectionError:
        return


def run_program(request: dict[str, Any], streams: list[int]) -> None:
    """Turn this process into a run of the program. Does not return."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # As Python opens them when it starts.
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=errors, closefd=False, buffering=1 if number == 2 else -1)  # noqa: SIM115
        for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )
    os.chdir(request["directory"])
    # Without them a server would replace this process.
    tunables = {name: value for name, value in os.environ.items() if name == TUNABLES_VARIABLE}
    os.environ.clear()
    os.environ.update(tunables | request["environment"])
    sys.argv[1:] = request["arguments"]
    try:
        leave(sys.modules[request["program"]].main())
    except SystemExit as end:
        leave(end.code)


def leave(status: object) -> NoReturn:
    """End this process as Python does, but without clearing its modules: that would copy all pages that the runs share."""
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # joins the threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                status = EXIT_OUTPUT_LOST
    os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    # gRPC reads it when it is loaded, which is before `gavel serve` sets it.
    os.environ["GRPC_VERBOSITY"] = "NONE"
    sys.path.append(str(Path(__file__).parents[2]))  # for programs of the tests
    for name in PRELOADED:
        importlib.import_module(name)
    # Tests leave no processor idle, so an index that is written in idle time would not be written.
    vars(sys.modules["gavel_server.index.worker"])["use_idle_time"] = lambda: None
    # Keep collections in a run from touching, and so copying, the pages that all runs share.
    gc.collect()
    gc.freeze()
    serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
