"""A rule set to format, and a disk that fails."""

from __future__ import annotations

import errno
import itertools
import os
from typing import Final

import pytest

TIDY: Final = """\
gavel: v1
rule_set: parcels
version: 1
actions:
  parcel.send:
    params: {type: object, required: [weight], properties: {weight: {type: number}}}
rules:
  - {id: light, action: parcel.send, priority: 1, when: params.weight <= 30, effect: approve}
"""
UNTIDY: Final = TIDY.replace("- {id: light, action: parcel.send,", "-   {action: parcel.send,   id: light,")


def fail_at_sync(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full when a file is synced for the `number`-th time, counted from 1."""
    syncs = itertools.count(1)
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if next(syncs) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
