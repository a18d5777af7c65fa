"""The commands for authors of rule sets, on files, without a server."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import jsonschema_rs
import pytest

from tests.e2e.cli.programs import gavel, gavel_into_closed_pipe
from tests.e2e.world import GAVEL
from tests.support.paths import ROOT

# Ten mistakes; a comment on the line has the code.
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


def marked_mistakes() -> list[tuple[int, str]]:
    """Return the mistakes that TEN_MISTAKES marks, as (line, code)."""
    matches = ((number, re.search(r"# ([a-z-]+)$", line)) for number, line in enumerate(TEN_MISTAKES.splitlines(), 1))
    return [(number, match[1]) for number, match in matches if match]


def test_lint(tmp_path: Path) -> None:
    """Each of ten mistakes is reported on a line with its place; exit status 2."""
    file = tmp_path / "ten.yaml"
    file.write_text(TEN_MISTAKES)
    result = gavel("rules", "lint", file)
    assert (2, "") == (result.returncode, result.stderr)
    lines = [re.fullmatch(rf"{re.escape(str(file))}:(\d+):(\d+): ([a-z-]+): .+", line) for line in result.stdout.splitlines()]
    assert marked_mistakes() == [(int(match[1]), match[3]) for match in lines if match]
    assert 10 == len(lines)
    places = [(int(match[1]), int(match[2])) for match in lines if match]
    marked = {(18, "params.amont"): 57, (19, "facts.score"): 57, (22, "refund.craete"): 24}
    for (line, text), column in marked.items():
        assert TEN_MISTAKES.splitlines()[line - 1].index(text) + 1 == column
        assert (line, column) in places
    (answer,) = json.loads(gavel("rules", "lint", file, "--json=snake").stdout)["files"]
    assert places == [(error["line"], error["column"]) for error in answer["errors"]]


def test_lint_of_a_folder(folder: Path) -> None:
    """Rule sets and suites of a folder are checked together, each suite against its rule set."""
    result = gavel("rules", "lint", folder)
    assert (0, "") == (result.returncode, result.stderr)
    assert f"{folder}/parcels_test.yaml: 2 cases of {folder}/parcels.yaml, valid" in result.stdout
    (folder / "parcels_test.yaml").write_text(TESTS.replace("status: ready", "state: ready"))
    result = gavel("rules", "lint", folder)
    assert 2 == result.returncode
    assert f"{folder}/parcels_test.yaml:3:42: unknown-name: parcel.send declares no fact state (did you mean status?)" in result.stdout


def test_lint_of_rule_sets_that_share_an_action(tmp_path: Path) -> None:
    """A warning names each setting on which the newest versions of two rule sets disagree, at the action."""
    (tmp_path / "a.yaml").write_text(RULES)
    (tmp_path / "b.yaml").write_text(RULES.replace("rule_set: parcels", "rule_set: company") + "# beside it\n")
    assert "rule-sets-disagree" not in gavel("rules", "lint", tmp_path).stdout
    text = RULES.replace("rule_set: parcels", "rule_set: company").replace(
        "  parcel.send:\n", "  parcel.send:\n    conflict_key: '\"all\"'\n"
    )
    (tmp_path / "b.yaml").write_text(text)
    result = gavel("rules", "lint", tmp_path)
    assert (0, "") == (result.returncode, result.stderr)
    (line,) = [line for line in result.stdout.splitlines() if "rule-sets-disagree" in line]
    number = text.splitlines().index("  parcel.send:") + 1
    assert line.startswith(f"{tmp_path}/b.yaml:{number}:3: warning: rule-sets-disagree: conflict_key of parcel.send is ")
    assert f'but "subject" in {tmp_path}/a.yaml' in line
    (tmp_path / "a2.yaml").write_text(
        RULES.replace("version: 1\n", "version: 2\n").replace("  parcel.send:\n", "  parcel.send:\n    conflict_key: '\"all\"'\n")
    )
    assert "rule-sets-disagree" not in gavel("rules", "lint", tmp_path).stdout


def test_passing_suite(folder: Path) -> None:
    """Suites below a folder run; --coverage prints the gaps, and --min-coverage fails only below the minimum."""
    result = gavel("rules", "test", folder, "--coverage", "--min-coverage", "50")
    assert (0, "") == (result.returncode, result.stderr)
    assert "1 suite, 2 cases: all passed" == result.stdout.splitlines()[-1]
    assert f"{folder}/parcels.yaml: rules 2 of 2 (100 %), outcomes of conditions 3 of 4 (75 %)" in result.stdout
    assert '  ready: facts.status == "ready" was never false' in result.stdout
    result = gavel("rules", "test", folder, "--min-coverage", "76")
    assert 1 == result.returncode
    assert f"gavel: coverage of {folder}/parcels.yaml is below 76 %" in result.stderr


def test_coverage_of_a_rule_of_several_actions(folder: Path) -> None:
    """The coverage of a rule of several actions names each action."""
    rules = RULES.replace("gavel: v1", "gavel: v2").replace("action: parcel.send,", 'actions: "parcel.*",')
    action = "  parcel.send:\n" + rules.partition("  parcel.send:\n")[2].partition("rules:\n")[0]
    (folder / "parcels.yaml").write_text(rules.replace("rules:\n", f"{action.replace('send', 'hold')}rules:\n"))
    (folder / "parcels_test.yaml").write_text(TESTS.replace("defaults: {", "defaults: {action: parcel.send, "))
    lines = gavel("rules", "test", folder, "--coverage").stdout.splitlines()
    assert {"  ready of parcel.send: matched 2, decided 1", "  ready of parcel.hold never decided"} <= {*lines}, lines


def test_failing_suite(folder: Path) -> None:
    """A failed case is printed with its differences and the result of every rule; exit status 1."""
    (folder / "parcels.yaml").write_text(RULES.replace("> 30", "> 31"))
    result = gavel("rules", "test", folder / "parcels_test.yaml", "--junit", folder / "junit.xml")
    assert (1, "") == (result.returncode, result.stderr)
    lines = result.stdout.splitlines()
    assert f"{folder}/parcels_test.yaml:10:9: failed: weights: just too heavy" == lines[0]
    assert "  outcome: expected NEEDS_HUMAN_REVIEW, found APPROVED" in lines
    assert "  rule heavy: does not match" in lines
    assert "      params.weight  is  30.1" in lines
    assert "1 suite, 2 cases: 1 failed" == lines[-1]
    suite = ElementTree.parse(folder / "junit.xml").getroot()[0]  # noqa: S314  # we wrote it
    assert ("2", "1", "0") == (suite.get("tests"), suite.get("failures"), suite.get("errors"))
    (failed,) = [case for case in suite if len(case)]
    assert ("weights: just too heavy", "10") == (failed.get("name"), failed.get("line"))
    report = json.loads(gavel("rules", "test", folder, "--json=snake").stdout)
    assert (2, 1) == (report["cases"], report["failures"])
    first = report["suites"][0]["cases"][1]["differences"][0]
    assert {"what": "outcome", "expected": "NEEDS_HUMAN_REVIEW", "found": "APPROVED"} == first


def test_selected_cases(folder: Path) -> None:
    """--case runs the cases of these names, and an unknown name is an error; --short prints one line for each failed case."""
    (folder / "parcels.yaml").write_text(RULES.replace("> 30", "> 31"))
    result = gavel("rules", "test", folder, "--case", "weights: just too heavy", "--short")
    assert (1, "") == (result.returncode, result.stderr)
    difference = 'outcome: expected NEEDS_HUMAN_REVIEW, found APPROVED; reason_code: expected HEAVY, found ""'
    assert [
        f"{folder}/parcels_test.yaml:10:9: failed: weights: just too heavy: {difference}",
        f"{folder}/parcels_test.yaml: 0 of 1 passed",
        "1 suite, 1 case: 1 failed",
    ] == result.stdout.splitlines()
    result = gavel("rules", "test", folder, "--case", "weights: just to heavy")
    assert (2, "") == (result.returncode, result.stdout)
    assert "no suite has a case 'weights: just to heavy'; did you mean weights: just too heavy?" in result.stderr


def test_a_case_that_lacks_facts(folder: Path) -> None:
    """A failed case that was refused for its evidence prints the facts that it lacks, and no rule."""
    (folder / "parcels_test.yaml").write_text(TESTS.replace("facts: {status: ready}", "facts: {}"))
    lines = gavel("rules", "test", folder).stdout.splitlines()
    assert "    lacking: parcel.status of subject/1 missing (required: tier 1 or better, at most 60 s old, from depot)" in lines
    assert [] == [line for line in lines if line.startswith("  rule ")]


def test_an_earlier_proposal_that_lacks_facts(folder: Path) -> None:
    """A case whose earlier proposal is refused prints that decision, and the facts of which subject it lacks."""
    earlier = "  - {name: later, earlier: [{subject: parcel/2}], expect: {outcome: APPROVED}}\n"
    (folder / "parcels_test.yaml").write_text(TESTS.replace("tables:\n", f"{earlier}tables:\n"))
    lines = gavel("rules", "test", folder, "--case", "later").stdout.splitlines()
    decided = lines.index("  earlier.0 decided: REJECTED, NO_FACT_INPUT")
    without_input = "it cites nothing about its subject, parcel/2, and no declared fact; give the case a fact of that subject"
    assert lines[decided + 1].startswith(f"    without input: {without_input}")
    assert "    lacking: parcel.status of parcel/2 missing (required: tier 1 or better, at most 60 s old, from depot)" == lines[decided + 2]
    lines = gavel("rules", "explain", folder / "parcels_test.yaml", "--case", "later").stdout.splitlines()
    assert "earlier.0 decided: REJECTED, NO_FACT_INPUT" in lines


def test_invalid_suites(folder: Path) -> None:
    """An invalid suite or rule set exits with 2; the other suites run, and JUnit XML has an error."""
    (folder / "broken.yaml").write_text(RULES.replace("params.weight >", "params.wait >"))
    (folder / "broken_test.yaml").write_text(TESTS.replace("parcels.yaml", "broken.yaml"))
    (folder / "lost_test.yaml").write_text(TESTS.replace("parcels.yaml", "nowhere.yaml"))
    (folder / "other_test.yaml").write_text(TESTS.replace("parcels.yaml", "[parcels.yaml, elsewhere.yaml]"))
    result = gavel("rules", "test", folder, "--junit", folder / "junit.xml")
    assert 2 == result.returncode
    assert f"{folder}/other_test.yaml:2:23: no-rule-set: cannot read {folder}/elsewhere.yaml" in result.stdout
    assert f"{folder}/broken.yaml:9:57: unknown-name: params has no field wait" in result.stdout
    assert f"{folder}/lost_test.yaml:2:8: no-rule-set: cannot read {folder}/nowhere.yaml" in result.stdout
    assert "1 suite, 2 cases: all passed, 3 files not valid" == result.stdout.splitlines()[-1]
    root = ElementTree.parse(folder / "junit.xml").getroot()  # noqa: S314  # we wrote it
    assert ["0", "1", "1", "1"] == [suite.get("errors") for suite in root]
    assert 2 == gavel("rules", "test", folder / "absent").returncode


def test_explain_a_case(folder: Path) -> None:
    """A case is explained by its decision, every rule and every value; --json prints a preflight response."""
    result = gavel("rules", "explain", folder / "parcels_test.yaml", "--case", "weights: just too heavy")
    assert (0, "") == (result.returncode, result.stderr)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["outcome", "NEEDS_HUMAN_REVIEW", "HEAVY"] == lines[0]
    assert ["parcels", "heavy", "yes"] in lines
    assert ["params.weight", "30.1"] in lines
    result = gavel("rules", "explain", folder / "parcels_test.yaml", "--case", "weights: just too heavy", "--json=snake")
    response = json.loads(result.stdout)
    assert ("heavy", [True, True]) == (response["decision"]["rule_id"], [rule["matched"] for rule in response["explanations"]])
    result = gavel("rules", "explain", folder / "parcels_test.yaml", "--case", "weights: just to heavy")
    assert (2, True) == (result.returncode, "did you mean weights: just too heavy?" in result.stderr)


def test_explain_a_review(folder: Path) -> None:
    """The explanation of a case that goes to review says who has to resolve it, and a diff shows that this was changed."""
    file = folder / "parcels.yaml"
    with_review = folder / "with-review.yaml"
    with_review.write_text(file.read_text().replace("effect: review", "effect: review, review: {quorum: 2, groups: [risk]}"))
    result = gavel("rules", "explain", with_review, "-", text="params: {weight: 31}\nfacts: {status: ready}\n")
    assert "2 of members of risk" in result.stdout
    result = gavel("rules", "diff", file, with_review)
    assert (1, True) == (result.returncode, 'rules.heavy.review: (none) -> {"groups":' in result.stdout), result.stdout


def test_diff_with_a_suite(folder: Path) -> None:
    """A diff with a suite shows the suite's cases that the versions decide differently, and refuses an invalid suite."""
    file, suite = folder / "parcels.yaml", folder / "parcels_test.yaml"
    lighter = folder / "lighter.yaml"
    lighter.write_text(RULES.replace("> 30", "> 29").replace("version: 1", "version: 2"))
    result = gavel("rules", "diff", file, lighter, "--suite", suite)
    lines = result.stdout.splitlines()
    at = lines.index(f"case 'a parcel that is ready may go' of {suite}")
    assert ["  before: APPROVED by ready", "  after:  NEEDS_HUMAN_REVIEW HEAVY by heavy"] == lines[at + 1 :]
    assert (1, True) == (result.returncode, result.stderr.endswith("; cases of suites: 1\n"))
    (case,) = json.loads(gavel("rules", "diff", file, lighter, "--suite", suite, "--json").stdout)["suite_cases"]
    assert (str(suite), "ready", "heavy") == (case["suite"], case["before"]["rule_id"], case["after"]["rule_id"])
    suite.write_text(TESTS.replace("weight: 30}", "weight: 30}, fact: {}"))
    assert (2, True) == ((refused := gavel("rules", "diff", file, file, "--suite", suite)).returncode, f"{suite}:3:" in refused.stderr)


