"""Becomes the child Redis of `embedded`, after asking the kernel to end it when its parent dies.

Run as a script by a bare interpreter (`-I -S`), because the request must be made inside the child, and running Python between
fork and exec of a process with threads may deadlock. It survives the exec. Linux only; elsewhere a Redis left behind by a
killed server is ended by the next start.

Arguments: the parent's process id, then the program and its arguments.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, keep its files to this user, then become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        # SIGTERM: Redis then stops as it does for an operator. The kernel sends it when the thread that started us ends.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit("gavel: the server ended before its Redis started")
    # What it writes holds the log: for this user alone, also in a directory that others may enter.
    os.umask(0o077)
    os.execv(program[0], program)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
