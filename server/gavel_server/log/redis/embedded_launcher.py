"""Becomes the embedded Redis, after asking the kernel to end it when its parent dies.

`embedded` runs this file as a script in a bare interpreter (`-I -S`). The request must be made inside the child, and running Python
between fork and exec of a process with threads may deadlock. The request survives the exec. Linux only: elsewhere the next start
ends a Redis that a killed server left behind.

Arguments: the parent's process id, then the program and its arguments.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, keep its files private, then execute the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        # SIGTERM: Redis stops as it does for an operator. The kernel sends it when the thread that started this process ends.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit("gavel: the server ended before its Redis started")
    # The files hold the log: private to this user, even in a directory that others may enter.
    os.umask(0o077)
    os.execv(program[0], program)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
