"""A part of the benchmark that measures the core alone: its command line, when it runs by itself."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

Figures = dict[str, float]


def run_part(
    program: str,
    description: str,
    measure: Callable[[], Figures],
    show: Callable[[Figures, Console], None],
    gates: Callable[[Figures], list[dict[str, Any]]],
) -> int:
    """Measure and print; with --gate, return 1 if a gate was missed."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--gate", action="store_true", help="exit 1 if a gate is missed")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON, and no gates")
    arguments = parser.parse_args()
    figures = measure()
    if arguments.json:
        print(json.dumps(figures))
        return 0
    show(figures, Console(width=None if sys.stdout.isatty() else 160))
    return 1 if arguments.gate and not all(gate["passed"] for gate in gates(figures)) else 0
