"""Tests on a machine that lacks a tool: they are skipped; with REQUIRED=1, as in `.ci/run`, they fail.

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
