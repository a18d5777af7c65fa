"""The compiled build keeps memory intact (docs/performance.md#garbage-collection)."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.e2e.world import Server, run_servers
from tests.support.machine.checking_allocator import CHECKING
from tests.support.paths import ROOT

# Py_TPFLAGS_HAVE_GC of CPython's object.h.
HAVE_GC = 1 << 14
# CPython frees what is nested deeper than 50 levels later, and remembers it in the garbage collector's header.
FREE_NESTED_OBJECTS = """
from gavel_server.log import Record
for depth in range(40, 60):
    value = Record(1, b"envelope", b"hash")
    for _ in range(depth):
        value = [value]
    del value
"""


def test_the_garbage_collector_knows_every_class() -> None:
    """Every compiled class has the garbage collector's header, because the code that mypyc generates to free its objects writes to it."""
    modules = map(import_module, runpy.run_path(str(ROOT / "server/hatch_build.py"))["module_names"]())
    values = [(module.__name__, value) for module in modules for value in vars(module).values()]
    classes = [value for module, value in values if isinstance(value, type) and value.__module__ == module]
    assert len(classes) > 50
    assert [kind for kind in classes if not kind.__flags__ & HAVE_GC] == []


def test_deeply_nested_objects_are_freed() -> None:
    """Objects are freed at any depth of nesting without a fault, under an allocator that checks every block."""
    environment = {**os.environ, **CHECKING, "PYTHONPATH": str(ROOT / "build/compiled")}
    command = [sys.executable, "-c", FREE_NESTED_OBJECTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("installed", [False, True])
def test_end_to_end_tests_check_the_memory(tmp_path: Path, redis_url: str, installed: bool) -> None:
    """The servers of the end-to-end tests run under the checking allocator, and say where they crash, on the compiled build."""
    server = Server(tmp_path, redis_url=redis_url, installed=installed)
    with run_servers(server):
        variables = Path(f"/proc/{server.running.pid}/environ").read_text().split("\0")
    assert {f"{name}={value}" for name, value in CHECKING.items()} <= {*variables}
