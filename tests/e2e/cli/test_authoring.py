"""The commands for authors of rule sets, as they run them: on files, without a server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import jsonschema_rs
import pytest

from tests.e2e.cli.programs import gavel
from tests.e2e.world import GAVEL

ROOT: Final = Path(__file__).parents[3]

# Ten mistakes, each on the line that says so.
TEN_MISTAKES: Final = """\
gavel: v1
rule_set: refunds
version: 0                                                                     # out-of-range
actions:
  refund.create:
    params:
      type: object
      required: [amount]
      properties:
        amount: {type: number}
        note: {type: string}
    facts:
      status: {key: order.status, type: string, max_age_ms: 60000, optinal: true}   # unknown-key
      score: {key: Order Score, type: number, max_age_ms: 60000, optional: true}    # bad-name
  refund.note:
    params: {type: object, properties: {amount: {type: number, exclusiveMinimun: 0}}}   # schema-keyword
rules:
  - {id: one, action: refund.create, priority: 9, when: params.amont > 1, effect: approve}             # unknown-name
  - {id: two, action: refund.create, priority: 8, when: facts.score > 0.5, effect: approve}            # unguarded-optional
  - {id: three, action: refund.create, priority: 8, when: params.amount > 2, effect: approve}          # duplicate-priority
  - {id: four, action: refund.create, priority: 6, when: params.amount > 3, effect: reject}            # missing-reason-code
  - {id: five, action: refund.craete, priority: 5, when: params.amount > 4, effect: approve}           # undeclared-action
  - {id: six, action: refund.create, priority: 4, when: 'now.getHours("Europe/Berlin") > 8', effect: approve} # hidden-input
"""

RULES: Final = """\
gavel: v1
rule_set: parcels
version: 1
actions:
  parcel.send:
    params: {type: object, required: [weight], properties: {weight: {type: number}}}
    facts: {status: {key: parcel.status, type: string, max_age_ms: 60000, sources: [depot]}}
rules:
  - {id: heavy, action: parcel.send, priority: 2, when: params.weight > 30, effect: review, reason_code: HEAVY}
  - {id: ready, action: parcel.send, priority: 1, when: facts.status == "ready", effect: approve}
"""

TESTS: Final = """\
gavel: v1
tests: parcels.yaml
defaults: {params: {weight: 30}, facts: {status: ready}}
cases:
  - {name: a parcel that is ready may go, expect: {outcome: APPROVED, rule_id: ready}}