def test_explain_a_proposal(folder: Path) -> None:
    """A case from standard input is explained against a rule set; its mistakes have their places."""
    result = gavel("rules", "explain", folder / "parcels.yaml", "-", text="params: {weight: 5}\nfacts: {status: lost}\n")
    assert (0, "REJECTED NO_RULE_MATCHED") == (result.returncode, " ".join(result.stdout.split()[1:3]))
    result = gavel("rules", "explain", folder / "parcels.yaml", "-", text="params: {weight: 5}\nfact: {status: lost}\n")
    assert (2, True) == (result.returncode, "-:2:1: unknown-key: no such key here: fact (did you mean facts?)" in result.stderr)
    assert 2 == gavel("rules", "explain", folder / "parcels.yaml").returncode


def test_fmt(folder: Path) -> None:
    """--check names the files that would change and writes nothing; otherwise they are formatted, with the same digest."""
    file = folder / "parcels.yaml"
    untidy = RULES.replace("  - {id: heavy, action: parcel.send,", "  -   {action: parcel.send,   id: heavy,")
    file.write_text(untidy)
    result = gavel("rules", "fmt", folder, "--check")
    assert (1, untidy) == (result.returncode, file.read_text())
    assert f"{file} would be formatted" in result.stderr
    before = gavel("rules", "lint", file).stdout
    assert 0 == gavel("rules", "fmt", folder).returncode
    assert (RULES, before) == (file.read_text(), gavel("rules", "lint", file).stdout)
    assert 0 == gavel("rules", "fmt", folder, "--check").returncode
    result = gavel("rules", "fmt", "-", text=untidy)
    assert (0, RULES) == (result.returncode, result.stdout)
    file.write_text("rules: [")
    assert 2 == gavel("rules", "fmt", file).returncode


