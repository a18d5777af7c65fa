"""The differential fuzz of `tests.fuzz`, for some seconds: the same documents on every run. `make fuzz` is the long one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from gavel_rules import lowering
from gavel_rules.network import Document
from hypothesis import HealthCheck, Phase, given, settings

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


def _run(trial: Trial) -> None:
    run(trial, 25)


def test_engines_agree() -> None:
    """Both engines, in both modes, come to the verdict that the conditions mean, on every case, errors included."""
    BOUNDS(given(trial=trials())(_run))()


@pytest.mark.parametrize("fault", ["equality is not negated", "comparisons are not mirrored", "guards are left out"])
def test_fuzz_finds_a_faulty_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    """A compiler that errs in one place is found, with a case that shows it; the same case is in order once the fault is gone."""
    with monkeypatch.context() as faulty:
        if fault == "equality is not negated":
            faulty.setitem(lowering._NEGATED, "", "")
        elif fault == "comparisons are not mirrored":
            faulty.setattr(lowering, "_MIRRORED", {operator: operator for operator in lowering._MIRRORED})
        else:
            write = Document.write
            faulty.setattr(Document, "write", lambda self, values, presences, guards: write(self, values, presences, dict.fromkeys(guards)))
        with pytest.raises(MismatchError) as found:
            settings(BOUNDS, max_examples=600)(given(trial=trials())(_run))()
        reproducer = tmp_path / "find.json"
        reproducer.write_text(json.dumps(found.value.reproducer))
        assert 1 == long_run.main(["--reproduce", str(reproducer)])
    # Networks are shared by digest, and the faulty one may still be there: another version is another digest.
    found.value.reproducer["document"]["version"] = 2
    reproducer.write_text(json.dumps(found.value.reproducer))
    assert 0 == long_run.main(["--reproduce", str(reproducer)])


def test_the_long_fuzz(capsys: pytest.CaptureFixture[str]) -> None:
    """The long fuzz does what it was told, says so, and leaves no journal behind."""
    seed = 7_000_000 + os.getpid()
    assert 0 == long_run.main(["--evaluations", "400", "--processes", "2", "--seed", str(seed)])
    assert "400 evaluations of 2 documents" in capsys.readouterr().out
    assert not (long_run.FINDS / f"{seed}.json").exists()


def test_a_process_that_dies_is_a_find(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A portion whose process is killed is reported with what it was at, and makes the fuzz fail."""
    seed = 8_000_000 + os.getpid()
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert 1 == long_run.main(["--evaluations", "200", "--processes", "1", "--seed", str(seed)])
    journal = long_run.FINDS / f"{seed}.json"
    assert f"ended with status 1; reproducer: {journal}" in capsys.readouterr().out.replace("\n", "")
    assert 1 == long_run.main(["--reproduce", str(journal)])
    journal.unlink()
