"""The long fuzz, `make fuzz`: millions of random cases in child processes. Exits with 1 if it finds a fault.

The work is divided into portions, each in a process with its own seed, so a crash or a hang of an engine is a find like any other: a
portion writes each document to its journal before an engine sees it. A find leaves a reproducer under build/fuzz, and
`python -m tests.fuzz.run --reproduce FILE` evaluates it again. The count of evaluations is the count of cases: the comparisons with CEL
alone, Rete alone and the meaning of the conditions are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import compile_rule_set
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from rich.console import Console
from rich.progress import Progress

from tests.fuzz.engines import ACTION, MismatchError, Trial, run, trials, verdict_json
from tests.support.paths import ROOT

FINDS: Final = ROOT / "build" / "fuzz"
PORTION_EVALUATIONS: Final = 20_000
CASES_PER_DOCUMENT: Final = 200
DOCUMENTS_PER_ROUND: Final = 100
SILENCE_SECONDS_MAX: Final = 600.0  # no document takes this long, shrunk or not; a longer silence is a hang


@dataclass
class Portion:
    """A part of the work, in a process of its own."""

    seed: int
    evaluations: int
    process: subprocess.Popen[str] = field(init=False)

    @property
    def journal(self) -> Path:
        """The file with the current document, as JSON; it is the reproducer if the process dies."""
        return FINDS / f"{self.seed}.json"

    def start(self) -> None:
        """Start the process."""
        self.journal.write_text("{}", encoding="utf-8")
        command = [sys.executable, "-m", "tests.fuzz.run", "--portion", "--seed", str(self.seed), "--evaluations", str(self.evaluations)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def hangs(self) -> bool:
        """Report whether the process has been silent for too long."""
        return time.time() - self.journal.stat().st_mtime > SILENCE_SECONDS_MAX

    def result(self) -> dict[str, Any]:
        """Return the counts of the portion; "find" describes its find, if there is one."""
        lines = self.process.communicate()[0].splitlines()
        if self.process.returncode == 0 and lines:
            answer: dict[str, Any] = json.loads(lines[-1])
            if not answer["find"]:
                self.journal.unlink()
            return answer
        return {"evaluations": 0, "with_meaning": 0, "documents": 0, "find": f"the process ended with status {self.process.returncode}"}


def work(seed: int, evaluations: int, journal: Path) -> dict[str, Any]:
    """Fuzz until `evaluations` cases are done, or there is a find; return the counts."""
    done = with_meaning = documents = 0

    def one(trial: Trial) -> None:
        nonlocal done, with_meaning, documents
        journal.write_text(json.dumps({"document": trial.document, "seed": trial.seed}), encoding="utf-8")
        with_meaning += run(trial, CASES_PER_DOCUMENT)
        done += CASES_PER_DOCUMENT
        documents += 1

    number = 0
    find = ""
    while done < evaluations and not find:
        bounds = settings(
            max_examples=min(DOCUMENTS_PER_ROUND, -(-(evaluations - done) // CASES_PER_DOCUMENT)),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        try:
            seeded(seed * 1_000 + number)(bounds(given(trials())(one)))()
        except MismatchError as error:
            journal.write_text(json.dumps(error.reproducer, indent=2), encoding="utf-8")
            find = "the engines disagree"
        except Exception as error:  # noqa: BLE001  # every exception is a find
            find = f"{type(error).__name__}: {error}"
        number += 1
    return {"evaluations": done, "with_meaning": with_meaning, "documents": documents, "find": find}


def fuzz(seed: int, evaluations: int, processes: int, console: Console) -> int:
    """Run all portions; return the exit status."""
    FINDS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    totals = {"evaluations": 0, "with_meaning": 0, "documents": 0}
    finds = 0
    queue = list(portions(seed, evaluations))
    running: list[Portion] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("fuzzing", total=evaluations)
        while queue or running:
            while queue and len(running) < processes:
                running.append(queue.pop(0))
                running[-1].start()
            time.sleep(0.2)
            for portion in [portion for portion in running if portion.process.poll() is not None or portion.hangs()]:
                running.remove(portion)
                portion.process.kill()
                result = portion.result()
                for name in totals:
                    totals[name] += result[name]
                if result["find"]:
                    finds += 1
                    console.print(f"fuzz: {result['find']}; reproducer: {portion.journal}", markup=False, highlight=False)
                progress.advance(task, portion.evaluations)
    console.print(
        f"fuzz: {totals['evaluations']:,} evaluations of {totals['documents']:,} documents, {totals['with_meaning']:,} of them"
        f" also compared with the meaning of the conditions; {finds} mismatches; seed {seed}; {time.monotonic() - began:.0f} s",
        highlight=False,
    )
    return 1 if finds else 0


def portions(seed: int, evaluations: int) -> Iterator[Portion]:
    """Yield the portions of the work."""
    for number, done in enumerate(range(0, evaluations, PORTION_EVALUATIONS)):
        yield Portion(seed + number, min(PORTION_EVALUATIONS, evaluations - done))


def reproduce(path: Path, console: Console) -> int:
    """Evaluate a reproducer's case again; return 1 if the engines still disagree."""
    reproducer = json.loads(path.read_text(encoding="utf-8"))
    again = f"python -m tests.fuzz.run --portion --seed {path.stem} --evaluations {PORTION_EVALUATIONS}"
    if "case" not in reproducer:
        console.print(f"the process ended at this document, at an unknown case; to repeat the portion: {again}", markup=False)
        return 1
    for name, (meant, found) in reproducer.get("unexpected", {}).items():
        console.print(f"{name}: meant {meant}, found {found}; to repeat the portion: {again}", markup=False, highlight=False)
    action = compile_rule_set(json.dumps(reproducer["document"])).actions[ACTION]
    # JSON has no tuples.
    case = Case(**{**reproducer["case"], "producer_groups": tuple(reproducer["case"]["producer_groups"])})
    case = case.with_params(action.typed_params(case.params))
    verdicts = [action.evaluate(case, cross_check=True), action.evaluate(case, cross_check=False), action.evaluate_reference(case)]
    for name, verdict in zip(("both", "rete", "cel"), verdicts, strict=True):
        console.print(f"{name}: {verdict_json(verdict)}", highlight=False)
    return 1 if len(set(verdicts)) > 1 or verdicts[0].disagreement is not None or reproducer.get("unexpected") else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="make fuzz", description="Compare the two rule engines on random documents and cases.")
    parser.add_argument("--evaluations", type=int, default=1_000_000, help="cases to evaluate (default 1,000,000)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes at once (default: one per processor)")
    parser.add_argument("--seed", type=int, help="seed of an earlier run, to repeat it")
    parser.add_argument("--reproduce", type=Path, metavar="FILE", help="evaluate the case of a reproducer again")
    parser.add_argument("--portion", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    if chosen.reproduce:
        return reproduce(chosen.reproduce, console)
    seed = chosen.seed if chosen.seed is not None else SystemRandom().randrange(10**6) * 1_000
    if chosen.portion:
        print(json.dumps(work(seed, chosen.evaluations, FINDS / f"{seed}.json")))
        return 0
    return fuzz(seed, chosen.evaluations, chosen.processes, console)


if __name__ == "__main__":
    sys.exit(main())
