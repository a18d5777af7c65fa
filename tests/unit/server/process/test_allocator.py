"""The settings of the memory allocator."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from gavel_server.process.allocator import TUNABLES, TUNABLES_VARIABLE

PROGRAM = """
from pathlib import Path
from gavel_server.process.allocator import return_large_blocks

def resident_bytes():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

return_large_blocks()
bytes(2_000_000)  # the default threshold follows blocks that are freed
before = resident_bytes()
large, small = [], []
for _ in range(100):
    large.append(b"x" * 1_000_000)
    small.append(b"x" * 50_000)
assert resident_bytes() - before > 90_000_000
del large
print(resident_bytes() - before)
"""


THREADS = """
import ctypes, re, sys, threading
from pathlib import Path
from gavel_server.process.allocator import return_large_blocks

return_large_blocks()
everyone_has_allocated = threading.Barrier(7)
threads = [threading.Thread(target=lambda: (bytes(50_000), everyone_has_allocated.wait())) for _ in range(6)]
for thread in threads:
    thread.start()
everyone_has_allocated.wait()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(sys.argv[1].encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
print(len(re.findall("<heap nr=", Path(sys.argv[1]).read_text())))
"""


# All blocks have one size, so that it does not matter which of them fill gaps in the heap that the imports left. The last block lives on:
# without it, the allocator would return the end of the heap by itself. The program ends with an error if the pages do not go back.
FREE_PAGES = """
import asyncio
from pathlib import Path
from gavel_server.process import allocator

def resident_bytes():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

async def main():
    allocator.return_large_blocks()
    allocator.RETURN_SECONDS = 0.05
    before = resident_bytes()
    blocks = [b"x" * 100_000 for _ in range(1_000)]
    live = blocks[9::10]
    del blocks
    held = resident_bytes() - before
    returning = asyncio.create_task(allocator.return_free_pages_forever())
    async with asyncio.timeout(60):
        while resident_bytes() - before > held / 4:
            await asyncio.sleep(0.05)
    returning.cancel()
    print(held)

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of the GNU C library")
def test_large_blocks_are_returned() -> None:
    """Memory of large blocks goes back to the system when they are freed, whatever small blocks lie between them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a function of the GNU C library")
def test_free_pages_are_returned_when_the_process_is_quiet() -> None:
    """Pages that are free between blocks that live on go back to the system once the process has nothing to do."""
    done = subprocess.run([sys.executable, "-c", FREE_PAGES], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 60_000_000, "the blocks that live on keep the free pages"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of the GNU C library")
def test_threads_share_heaps(tmp_path: Path) -> None:
    """Threads that allocate share two heaps, each of which keeps free blocks."""
    done = subprocess.run([sys.executable, "-c", THREADS, tmp_path / "heaps"], capture_output=True, text=True, check=True)
    assert 2 >= int(done.stdout)


RESTART = """
import os, sys
from gavel_server.process.allocator import restart_with_tunables

print(os.getpid(), flush=True)
sys.executable = os.environ.get("INTERPRETER", sys.executable)
restart_with_tunables()
print(os.environ.get("GLIBC_TUNABLES"), sys.argv[1:], sys.flags.utf8_mode)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of the GNU C library")
@pytest.mark.parametrize("chosen", [None, "glibc.malloc.check=0"])
def test_a_program_starts_again_with_tunables(chosen: str | None) -> None:
    """A program goes on as the same process, with its arguments and the interpreter's options, unless its caller chose tunables."""
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES_VARIABLE}
    if chosen is not None:
        environment[TUNABLES_VARIABLE] = chosen
    command = [sys.executable, "-X", "utf8", "-c", RESTART, "serve", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    *starts, last = done.stdout.splitlines()
    assert 1 == len(set(starts)), "another process"
    assert (1 if chosen else 2) == len(starts)
    assert f"{chosen or TUNABLES} ['serve', '--listen', '127.0.0.1:0'] 1" == last


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of the GNU C library")
def test_a_program_that_loses_the_variable_starts_once_more_only(tmp_path: Path) -> None:
    """A program whose environment is cleaned at its start goes on without tunables."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec env -u {TUNABLES_VARIABLE} {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES_VARIABLE} | {"INTERPRETER": str(interpreter)}
    done = subprocess.run([sys.executable, "-c", RESTART], capture_output=True, text=True, check=True, env=environment, timeout=60)
    *starts, last = done.stdout.splitlines()
    assert (2, 1) == (len(starts), len(set(starts)))
    assert "None [] 0" == last
