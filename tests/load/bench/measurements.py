"""The measurements of the benchmark: samples, their medians over the rounds, their table, and the gates."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

from rich.table import Table

EMPTY: Final = "empty handler"
# The decisions/s that Gavel must reach, as multiples of those of the empty unary SubmitProposal handler.
GATES: Final = {"SubmitProposal": 0.6, "BatchSubmitProposals": 1.5}


@dataclass(frozen=True)
class Sample:
    """One measurement. Latencies are those of requests; CPU times are those of the server's process and of its Redis."""

    decisions_per_second: float
    p50_ms: float
    p99_ms: float
    server_cpu_us_per_decision: float
    redis_cpu_us_per_decision: float


@dataclass
class Cell:
    """The measurements of one call on one target, one per round, and the outcomes of the decisions."""

    samples: list[Sample] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def median(self, name: str) -> float:
        """Return the median of one quantity over the rounds."""
        return float(median(getattr(sample, name) for sample in self.samples))

    def ratio(self, other: Cell) -> float:
        """Return the median over the rounds of the ratio of this cell's decisions/s to the other's."""
        return median(
            own.decisions_per_second / reference.decisions_per_second for own, reference in zip(self.samples, other.samples, strict=True)
        )


def rows_of(cells: dict[tuple[str, str], Cell]) -> list[dict[str, Any]]:
    """Return one row per call and target: medians, and the ratios to the empty handlers."""
    baseline = cells["SubmitProposal", EMPTY]
    return [
        {
            "call": call,
            "target": target,
            **{name: round(cell.median(name), 3) for name in Sample.__dataclass_fields__},
            "ratio_to_empty_same_call": round(cell.ratio(cells[call, EMPTY]), 3),
            "ratio_to_empty_submit": round(cell.ratio(baseline), 3),
            "outcomes": dict(cell.outcomes),
            "samples": [asdict(sample) for sample in cell.samples],
        }
        for (call, target), cell in cells.items()
    ]


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the rows as a table."""
    result = Table(
        title="Decisions: medians of all rounds",
        caption="µs: CPU time per decision. x empty, x submit: decisions/s, in multiples of the empty handler's of the same call and of the"
        " empty unary SubmitProposal's.",
    )
    for column in ("call", "on", "decisions/s", "p50 ms", "p99 ms", "server µs", "Redis µs", "x empty", "x submit"):
        result.add_column(column, justify="left" if column in ("call", "on") else "right", no_wrap=True)
    for place, row in enumerate(rows):
        result.add_row(
            row["call"],
            row["target"],
            f"{row['decisions_per_second']:,.0f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['server_cpu_us_per_decision']:.0f}",
            f"{row['redis_cpu_us_per_decision']:.0f}",
            f"{row['ratio_to_empty_same_call']:.2f}",
            f"{row['ratio_to_empty_submit']:.2f}",
            end_section=place + 1 == len(rows) or rows[place + 1]["call"] != row["call"],
        )
    return result


def gates(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each gate on each real server, with the ratio reached and whether it passed."""
    return [
        {
            "call": row["call"],
            "target": row["target"],
            "reached": row["ratio_to_empty_submit"],
            "wanted": GATES[row["call"]],
            "passed": row["ratio_to_empty_submit"] >= GATES[row["call"]],
        }
        for row in rows
        if row["call"] in GATES and row["target"] != EMPTY
    ]
