"""Forked children that do a piece of work beside the server."""

from __future__ import annotations

import subprocess
import sys

# A server and a call of gRPC, then children that live as long as gRPC's threads need to notice closed descriptors.
BESIDE_GRPC = """
import asyncio, os, time
from gavel_server.process.fork import fork
import grpc

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            await channel.unary_unary("/service/Method")(b"", timeout=60)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error
        for _ in range(10):
            _, status = os.waitpid(fork(lambda: time.sleep(0.1)), 0)
            print(os.waitstatus_to_exitcode(status))
    await server.stop(0)

asyncio.run(main())
"""


def test_a_child_lives_beside_grpc() -> None:
    """A child of a process that serves and calls gRPC ends when its work is done: no thread of gRPC starts in it and aborts it."""
    run = subprocess.run([sys.executable, "-c", BESIDE_GRPC], capture_output=True, text=True, timeout=100, check=False)
    assert 10 * ["0"] == run.stdout.split(), run.stderr
