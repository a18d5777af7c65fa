"""Gavel's imperative shell: gRPC, Redis, clocks and processes around the functional core in `gavel_rules`."""

from __future__ import annotations

import os
from pathlib import Path

import gavel_rules

# By default gRPC starts its threads again in a forked child. They would abort the child that writes a snapshot, which closes their
# descriptors (process/fork.py). gRPC reads the variable when it is first used.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"


def _build_of(package_file: str) -> str:
    """Return the build of a package's compiled libraries; empty for an interpreted package."""
    try:
        return Path(package_file).with_name("compiled-from").read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


# The compiled libraries call each other's C functions without a check, so a mixture of two builds could crash.
if _build_of(__file__) != _build_of(gavel_rules.__file__):
    raise ImportError(
        "gavel-arbiter and gavel-rules are of different builds; install both from one release or one build: "
        "pip install --force-reinstall gavel-arbiter gavel-rules"
    )
