"""The commands of `gavel grants` that need no server: their output and exit statuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gavel_server.cli.main import run

DOCUMENT = """\
gavel: v1
grants: main
version: 1
grants:
  - {to: ["group:agents"], may: [propose], produce: {types: [agent], ids: ["refund-*"]}, actions: ["refund.*"], subjects: ["order/*"]}
  - {to: [root], may: [grant]}
"""
SUITE = """\
gavel: v1
tests: grants.yaml
cases:
  - {name: agents refund, caller: {name: ada, groups: [agents]}, right: propose, PARTS, expect: allowed}
  - {name: agents pay, caller: {name: ada, groups: [agents]}, right: execute, expect: allowed}
""".replace("PARTS", "produce: {type: agent, id: refund-1}, action: refund.create, subject: order/1")


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A document with an agents' and an administrator's grant."""
    file = tmp_path / "grants.yaml"
    file.write_text(DOCUMENT)
    return str(file)


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["--producer", "agent:refund-1", "--action", "refund.create", "--subject", "order/1"], 0, "allowed by grant 1: to group:agents; "),
        (["--producer", "agent:other"], 1, "denied: the grants main version 1 give 'ada' the right propose, but not for this call: "),
        (["--producer", "executor:refund-1"], 1, "grant 1 lacks producers of type executor"),
        (["--action", "order.delete"], 1, "grant 1 lacks action order.delete"),
        (["--subject", "customer/1"], 1, "grant 1 lacks subject customer/1"),
        (
            ["--producer", "api:x", "--action", "order.delete", "--subject", "customer/1"],
            1,
            "grant 1 lacks producers of type api, producer id x, action order.delete, subject customer/1\n",
        ),
        ([], 2, "grant 1 restricts produce and action and subject, which every such call has; add --producer and --action and --subject\n"),
        (["--producer", "agent:refund-1", "--action", "refund.create"], 2, "which every such call has; add --subject\n"),
        (["--producer", "robot:x"], 2, "no type of producers; the types are sensor, api, database_snapshot, agent, "),
        (["--producer", "agent"], 2, "--producer 'agent' is not TYPE:ID"),
    ],
)
def test_explain(file: str, options: list[str], status: int, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain` names the grant that allows an access, or what the nearest grants lack; wrong arguments are exit status 2."""
    assert status == run(["grants", "explain", file, "ada", "propose", "--group", "agents", *options])
    assert expected in "".join(capsys.readouterr())


@pytest.mark.parametrize(("right", "expected"), [("reed", "did you mean read?"), ("fly", "the rights are propose, preflight, ")])
def test_unknown_right(file: str, right: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A right that does not exist is exit status 2, with the nearest right or all of them."""
    assert 2 == run(["grants", "explain", file, "ada", right])
    assert f"gavel: there is no right '{right}'; {expected}" in capsys.readouterr().err


def test_diff(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`diff` shows the grants that differ and the rights that callers gain and lose: exit status 1, and 0 for equal documents."""
    other = tmp_path / "other.yaml"
    other.write_text(DOCUMENT.replace("[grant]", "[grant, read], joins: [ada]"))
    assert 1 == run(["grants", "diff", file, str(other)])
    assert "- to root; may grant\n+ to root; may grant, read; joins ada\nroot gains read\n" == capsys.readouterr().out
    assert 0 == run(["grants", "diff", file, file])


def test_lint(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`lint` prints mistakes and warnings with their places; only mistakes are an exit status."""
    assert 0 == run(["grants", "lint", file])
    assert "main version 1 is valid" in "".join(capsys.readouterr())
    other = tmp_path / "other.yaml"
    other.write_text(DOCUMENT.replace("to: [root]", 'to: ["svc-*"]'))
    assert 0 == run(["grants", "lint", str(other)])
    assert f"warning: {other}:6:5: no-such-caller: grant 2: to names 'svc-*'" in "".join(capsys.readouterr())
    other.write_text(DOCUMENT.replace("[grant]", "[fly]"))
    assert 2 == run(["grants", "lint", str(other)])
    assert f"{other}:6:24: unknown-right: there is no right 'fly'" in "".join(capsys.readouterr())


def test_lint_beside_rules(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --rules `lint` warns of groups that reviews name and that may not review."""
    rules = tmp_path / "rules.yaml"
    review = "review: {groups: [risk], escalate_after_ms: 1000, escalate_to: [leads]}"
    rules.write_text(
        f"gavel: v1\nrule_set: r\nversion: 1\nactions:\n  refund.create:\n    {review}\n"
        "    params: {type: object}\n    facts: {a: {key: a.b, type: string, max_age_ms: 1}}\n"
        "rules:\n  - {id: all, action: refund.create, priority: 1, when: 'true', effect: review, reason_code: LOOK}\n"
    )
    assert 0 == run(["grants", "lint", file, "--rules", str(rules)])
    output = "".join(capsys.readouterr())
    assert ["leads", "risk"] == re.findall(r"group-may-not-review: no grant lets group:(\w+) review refund\.create", output)


def test_the_documented_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The grants in docs/security.md deserve no warning, and pass the tests that are shown with them."""
    text = (Path(__file__).parents[6] / "docs/security.md").read_text()
    document, suite, *_ = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "grants.yaml").write_text(document)
    (tmp_path / "grants_test.yaml").write_text(suite)
    assert 0 == run(["grants", "lint", str(tmp_path / "grants.yaml")])
    assert 0 == run(["grants", "test", str(tmp_path / "grants_test.yaml")])
    output = "".join(capsys.readouterr())
    assert "warning" not in output
    assert "2 of 2 passed" in output


def test_suite(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`test` runs the cases of a suite; a case that fails is exit status 1, with its line and the reason."""
    suite = Path(file).with_name("grants_test.yaml")
    suite.write_text(SUITE)
    assert 1 == run(["grants", "test", str(suite)])
    output = "".join(capsys.readouterr())
    assert f"{suite}:5: agents pay: expected allowed, but it is denied: no grant of main version 1 gives 'ada' the right execute" in output
    assert "1 of 2 passed" in output


def test_control_characters(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control and format characters of a document do not reach the terminal."""
    suite, other = tmp_path / "grants_test.yaml", tmp_path / "other.yaml"
    suite.write_text(SUITE.replace("agents pay", '"agents\\e[2J pay"').replace("name: ada", 'name: "a\\x9bda"'))
    other.write_text(DOCUMENT.replace("[root]", '["ro\\x9bot"]'))
    for status, *arguments in (
        (1, "test", str(suite)),
        (1, "diff", file, str(other)),
        (1, "diff", file, str(other), "--json"),
        (0, "lint", str(other), "--json"),
        (0, "explain", str(other), "ro\x9bot", "grant"),
        (1, "explain", str(other), "ro\x9bot", "read"),
    ):
        assert status == run(["grants", *arguments])
        assert "" == "".join(one for one in "".join(capsys.readouterr()) if not one.isprintable() and one != "\n")


def test_folder(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`test` runs the suites of grants below a folder, and `rules test` those of rule sets; a folder without one is exit status 2."""
    sets = Path(__file__).parents[6] / "rules/sets"
    for name in ("refunds.yaml", "refunds_test.yaml"):
        (tmp_path / name).write_text((sets / name).read_text())
    (tmp_path / "more").mkdir()
    suite = SUITE.replace("grants.yaml", "../grants.yaml").replace("right: execute, expect: allowed", "right: execute, expect: denied")
    (tmp_path / "more/agents_test.yaml").write_text(suite)
    (tmp_path / "more/agents.yaml").write_text(DOCUMENT)
    (tmp_path / "json_test.json").write_text('{"gavel": "v1", "tests": "more/agents.yaml", "cases": []}')
    assert 2 == run(["grants", "test", str(tmp_path)])
    assert "json_test.json:1:55: out-of-range: cases: " in capsys.readouterr().out
    (tmp_path / "json_test.json").unlink()
    assert 0 == run(["grants", "test", str(tmp_path)])
    assert f"{tmp_path}/more/agents_test.yaml: 2 of 2 passed\n" == capsys.readouterr().out
    assert 0 == run(["rules", "test", str(tmp_path)])
    assert "1 suite, " in capsys.readouterr().out
    assert 2 == run(["grants", "test", str(sets)])
    assert f"there is no suite of grants below {sets}" in capsys.readouterr().err


def test_invalid_files_do_not_end_the_run(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`test` goes on after a file with mistakes, reports all of them, a missing document at its place, and exits with 2."""
    good = SUITE.replace("execute, expect: allowed", "execute, expect: denied")
    texts = {"a": "- 1\n", "b": good.replace("grants.yaml", "nowhere.yaml"), "c": good.replace("grants.yaml", "broken.yaml"), "d": good}
    suites = [tmp_path / f"{name}_test.yaml" for name in texts]
    for suite, text in zip(suites, texts.values(), strict=True):
        suite.write_text(text)
    (tmp_path / "broken.yaml").write_text(DOCUMENT.replace("[grant]", "[fly]"))
    assert 2 == run(["grants", "test", *map(str, suites)])
    a, b, _, d = suites
    assert [
        f"{d}: 2 of 2 passed",
        f"{a}:1:1: wrong-type: the suite is not a mapping (start with `gavel: v1`)",
        f"{b}:2:8: no-grants: cannot read {tmp_path}/nowhere.yaml: No such file or directory (give the path of the grants relative to the "
        "suite's folder)",
    ] == capsys.readouterr().out.splitlines()[:3]