tables:
  - name: weights
    columns: [name, params.weight, expect.outcome, expect.reason_code]
    rows:
      - [just too heavy, 30.1, NEEDS_HUMAN_REVIEW, HEAVY]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a rule set and its suite, which passes."""
    (tmp_path / "parcels.yaml").write_text(RULES)
    (tmp_path / "parcels_test.yaml").write_text(TESTS)
    return tmp_path


def seeded() -> list[tuple[int, str]]:
    """The mistakes that TEN_MISTAKES says it has, as (line, code)."""
    found = ((number, re.search(r"# ([a-z-]+)$", line)) for number, line in enumerate(TEN_MISTAKES.splitlines(), 1))
    return [(number, match[1]) for number, match in found if match]


def test_lint_names_every_mistake(tmp_path: Path) -> None:
    """A document with ten mistakes gets the ten lines, each at its place, and exit status 2."""
    file = tmp_path / "ten.yaml"
    file.write_text(TEN_MISTAKES)
    done = gavel("rules", "lint", file)
    assert (2, "") == (done.returncode, done.stderr)
    lines = [re.fullmatch(rf"{re.escape(str(file))}:(\d+):(\d+): ([a-z-]+): .+", line) for line in done.stdout.splitlines()]
    assert seeded() == [(int(match[1]), match[3]) for match in lines if match]
    assert 10 == len(lines)
    places = [(int(match[1]), int(match[2])) for match in lines if match]
    marked = {(18, "params.amont"): 57, (19, "facts.score"): 57, (22, "refund.craete"): 24}
    for (line, text), column in marked.items():
        assert TEN_MISTAKES.splitlines()[line - 1].index(text) + 1 == column
        assert (line, column) in places
    (answer,) = json.loads(gavel("rules", "lint", file, "--json").stdout)["files"]
    assert places == [(error["line"], error["column"]) for error in answer["errors"]]


def test_lint_of_a_folder(folder: Path) -> None:
    """Rule sets and suites of a folder are checked together; a suite is held to its rule set."""
    done = gavel("rules", "lint", folder)
    assert (0, "") == (done.returncode, done.stderr)
    assert f"{folder}/parcels_test.yaml: 2 cases of {folder}/parcels.yaml, valid" in done.stdout
    (folder / "parcels_test.yaml").write_text(TESTS.replace("status: ready", "state: ready"))
    done = gavel("rules", "lint", folder)
    assert 2 == done.returncode
    assert f"{folder}/parcels_test.yaml:3:42: unknown-name: parcel.send declares no fact state (did you mean status?)" in done.stdout


def test_lint_of_rule_sets_that_share_an_action(tmp_path: Path) -> None:
    """Rule sets that could not be in force together are warned of, each setting once and at its action; newer versions count."""
    (tmp_path / "a.yaml").write_text(RULES)
    (tmp_path / "b.yaml").write_text(RULES.replace("rule_set: parcels", "rule_set: company") + "# beside it\n")
    assert "rule-sets-disagree" not in gavel("rules", "lint", tmp_path).stdout
    text = RULES.replace("rule_set: parcels", "rule_set: company").replace(
        "  parcel.send:\n", "  parcel.send:\n    conflict_key: '\"all\"'\n"
    )
    (tmp_path / "b.yaml").write_text(text)
    done = gavel("rules", "lint", tmp_path)
    assert (0, "") == (done.returncode, done.stderr)
    (line,) = [line for line in done.stdout.splitlines() if "rule-sets-disagree" in line]
    number = text.splitlines().index("  parcel.send:") + 1
    assert line.startswith(f"{tmp_path}/b.yaml:{number}:3: warning: rule-sets-disagree: conflict_key of parcel.send is ")
    assert f'but "subject" in {tmp_path}/a.yaml' in line
    (tmp_path / "a2.yaml").write_text(
        RULES.replace("version: 1\n", "version: 2\n").replace("  parcel.send:\n", "  parcel.send:\n    conflict_key: '\"all\"'\n")
    )
    assert "rule-sets-disagree" not in gavel("rules", "lint", tmp_path).stdout


def test_tests_that_pass(folder: Path) -> None:
    """Suites below a folder run; coverage says what they tried, and a minimum that is reached is no matter."""
    done = gavel("rules", "test", folder, "--coverage", "--min-coverage", "50")
    assert (0, "") == (done.returncode, done.stderr)
    assert "1 suite, 2 cases: all passed" == done.stdout.splitlines()[-1]
    assert f"{folder}/parcels.yaml: rules 2 of 2 (100 %), outcomes of conditions 3 of 4 (75 %)" in done.stdout
    assert '  ready: facts.status == "ready" was never false' in done.stdout
    done = gavel("rules", "test", folder, "--min-coverage", "76")
    assert 1 == done.returncode
    assert f"gavel: {folder}/parcels.yaml is covered less than 76 %" in done.stderr


def test_tests_that_fail(folder: Path) -> None:
    """A changed threshold fails the case on its other side, with what differs and how every rule came out; exit status 1."""
    (folder / "parcels.yaml").write_text(RULES.replace("> 30", "> 31"))
    done = gavel("rules", "test", folder / "parcels_test.yaml", "--junit", folder / "junit.xml")
    assert (1, "") == (done.returncode, done.stderr)
    lines = done.stdout.splitlines()
    assert f"{folder}/parcels_test.yaml:10:9: failed: weights: just too heavy" == lines[0]
    assert "  outcome: expected NEEDS_HUMAN_REVIEW, found APPROVED" in lines
    assert "  rule heavy: does not match" in lines
    assert "      params.weight  is  30.1" in lines
    assert "1 suite, 2 cases: 1 failed" == lines[-1]
    suite = ElementTree.parse(folder / "junit.xml").getroot()[0]  # noqa: S314  # we wrote it
    assert ("2", "1", "0") == (suite.get("tests"), suite.get("failures"), suite.get("errors"))
    (failed,) = [case for case in suite if len(case)]
    assert ("weights: just too heavy", "10") == (failed.get("name"), failed.get("line"))
    report = json.loads(gavel("rules", "test", folder, "--json").stdout)
    assert (2, 1) == (report["cases"], report["failures"])
    first = report["suites"][0]["cases"][1]["differences"][0]
    assert {"what": "outcome", "expected": "NEEDS_HUMAN_REVIEW", "found": "APPROVED"} == first


def test_tests_that_are_not_valid(folder: Path) -> None:
    """A suite, or its rule set, with mistakes is exit status 2; what can run runs, and JUnit shows an error."""
    (folder / "broken.yaml").write_text(RULES.replace("params.weight >", "params.wait >"))
    (folder / "broken_test.yaml").write_text(TESTS.replace("parcels.yaml", "broken.yaml"))
    (folder / "lost_test.yaml").write_text(TESTS.replace("parcels.yaml", "nowhere.yaml"))
    done = gavel("rules", "test", folder, "--junit", folder / "junit.xml")
    assert 2 == done.returncode
    assert f"{folder}/broken.yaml:9:57: unknown-name: params has no field wait" in done.stdout
    assert f"{folder}/lost_test.yaml:2:8: no-rule-set: cannot read {folder}/nowhere.yaml" in done.stdout
    assert "1 suite, 2 cases: all passed, 2 files not valid" == done.stdout.splitlines()[-1]
    root = ElementTree.parse(folder / "junit.xml").getroot()  # noqa: S314  # we wrote it
    assert ["0", "1", "1"] == [suite.get("errors") for suite in root]
    assert 2 == gavel("rules", "test", folder / "absent").returncode


def test_explain_a_case(folder: Path) -> None:
    """One case, every rule, every condition's value, with its decision; as JSON it is the contract's preflight response."""
    done = gavel("rules", "explain", folder / "parcels_test.yaml", "--case", "weights: just too heavy")
    assert (0, "") == (done.returncode, done.stderr)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["outcome", "NEEDS_HUMAN_REVIEW", "HEAVY"] == lines[0]
    assert ["parcels", "heavy", "yes"] in lines
    assert ["params.weight", "30.1"] in lines
    done = gavel("rules", "explain", folder / "parcels_test.yaml", "--case", "weights: just too heavy", "--json")
    response = json.loads(done.stdout)
    assert ("heavy", [True, True]) == (response["decision"]["rule_id"], [rule["matched"] for rule in response["explanations"]])
    done = gavel("rules", "explain", folder / "parcels_test.yaml", "--case", "weights: just to heavy")
    assert (2, True) == (done.returncode, "did you mean weights: just too heavy?" in done.stderr)


def test_explain_a_proposal(folder: Path) -> None:
    """A case by itself, from standard input, against a rule set; mistakes in it have their place."""
    done = gavel("rules", "explain", folder / "parcels.yaml", "-", text="params: {weight: 5}\nfacts: {status: lost}\n")
    assert (0, "REJECTED NO_RULE_MATCHED") == (done.returncode, " ".join(done.stdout.split()[1:3]))
    done = gavel("rules", "explain", folder / "parcels.yaml", "-", text="params: {weight: 5}\nfact: {status: lost}\n")
    assert (2, True) == (done.returncode, "-:2:1: unknown-key: no such key here: fact (did you mean facts?)" in done.stderr)
    assert 2 == gavel("rules", "explain", folder / "parcels.yaml").returncode


def test_fmt(folder: Path) -> None:
    """--check says what would change and writes nothing; without, files are laid out anew, once, with the same digest."""
    file = folder / "parcels.yaml"
    untidy = RULES.replace("  - {id: heavy, action: parcel.send,", "  -   {action: parcel.send,   id: heavy,")
    file.write_text(untidy)
    done = gavel("rules", "fmt", folder, "--check")
    assert (1, untidy) == (done.returncode, file.read_text())
    assert f"{file} would be laid out anew" in done.stderr
    before = gavel("rules", "lint", file).stdout
    assert 0 == gavel("rules", "fmt", folder).returncode
    assert (RULES, before) == (file.read_text(), gavel("rules", "lint", file).stdout)
    assert 0 == gavel("rules", "fmt", folder, "--check").returncode
    done = gavel("rules", "fmt", "-", text=untidy)
    assert (0, RULES) == (done.returncode, done.stdout)
    file.write_text("rules: [")
    assert 2 == gavel("rules", "fmt", file).returncode


@pytest.mark.parametrize("name", ["rule-set", "test"])
def test_schema(name: str) -> None:
    """The schema for editors is printed as it ships."""
    schema = json.loads(gavel("rules", "schema", name).stdout)
    jsonschema_rs.meta.validate(schema)
    assert json.loads((ROOT / f"rules/gavel_rules/schemas/{name}.json").read_text()) == schema


def test_nothing_tested_is_not_a_pass(folder: Path) -> None:
    """Where no suite is valid, the last line does not speak of passing."""
    (folder / "parcels_test.yaml").write_text("")
    done = gavel("rules", "test", folder)
    assert (2, "0 suites, 0 cases: nothing was tested, 1 file not valid") == (done.returncode, done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("params.weight > 30", "params.weight = 30", "cel-syntax: = is no operator of CEL (write == to compare)"),
        ("\nrules:", "\n\tfacts: {}\nrules:", "(YAML indents with spaces: replace the tab)"),
        (
            "\nrules:",
            "\n---\nrules:",
            "yaml-syntax: a second document begins here (a file holds one document: remove `---`, or split the file)",
        ),
    ],
)
def test_what_authors_run_into(folder: Path, before: str, after: str, expected: str) -> None:
    """An assignment, a tab and a second document are each named with what to do."""
    (folder / "parcels.yaml").write_text(RULES.replace(before, after))
    done = gavel("rules", "lint", folder / "parcels.yaml")
    assert 2 == done.returncode
    assert expected in done.stdout


def test_anchors_of_one_name(folder: Path) -> None:
    """Two anchors of one name are two mistakes and nothing else: no words of a library."""
    (folder / "twice.yaml").write_text("gavel: &name v1\nrule_set: &name x\n")
    done = gavel("rules", "lint", folder / "twice.yaml")
    assert (2, "") == (done.returncode, done.stderr)
    assert 2 == done.stdout.count("yaml-anchor: anchors and aliases are not supported: name (repeat the value)")


def test_standard_input_that_cannot_be_read(folder: Path) -> None:
    """Standard input that is closed, or asked for twice, is said in a sentence; exit status 2."""
    done = gavel("rules", "diff", "-", "-")
    assert (2, "gavel: standard input can be one of the two versions only; name a file for the other\n") == (done.returncode, done.stderr)
    line = [GAVEL, "rules", "graph", "-"]
    closed = subprocess.run(["/bin/sh", "-c", 'exec "$@" <&-', "sh", *line], capture_output=True, text=True, check=False)
    assert (2, "gavel: cannot read standard input: it is closed; name a file\n") == (closed.returncode, closed.stderr)


def test_params_that_do_not_fit_are_not_said_to_be_ungoverned(folder: Path) -> None:
    """Where the params do not fit, no rule was asked; that the action has no rules is not said."""
    (folder / "case.yaml").write_text("subject: parcel/1\nparams: {weight: heavy}\nfacts: {status: ready}\n")
    done = gavel("rules", "explain", folder / "parcels.yaml", folder / "case.yaml")
    assert 0 == done.returncode
    assert "INVALID_PARAMS" in done.stdout
    assert "No rule was asked." in done.stdout
    assert "another proposal can help, the same again cannot" in done.stdout


def test_paths_that_cannot_be_meant(folder: Path) -> None:
    """An empty path, a suite in place of a rule set and the other way round are each refused in a sentence; exit status 2."""
    suite, rules = str(folder / "parcels_test.yaml"), str(folder / "parcels.yaml")
    in_place_of_rules = f"gavel: {suite} is a test suite; give the rule set that it tests\n"
    for arguments, sentence in (
        (("lint", ""), "gavel: an empty path names no file; name one, or . for all below this folder\n"),
        (("graph", ""), "gavel: an empty path names no file; name one, or - for standard input\n"),
        (("graph", suite), in_place_of_rules),
        (("diff", rules, suite), in_place_of_rules),
        (("deploy", suite), in_place_of_rules),
        (("test", rules), f"gavel: {rules} is no test suite by its name; suites are named *_test.yaml\n"),
    ):
        done = gavel("rules", *arguments)
        assert (2, "", sentence) == (done.returncode, done.stdout, done.stderr)


def test_a_folder_with_other_files(folder: Path) -> None:
    """Below a folder only rule sets and suites are meant: a server's data, schemas and workflows are left alone, and it is said."""
    (folder / "data").mkdir()
    (folder / ".gavel").mkdir()
    checkpoint = '{"state":   1}'
    (folder / "data/checkpoint.json").write_text(checkpoint)
    (folder / ".gavel/checkpoint.json").write_text(checkpoint)
    (folder / "rule-set.schema.json").write_text(gavel("rules", "schema", "rule-set").stdout)
    (folder / "workflow.yaml").write_text("name: rules\njobs:\n  gavel: {}\n")
    (folder / "headless.yaml").write_text(RULES.replace("gavel: v1\n", ""))
    gavel("rules", "fmt", folder)
    assert [checkpoint] * 2 == [(folder / name / "checkpoint.json").read_text() for name in ("data", ".gavel")]
    done = gavel("rules", "lint", folder)
    assert 2 == done.returncode
    assert f"gavel: 3 of 6 files below {folder} have no key `gavel` and are left alone\n" == done.stderr
    assert ["headless.yaml", "parcels.yaml", "parcels_test.yaml"] == [
        Path(line.partition(":")[0]).name for line in done.stdout.splitlines() if "unused" not in line
    ]


def test_output_that_nobody_hears(folder: Path) -> None:
    """A closed standard output is a failure; a reader that has gone ends the command as SIGPIPE would, and quietly."""
    line = [GAVEL, "rules", "graph", str(folder / "parcels.yaml")]
    closed = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&-', "sh", *line], stderr=subprocess.PIPE, text=True, check=False)
    assert 1 == closed.returncode
    assert closed.stderr.startswith("gavel: standard output is closed; ")
    for command in ("graph", "bench"):
        line = [GAVEL, "rules", command, str(folder / "parcels.yaml")]
        read_end, write_end = os.pipe()
        os.close(read_end)
        gone = subprocess.run(line, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
        os.close(write_end)
        assert (141, "") == (gone.returncode, gone.stderr)