@pytest.mark.parametrize("name", ["rule-set", "test"])
def test_schema(name: str) -> None:
    """The schema is printed as shipped."""
    schema = json.loads(gavel("rules", "schema", name).stdout)
    jsonschema_rs.meta.validate(schema)
    assert json.loads((ROOT / f"rules/gavel_rules/schemas/{name}.json").read_text()) == schema


def test_no_valid_suite(folder: Path) -> None:
    """If no suite is valid, the summary does not say that cases passed."""
    (folder / "parcels_test.yaml").write_text("")
    result = gavel("rules", "test", folder)
    assert (2, "0 suites, 0 cases: nothing was tested, 1 file not valid") == (result.returncode, result.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("params.weight > 30", "params.weight = 30", "cel-syntax: = is not an operator of CEL (write == to compare)"),
        ("\nrules:", "\n\tfacts: {}\nrules:", "(YAML indents with spaces: replace the tab)"),
        (
            "\nrules:",
            "\n---\nrules:",
            "yaml-syntax: a second document begins here (a file holds one document: remove `---`, or split the file)",
        ),
    ],
)
def test_common_mistakes(folder: Path, before: str, after: str, expected: str) -> None:
    """The messages on an assignment, a tab and a second document say what to do."""
    (folder / "parcels.yaml").write_text(RULES.replace(before, after))
    result = gavel("rules", "lint", folder / "parcels.yaml")
    assert 2 == result.returncode
    assert expected in result.stdout


