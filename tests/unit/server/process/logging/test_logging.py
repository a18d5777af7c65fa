"""Log lines, and those of gRPC that are dropped."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Final

# In a process of its own: it sets the logging of the whole process.
_PROGRAM: Final = """
import logging
from gavel_server.process import logging as server_logging

log_lines = server_logging.Logging(level="info", as_json=False)
log_lines.start()
grpc = logging.getLogger("grpc._cython.cygrpc")
grpc.error("ExecuteBatchError raised in core by servicer method [%s]", "/gavel.v1.EventService/SubscribeEvents")
grpc.error("Exception in callback")
try:
    b"\\xff".decode()
except UnicodeDecodeError:
    grpc.exception("Invalid encoding on %s", b"\\xff")
log_lines.close()
"""
_HOSTILE: Final = """
import structlog
from gavel_server.process import logging as server_logging

log_lines = server_logging.Logging(level="info", as_json=False)
log_lines.start()
logger = structlog.get_logger("test")
logger.info("call.refused", problem="bus \\x1b[2J\\n2026-01-01 [info] forged \\u202e")
try:
    raise ValueError("\\x1b[2J")
except ValueError:
    logger.exception("call.failed")
log_lines.close()
"""


def test_line_about_a_caller_that_left_is_dropped() -> None:
    """gRPC's line about a caller that left is dropped, one about undecodable headers is short, and others are kept."""
    process = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ["Exception in callback", "a caller sent headers that are not UTF-8"] == [
        line.partition("] ")[2].strip() for line in process.stderr.splitlines()
    ]


def test_logger_is_the_one_of_grpc() -> None:
    """The filtered logger is the one of the gRPC library."""
    logger = importlib.import_module("grpc._cython.cygrpc").__dict__["_LOGGER"]
    assert "grpc._cython.cygrpc" == logger.name


def test_control_characters_are_escaped() -> None:
    """Control characters of callers' texts neither reach a terminal nor begin a line, in fields and in tracebacks."""
    process = subprocess.run([sys.executable, "-c", _HOSTILE], capture_output=True, text=True, timeout=60, check=True)
    assert r"problem='bus \x1b[2J\n2026-01-01 [info] forged \u202e'" in process.stderr.replace("\\\\", "\\")
    assert r"ValueError: \x1b[2J" in process.stderr
    assert process.stderr.replace("\n", "").isprintable()
