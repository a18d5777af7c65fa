"""Wake-ups of the event loop by gRPC."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, socket
import grpc
from gavel_server.rpc.wakeups import read_all_wakeups

async def main():
    watched = []
    loop = asyncio.get_running_loop()
    add_reader = loop.add_reader
    loop.add_reader = lambda file, *rest: (watched.append(file), add_reader(file, *rest))
    pair = socket.socketpair
    read_all_wakeups()
    assert pair is socket.socketpair
    async with grpc.aio.insecure_channel("unix:/nobody") as channel:
        try:
            await channel.unary_unary("/a.b/C")(b"", timeout=0.1)
        except grpc.RpcError:
            pass
    end = watched[0]
    # grpc.aio holds the other end; another pair of the same kind shows what a read takes.
    ours, theirs = socket.socketpair()
    theirs.send(b"1" * 500)
    print(len(type(end).recv(type(end)(fileno=ours.detach()), 1)))

asyncio.run(main())
"""


def test_a_pass_of_the_loop_reads_all_wakeups() -> None:
    """The loop reads all bytes with which gRPC has woken it, not one in each pass: else gRPC's thread waits for hundreds of passes."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert "500" == done.stdout.strip(), done.stderr