def test_anchors_of_one_name(folder: Path) -> None:
    """Two anchors of one name are two mistakes, without a message of the YAML library."""
    (folder / "twice.yaml").write_text("gavel: &name v1\nrule_set: &name x\n")
    result = gavel("rules", "lint", folder / "twice.yaml")
    assert (2, "") == (result.returncode, result.stderr)
    assert 2 == result.stdout.count("yaml-anchor: anchors and aliases are not supported: name (repeat the value)")


def test_unreadable_standard_input(folder: Path) -> None:
    """Standard input that is closed or used twice is exit status 2."""
    result = gavel("rules", "diff", "-", "-")
    assert (2, "gavel: standard input can be only one of the two versions; name a file for the other\n") == (
        result.returncode,
        result.stderr,
    )
    line = [GAVEL, "rules", "graph", "-"]
    closed = subprocess.run(["/bin/sh", "-c", 'exec "$@" <&-', "sh", *line], capture_output=True, text=True, check=False)
    assert (2, "gavel: standard input is closed; name a file\n") == (closed.returncode, closed.stderr)


def test_several_rule_sets(folder: Path) -> None:
    """A suite over two rule sets runs with both in force, and has the coverage of each."""
    rules = (folder / "parcels.yaml").read_text()
    (folder / "company.yaml").write_text(re.sub(r"(?m)^rule_set: .*$", "rule_set: company", rules))
    suite = (folder / "parcels_test.yaml").read_text()
    (folder / "parcels_test.yaml").write_text(suite.replace("tests: parcels.yaml", "tests: [company.yaml, parcels.yaml]"))
    result = gavel("rules", "test", folder, "--coverage")
    assert (0, "") == (result.returncode, result.stderr), result.stdout
    assert {"company.yaml", "parcels.yaml"} <= {name.rpartition("/")[2].rstrip(":") for name in result.stdout.split()}


