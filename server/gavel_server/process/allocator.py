"""Settings of the C library's memory allocator for a server."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from typing import Final

# Read by the GNU C library before a program runs (its manual, "Memory Allocation Tunables"): docs/performance.md#the-c-librarys-allocator
TUNABLES_VARIABLE: Final = "GLIBC_TUNABLES"
TUNABLES: Final = "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=64"
# The interpreter's option -X of a program that has been started again. The variable alone is no proof: for a program with privileges of its
# own, such as a file capability, the loader removes it.
_RESTARTED: Final = "gavel-restarted"

# Blocks of this size and more are mapped one by one. They go back to the system as soon as they are free.
MAPPED_BYTES_MIN: Final = 256 * 1024
# The size of the free end of the heap that is kept. A smaller one would grow and shrink with every batch.
HEAP_END_BYTES_MAX: Final = 8 * 1024 * 1024
# GNU's allocator gives each thread a heap of its own, up to eight for each processor, and each heap keeps free blocks. Threads of the
# server rarely allocate at once, since one holds the interpreter's lock.
HEAPS_MAX: Final = 2
# How often free pages within the heap go back, if the process took less than this share of a processor meanwhile. A server that is busy
# every few seconds would only get the same pages again: with 5 s and a quarter, that took up to a seventh of its decisions.
RETURN_SECONDS: Final = 15.0
QUIET_SHARE: Final = 0.1

# malloc.h of the GNU C library.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def restart_with_tunables() -> None:
    """Replace this process by the same program with TUNABLES. Return if the variable is set already, or the program cannot be replaced.

    Only GNU's C library has tunables. The process keeps its number, its arguments and its standard streams.
    """
    if TUNABLES_VARIABLE in os.environ or _RESTARTED in sys._xoptions or not _is_glibc() or not sys.executable:
        return
    os.environ[TUNABLES_VARIABLE] = TUNABLES
    sys.stdout.flush()
    # A process that may not start programs goes on as it is.
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, "-X", _RESTARTED, *sys.orig_argv[1:]])  # noqa: S606  # this very program


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):  # not on Unix, or another C library
        return False


def return_large_blocks() -> None:
    """Make the allocator return the memory of large messages to the system, and keep few heaps. Call once, at start-up.

    Only GNU's C library is affected.

    By default, once a large block was freed, GNU's allocator takes blocks of its size (at most 32 MiB) from the heap. A small block at
    the end of the heap then keeps all of them: after events of 1 MiB for 400 subscribers, a server kept 1.7 GB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, HEAP_END_BYTES_MAX)
        mallopt(_M_ARENA_MAX, HEAPS_MAX)


async def return_free_pages_forever() -> None:
    """Return free pages within the heap to the system whenever the process is quiet. Only GNU's C library is affected.

    The allocator returns the end of the heap alone, and small blocks that live on are spread over the heap of a busy time. It takes a few
    milliseconds to return the pages between them.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    used_seconds = time.process_time()
    while True:
        await asyncio.sleep(RETURN_SECONDS)
        before, used_seconds = used_seconds, time.process_time()
        if trim is not None and used_seconds - before < QUIET_SHARE * RETURN_SECONDS:
            trim(0)
