"""A command that stands for a run of a `forking` process: it has the run's standard streams, signals and exit status.

It imports little, because it starts hundreds of times. Its arguments are the abstract address of the process, the program, and the
arguments of that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Ask for the run, pass signals on to it, and end as it ends."""
    address, program, *arguments = sys.argv[1:]
    request = {"program": program, "arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{address}")
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        run = int(connection.recv(64))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(run, number))
        status = int(connection.recv(64))
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


main()
