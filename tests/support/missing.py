"""What a test does on a machine that lacks a tool: it is skipped, and with REQUIRED=1, as in `.ci/run`, it fails.

Versions of Python are the exception: see `tests/compiled/test_installation.py`.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def report_missing(reason: str, output: str = "") -> NoReturn:
    """End the test. `reason` says what the machine lacks; `output` is that of the command that failed for it."""
    if os.environ.get("REQUIRED"):
        pytest.fail(f"{reason}\n{output}".strip())
    pytest.skip(f"{reason} {output.strip().rpartition(chr(10))[2]}".strip())
