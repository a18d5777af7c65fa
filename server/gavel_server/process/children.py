"""The environment and the priorities of child processes.

A child gets the variables that programs need, and none of Gavel's settings. Only children that open logs get credentials, those of stores.
Children that compute lower their priority, so that decisions go first, and offer themselves if memory runs out.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

# How programs are found, how text and time are written, and how the interpreter, the C library and Go's runtime are tuned and debugged.
_NAMES: Final = frozenset({"PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "LANG"})
_NAMES_PYTHON: Final = frozenset({"PYTHONPATH", "PYTHONMALLOC", "PYTHONFAULTHANDLER", "PYTHONHASHSEED"})
_NAMES_GO: Final = frozenset({"GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "GODEBUG"})
_PREFIXES: Final = ("LC_", "MALLOC_")
# Where the libraries of PostgreSQL and of object stores find addresses, proxies, credentials and trusted authorities.
_NAMES_PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})  # in either case
_NAMES_STORES: Final = frozenset({"HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"})
_PREFIXES_STORES: Final = ("PG", "KRB5", "AWS_", "FSSPEC_")
# Where Linux has autogroups, a session has one weight, and niceness counts within it only: sched(7), "The autogroup feature".
_AUTOGROUP: Final = Path("/proc/self/autogroup")
# Linux lets users without privileges change one session's weight in a tenth of a second, all users together (EAGAIN, BlockingIOError).
_AUTOGROUP_TRIES: Final = 5
_AUTOGROUP_PAUSE_SECONDS: Final = 0.1
_NICENESS_MAX: Final = 19
# proc_pid_oom_score_adj(5): from -1000 to 1000; a process of half the machine's memory has 500 without it.
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_OOM_SCORE_OF_CHILDREN: Final = 500


def child_environment() -> dict[str, str]:
    """Return the environment for a child process."""
    return {name: value for name, value in os.environ.items() if name in _NAMES | _NAMES_PYTHON | _NAMES_GO or name.startswith(_PREFIXES)}


def log_reader_environment() -> dict[str, str]:
    """Return the environment for a child process that opens the log and its archive as its server does."""
    return {**child_environment(), **{name: value for name, value in os.environ.items() if _is_of_stores(name)}}


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process by `niceness`, and that of its session if it leads one."""
    os.nice(niceness)
    _lower_session(niceness)


def use_idle_time() -> None:
    """Let this process run only while no other one wants the processor; elsewhere than on Linux, with the lowest priority.

    Linux counts a processor that runs a merely nice process as busy, and lets the server or Redis wait for another one.
    """
    _lower_session(_NICENESS_MAX)
    if sys.platform == "linux":
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return
    os.nice(_NICENESS_MAX)


def be_killed_first() -> None:
    """Let the kernel kill this process rather than the server if memory runs out."""
    with suppress(OSError):  # only Linux has the file
        _OOM_SCORE.write_text(str(_OOM_SCORE_OF_CHILDREN))


def _is_of_stores(name: str) -> bool:
    return name in _NAMES_STORES or name.upper() in _NAMES_PROXIES or name.startswith(_PREFIXES_STORES)


def _lower_session(niceness: int) -> None:
    """Lower the weight of the session that this process leads, if the kernel weighs sessions; not if it refuses again and again."""
    if os.getsid(0) != os.getpid():
        return
    for _ in range(_AUTOGROUP_TRIES):
        try:
            _AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(_AUTOGROUP_PAUSE_SECONDS)
        except OSError:
            return  # this kernel weighs processes only
        else:
            return
