"""Log lines: what is said, and what is not worth a line."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

# In a process of its own: it sets the logging of the whole process.
_PROGRAM = """
import logging
from gavel_server import telemetry

telemetry.configure(level="info", as_json=False)
grpc = logging.getLogger("grpc._cython.cygrpc")
grpc.error("ExecuteBatchError raised in core by servicer method [%s]", "/gavel.v1.EventService/SubscribeEvents")
grpc.error("Exception in callback")
"""

# What gRPC says while a front runs, whose server logs JSON.
_FRONT = """
import logging, sys
from gavel_server import telemetry
from gavel_server.front import process

class Saying:
    def __init__(self, listen, inner):
        pass

    async def run(self, end):
        logging.getLogger("grpc._cython.cygrpc").error("Exception in callback")
        logging.getLogger("grpc._cython.cygrpc").info("nothing new")

telemetry.configure(level="warning", as_json=True)
logging.getLogger().handlers.clear()
process.Front = Saying
sys.argv[1:] = [str(process.socket.socketpair()[0].detach()), "listen", "inner"]
process.main()
"""


def test_a_caller_who_leaves_while_he_is_answered_is_no_error() -> None:
    """What gRPC says of a caller who has gone is dropped, whatever else it says is a line."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ["Exception in callback"] == [line.partition("] ")[2].strip() for line in done.stderr.splitlines()]


def test_the_logger_is_that_of_grpc() -> None:
    """The name that is filtered is that of the library's own logger."""
    logger = importlib.import_module("grpc._cython.cygrpc").__dict__["_LOGGER"]
    assert "grpc._cython.cygrpc" == logger.name


def test_a_front_logs_as_its_server_does() -> None:
    """What a library says in the process that speaks gRPC is a line of the server's form, and of its level."""
    done = subprocess.run([sys.executable, "-c", _FRONT], capture_output=True, text=True, timeout=60, check=True)
    assert [("error", "Exception in callback")] == [(line["level"], line["event"]) for line in map(json.loads, done.stderr.splitlines())]