def test_imports_are_bundled(folder: Path) -> None:
    """Commands bundle what a rule set imports, refuse another content than its digest names, and check no library by itself."""
    library = {"gavel": "v2", "library": "company", "constants": {"heaviest": 20}}
    (folder / "company.yaml").write_text(json.dumps(library))
    rules = (folder / "parcels.yaml").read_text().replace("gavel: v1", "gavel: v2")
    unbundled = f'{rules}\nimports: [{{file: company.yaml, digest: "{"sha256:" + "0" * 64}"}}]\n'
    (folder / "parcels.yaml").write_text(unbundled)
    refused = gavel("rules", "bundle", folder / "parcels.yaml")
    assert 2 == refused.returncode
    (digest,) = re.findall(r"company.yaml has the digest (sha256:[0-9a-f]{64})", refused.stderr)
    linted = gavel("rules", "lint", folder / "company.yaml")
    assert f"missing-key: the document is a library, with the digest {digest} (give a rule set" in linted.stdout
    (folder / "parcels.yaml").write_text(unbundled.replace("sha256:" + "0" * 64, digest))
    bundled = gavel("rules", "bundle", folder / "parcels.yaml")
    assert (0, "") == (bundled.returncode, bundled.stderr)
    assert '"heaviest": 20' in bundled.stdout
    checked = gavel("rules", "lint", folder)
    assert checked.returncode in (0, 1), checked.stdout + checked.stderr
    assert "company.yaml" not in checked.stdout


