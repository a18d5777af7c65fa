"""A forked child: a copy of this process at one moment, which does one piece of work and ends.

The child shares no work with its parent. It has one thread, and closes the descriptors that it inherited, such as sockets and locks. It may
take no lock that another thread of the parent may have held: it computes and writes files, and neither logs nor calls gRPC or Redis.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Final

from gavel_server.process.signals import stop_signals

# The exit status after an exception that is not an OSError, whose errno is the status.
EXIT_FAILED: Final = 255
_DESCRIPTORS_MAX: Final = 1 << 20
_STDERR: Final = 2
# The child leaves the processors to its parent.
_NICENESS: Final = 10


def fork(work: Callable[[], object], descriptors: Iterable[int] = ()) -> int:
    """Do `work` in a child; return its process id. Its exit status is 0, the errno of an OSError, or EXIT_FAILED.

    The child inherits `descriptors` of files that it reads.
    """
    inherited = sorted(descriptors)
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; what the child may do is written above.
        warnings.simplefilter("ignore", DeprecationWarning)
        process_id = os.fork()
    if process_id:
        return process_id
    status = EXIT_FAILED
    try:
        # A collection would run the finalizers of the parent's objects, and copy memory for nothing.
        gc.disable()
        signal.set_wakeup_fd(-1)  # the parent's
        for number in stop_signals():
            signal.signal(number, signal.SIG_DFL)
        first = _STDERR + 1
        for descriptor in inherited:
            os.closerange(first, descriptor)
            first = descriptor + 1
        os.closerange(first, _DESCRIPTORS_MAX)
        os.nice(_NICENESS)
        work()
        status = 0
    except OSError as error:
        status = error.errno or EXIT_FAILED
    except BaseException:  # noqa: BLE001  # whatever it is, the child ends here
        traceback.print_exc()
    finally:
        os._exit(status)
