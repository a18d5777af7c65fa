"""The long fuzz: `make fuzz`. Random documents and cases by the million, in processes that may die; exits 1 on a find.

Work goes out in portions, each in a process of its own with a seed of its own, so that a crash or a hang of an engine is a find
like any other: what a portion is at stands in its journal before an engine sees it. A find leaves a reproducer under build/fuzz,
which `python -m tests.fuzz.run --reproduce FILE` decides again. An evaluation is one case, decided by Rete and CEL together;
CEL alone, Rete with guards only and the meaning of the conditions are held against it and not counted.
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

from gavel_rules.language.case import Case
from gavel_rules.language.ruleset import compile_rule_set
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from rich.console import Console
from rich.progress import Progress

from tests.fuzz.engines import ACTION, MismatchError, Trial, run, shown, trials

ROOT: Final = Path(__file__).parents[2]
FINDS: Final = ROOT / "build" / "fuzz"
PORTION_EVALUATIONS: Final = 20_000
CASES_PER_DOCUMENT: Final = 200
DOCUMENTS_PER_ROUND: Final = 100
SILENCE_SECONDS_MAX: Final = 600.0  # no document, shrunk or not, takes so long; more is a hang


@dataclass
class Portion:
    """One process at work on its part."""

    seed: int
    evaluations: int
    process: subprocess.Popen[str] = field(init=False)

    @property
    def journal(self) -> Path:
        """What it is at, as JSON: also the reproducer, when it dies of it."""
        return FINDS / f"{self.seed}.json"

    def start(self) -> None:
        """Start the process."""
        self.journal.write_text("{}", encoding="utf-8")
        command = [sys.executable, "-m", "tests.fuzz.run", "--portion", "--seed", str(self.seed), "--evaluations", str(self.evaluations)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def hangs(self) -> bool:
        """Whether it has been silent for too long."""
        return time.time() - self.journal.stat().st_mtime > SILENCE_SECONDS_MAX

    def result(self) -> dict[str, Any]:
        """What it did; "find" says what it found, if anything."""
        said = self.process.communicate()[0]
        lines = said.splitlines()
        if self.process.returncode == 0 and lines:
            answer: dict[str, Any] = json.loads(lines[-1])
            if not answer["find"]:
                self.journal.unlink()
            return answer
        return {"evaluations": 0, "understood": 0, "documents": 0, "find": f"the process ended with status {self.process.returncode}"}


def work(seed: int, evaluations: int, journal: Path) -> dict[str, Any]:
    """One portion: fuzz until so many evaluations are done, or something is found."""
    done = understood = documents = 0

    def one(trial: Trial) -> None:
        nonlocal done, understood, documents
        journal.write_text(json.dumps({"document": json.loads(trial.text), "seed": trial.seed}), encoding="utf-8")
        understood += run(trial, CASES_PER_DOCUMENT)
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
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a find
            find = f"{type(error).__name__}: {error}"
        number += 1
    return {"evaluations": done, "understood": understood, "documents": documents, "find": find}


def fuzz(seed: int, evaluations: int, processes: int, console: Console) -> int:
    """All portions. Returns the exit status."""
    FINDS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    totals = {"evaluations": 0, "understood": 0, "documents": 0}
    finds = 0
    waiting = list(portions(seed, evaluations))
    running: list[Portion] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("fuzzing", total=evaluations)
        while waiting or running:
            while waiting and len(running) < processes:
                running.append(waiting.pop(0))
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
        f"fuzz: {totals['evaluations']:,} evaluations of {totals['documents']:,} documents, {totals['understood']:,} of them"
        f" also held against the conditions' meaning; {finds} mismatches; seed {seed}; {time.monotonic() - began:.0f} s",
        highlight=False,
    )
    return 1 if finds else 0


def portions(seed: int, evaluations: int) -> Iterator[Portion]:
    """Yield the parts of the work."""
    for number, done in enumerate(range(0, evaluations, PORTION_EVALUATIONS)):
        yield Portion(seed + number, min(PORTION_EVALUATIONS, evaluations - done))


def reproduce(path: Path, console: Console) -> int:
    """Decide a reproducer's case again. Returns 1 if the engines still disagree."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if "case" not in found:
        again = f"python -m tests.fuzz.run --portion --seed {path.stem} --evaluations {PORTION_EVALUATIONS}"
        console.print(f"the process ended while it was at this document, nobody knows at which case; the same again: {again}", markup=False)
        return 1
    action = compile_rule_set(json.dumps(found["document"])).actions[ACTION]
    case = Case(**found["case"])
    case = case.with_params(action.typed_params(case.params))
    verdicts = [action.evaluate(case, both=True), action.evaluate(case, both=False), action.evaluate_reference(case)]
    for name, verdict in zip(("both", "rete", "cel"), verdicts, strict=True):
        console.print(f"{name}: {shown(verdict)}", highlight=False)
    return 1 if len(set(verdicts)) > 1 or verdicts[0].disagreement is not None else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="make fuzz", description="Holds the two rule engines against each other.")
    parser.add_argument("--evaluations", type=int, default=1_000_000, help="cases to decide (default 1,000,000)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at once (default: one per processor)")
    parser.add_argument("--seed", type=int, help="of an earlier run, to do the same again")
    parser.add_argument("--reproduce", type=Path, metavar="FILE", help="decide the case of a reproducer again")
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
