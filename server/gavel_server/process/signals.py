"""The signals that stop a process of Gavel in order."""

from __future__ import annotations

import signal


def stop_signals() -> list[signal.Signals]:
    """Return SIGTERM, SIGINT and SIGHUP; without SIGHUP if the process was started to ignore it, as nohup does."""
    signals = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals
