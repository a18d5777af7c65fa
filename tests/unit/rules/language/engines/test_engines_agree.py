"""The fuzz of `tests.fuzz` for some seconds, with the same documents on every run. `make fuzz` is the long one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import derivation
from gavel_rules.language import rule_set
from gavel_rules.language.engines import lowering
from gavel_rules.language.engines.case import NO_HISTORY, NOBODY
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz import derivations, engines, subjects
from tests.fuzz import run as long_run
from tests.fuzz.engines import MismatchError, Trial, run, trials

BOUNDS = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def forget_networks() -> None:
    """Forget the networks of other tests: they are shared by digest, and some come from a faulty compiler."""
    rule_set._networks.clear()


def _run(trial: Trial) -> None:
    run(trial, 25)


def _without_guards(text: str) -> CompiledRuleSet:
    """A rule set that writes its cases without guards."""
    unguarded = compile_rule_set(text)
    for action in unguarded.actions.values():
        action._writer._guards.clear()
    return unguarded


@pytest.mark.long
def test_engines_agree() -> None:
    """Both engines, in both modes, give the verdict that follows from the meaning of the conditions, errors included."""
    BOUNDS(given(trial=trials())(_run))()


@pytest.mark.parametrize(
    "fault", [pytest.param("equality is not negated", marks=pytest.mark.long), "comparisons are not mirrored", "guards are left out"]
)
def test_fuzz_finds_a_faulty_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    """A fault in the compiler is found with a case that shows it; the case passes once the fault is gone."""
    with monkeypatch.context() as faulty:
        if fault == "equality is not negated":
            faulty.setitem(lowering._NEGATED, "", "")
        elif fault == "comparisons are not mirrored":
            for operator in lowering._MIRRORED:  # in the table itself: compiled code does not look its name up again
                faulty.setitem(lowering._MIRRORED, operator, operator)
        else:
            for module in (engines, long_run):
                faulty.setattr(module, "compile_rule_set", _without_guards)
        with pytest.raises(MismatchError) as mismatch:
            settings(BOUNDS, max_examples=600)(given(trial=trials())(_run))()
        reproducer = tmp_path / "find.json"
        reproducer.write_text(json.dumps(mismatch.value.reproducer))
        assert 1 == long_run.main(["--reproduce", str(reproducer)])
    rule_set._networks.clear()
    assert 0 == long_run.main(["--reproduce", str(reproducer)])


@pytest.mark.long
@pytest.mark.parametrize("part", ["derivations", "subjects", "keys"])
def test_fuzz_finds_other_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str) -> None:
    """A derivation that ignores counters, a subject of another proposal, and a key of another group are found, with what is wrong."""
    if part == "derivations":

        def derive_without_counters(report: Envelope, decision: Envelope, rules: CompiledRuleSet) -> tuple[Envelope, ...]:
            bare = Envelope()
            bare.CopyFrom(report)
            bare.execution.ClearField("counters")
            return derivation.derive(bare, decision, rules)

        monkeypatch.setattr(derivations, "derive", derive_without_counters)
    elif part == "subjects":
        monkeypatch.setattr(subjects, "Proposer", lambda *_: NOBODY)
    else:
        with_counters = engines.with_counters
        monkeypatch.setattr(
            engines, "with_counters", lambda action, case, sample: with_counters(action, case, sample).with_history(NO_HISTORY)
        )
    with pytest.raises(MismatchError) as mismatch:
        settings(BOUNDS, max_examples=600)(given(trial=trials())(_run))()
    reproducer = tmp_path / "find.json"
    reproducer.write_text(json.dumps(mismatch.value.reproducer))
    assert 1 == long_run.main(["--reproduce", str(reproducer)]) or part == "keys"
    assert bool(mismatch.value.reproducer["unexpected"]) or part == "keys"


def test_the_long_fuzz(capsys: pytest.CaptureFixture[str]) -> None:
    """The long fuzz evaluates the requested cases, prints its counts, and leaves no journal."""
    seed = 7_000_000 + os.getpid()
    assert 0 == long_run.main(["--evaluations", "400", "--processes", "2", "--seed", str(seed)])
    assert "400 evaluations of 2 documents" in capsys.readouterr().out
    assert not (long_run.FINDS / f"{seed}.json").exists()


def test_killed_process_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A portion whose process is killed is reported with its journal, and makes the fuzz fail."""
    seed = 8_000_000 + os.getpid()
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert 1 == long_run.main(["--evaluations", "200", "--processes", "1", "--seed", str(seed)])
    journal = long_run.FINDS / f"{seed}.json"
    assert f"ended with status 1; reproducer: {journal}" in capsys.readouterr().out.replace("\n", "")
    assert 1 == long_run.main(["--reproduce", str(journal)])
    journal.unlink()