def test_explain_invalid_params(folder: Path) -> None:
    """If the params do not fit, the output says that no rule was evaluated."""
    (folder / "case.yaml").write_text("subject: parcel/1\nparams: {weight: heavy}\nfacts: {status: ready}\n")
    result = gavel("rules", "explain", folder / "parcels.yaml", folder / "case.yaml")
    assert 0 == result.returncode
    assert "INVALID_PARAMS" in result.stdout
    assert "No rule was evaluated." in result.stdout
    assert "propose other params or another action" in result.stdout


def test_wrong_paths(folder: Path) -> None:
    """An empty path, a suite in place of a rule set and a rule set in place of a suite are exit status 2."""
    suite, rules = str(folder / "parcels_test.yaml"), str(folder / "parcels.yaml")
    in_place_of_rules = f"gavel: {suite} is a test suite; give the rule set that the suite tests\n"
    for arguments, sentence in (
        (("lint", ""), "gavel: an empty path names no file; name a file, or . for everything below this folder\n"),
        (("graph", ""), "gavel: an empty path names no file; name a file, or - for standard input\n"),
        (("graph", suite), in_place_of_rules),
        (("diff", rules, suite), in_place_of_rules),
        (("deploy", suite), in_place_of_rules),
        (("test", rules), f"gavel: {rules} does not have the name of a test suite; did you mean {suite}?\n"),
    ):
        result = gavel("rules", *arguments)
        assert (2, "", sentence) == (result.returncode, result.stdout, result.stderr)


def test_a_folder_with_other_files(folder: Path) -> None:
    """Below a folder a server's data, schemas and workflows are skipped, with a note."""
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
    result = gavel("rules", "lint", folder)
    assert 2 == result.returncode
    assert f"gavel: skipped 3 of 6 files below {folder}: they are not about rule sets\n" == result.stderr
    assert ["headless.yaml", "parcels.yaml", "parcels_test.yaml"] == [
        Path(line.partition(":")[0]).name for line in result.stdout.splitlines() if "unused" not in line
    ]


@pytest.mark.long
def test_closed_output(folder: Path) -> None:
    """A closed standard output is exit status 1; a closed pipe ends commands, help and version silently with 141."""
    line = [GAVEL, "rules", "graph", str(folder / "parcels.yaml")]
    closed = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&-', "sh", *line], stderr=subprocess.PIPE, text=True, check=False)
    assert 1 == closed.returncode
    assert closed.stderr.startswith("gavel: standard output is closed; ")
    file = str(folder / "parcels.yaml")
    for arguments in (("rules", "graph", file), ("rules", "bench", file), ("--version",), ("--help",), ("log", "list", "--help")):
        process = gavel_into_closed_pipe(*arguments)
        assert (141, "") == (process.returncode, process.stderr), arguments
