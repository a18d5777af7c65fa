"""Writes log lines to a file descriptor from a thread, so that nobody waits for the reader of the log.

A reader that stops reading, for instance behind a full pipe, blocks only the thread. Later lines wait in a buffer. Lines that do not
fit are dropped and counted: in `gavel_log_lines_dropped`, and in a line `log.dropped` once the reader goes on.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from prometheus_client import Counter

BUFFER_BYTES_MAX: Final = 1024 * 1024
LINE_BYTES_MAX: Final = 16 * 1024
CLOSE_SECONDS_MAX: Final = 1.0
TICK_SECONDS: Final = 1.0
_WRITE_BYTES_MAX: Final = 64 * 1024
_ELLIPSIS: Final = " …\n".encode()

LINES_DROPPED: Final = Counter("gavel_log_lines_dropped", "Log lines that were dropped because nobody read the log.")


class LogWriter:
    """A text stream for loggers, in front of a descriptor that it does not close. Call `start` once, and `close` at the end."""

    def __init__(
        self, descriptor: int, on_tick: Callable[[], None], on_dropped: Callable[[int], None], buffer_bytes_max: int = BUFFER_BYTES_MAX
    ) -> None:
        """The thread calls `on_tick` about once a second, and `on_dropped` with the number of lost lines once it can write again."""
        self._descriptor = descriptor
        self._on_tick = on_tick
        self._on_dropped = on_dropped
        self._buffer_bytes_max = buffer_bytes_max
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._buffered_bytes = 0  # with those that are being written
        self._dropped = 0
        self._closing = False
        # A daemon: a thread that waits for a reader must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def write(self, text: str) -> int:
        """Take a line with its line feed. Never waits for the reader of the log, and never raises."""
        line = text.encode(errors="backslashreplace")
        if len(line) > LINE_BYTES_MAX:
            line = line[: LINE_BYTES_MAX - len(_ELLIPSIS)].decode(errors="ignore").encode() + _ELLIPSIS
        with self._changed:
            if self._buffered_bytes + len(line) > self._buffer_bytes_max:
                self._dropped += 1
                LINES_DROPPED.inc()
            else:
                self._lines.append(line)
                self._buffered_bytes += len(line)
                self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def isatty(self) -> bool:
        """Return whether a terminal reads the log."""
        return os.isatty(self._descriptor)

    def close(self) -> None:
        """Write what is buffered and end the thread; give up after CLOSE_SECONDS_MAX."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        tick = time.monotonic() + TICK_SECONDS
        while True:
            with self._changed:
                if not self._lines and not self._closing:
                    self._changed.wait(max(0.0, tick - time.monotonic()))
                chunk = self._take()
                ended = self._closing and not chunk
            if ended:
                return
            self._deliver(chunk)
            if time.monotonic() >= tick:
                self._on_tick()
                tick = time.monotonic() + TICK_SECONDS

    def _take(self) -> list[bytes]:
        """Remove lines from the buffer; their bytes count until they are delivered."""
        chunk: list[bytes] = []
        size_bytes = 0
        while self._lines and size_bytes < _WRITE_BYTES_MAX:
            chunk.append(self._lines.popleft())
            size_bytes += len(chunk[-1])
        return chunk

    def _deliver(self, chunk: list[bytes]) -> None:
        content = b"".join(chunk)
        is_written = self._write(content)
        with self._changed:
            self._buffered_bytes -= len(content)
            if not is_written:
                self._dropped += len(chunk)
                LINES_DROPPED.inc(len(chunk))
                return
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._on_dropped(dropped)

    def _write(self, content: bytes) -> bool:
        """Write everything, however long the reader takes. Return False if the descriptor takes nothing more, such as a closed pipe."""
        rest = memoryview(content)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process has made the descriptor non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError:
                return False
        return True
