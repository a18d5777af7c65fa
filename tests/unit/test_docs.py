"""The documentation says what the code does: names, limits, codes, settings and examples are compared with their source."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from gavel.v1 import (
    arbitration_service_pb2,
    error_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
)
from gavel_rules import events, limits, reasons
from gavel_rules.authoring.analysis import analyse
from gavel_rules.language import codes
from gavel_rules.language.ruleset import DocumentError, DocumentMessage, compile_rule_set
from gavel_rules.stages import STAGES
from gavel_server.cli.main import app
from gavel_server.config import Settings

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SERVICES: Final = (
    arbitration_service_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
)
# Modules whose limits an author of rule sets can meet.
LIMITS_OF_DOCUMENTS: Final = (
    "authoring.analysis",
    "language.document",
    "language.parts",
    "language.source",
    "language.schema",
    "language.name_analysis",
    "language.cost",
    "language.patterns",
    "language.suggestions",
    "language.variables",
    "language.ruleset",
)
# Named in the docs as not there yet.
FUTURE_COMMANDS: Final = frozenset({"upgrade", "redis-acl"})


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every table row."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def _slugs(page: Path) -> set[str]:
    """Return the anchors that a page's headings have on the usual forges."""
    headings = re.findall(r"^#+ (.+)$", _without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """Every relative link names a file of this repository, and its anchor a heading there."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in _slugs(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("folder", [DOCS, DOCS / "decisions"], ids=lambda folder: folder.name)
def test_index_names_every_page(folder: Path) -> None:
    """The index of a folder links to each of its pages."""
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in sorted(folder.glob("*.md")) if page.name != "README.md" and f"]({page.name})" not in index] == []


def test_decisions_have_unique_numbers() -> None:
    """A number stands for one decision, and the page's heading bears it."""
    pages = sorted((DOCS / "decisions").glob("0*.md"))
    assert [page.name[:4] for page in pages] == sorted({page.name[:4] for page in pages})
    assert [page.name for page in pages if not page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]} ")] == []


def _emitted_reason_codes() -> set[str]:
    """Return Gavel's reason codes that any module of the core uses."""
    used: set[str] = set()
    for module in sorted((ROOT / "rules/gavel_rules").rglob("*.py")):
        if module.stem != "stages":  # which names them all
            used.update(re.findall(r"\breasons\.([A-Z_]+)\b", module.read_text(encoding="utf-8")))
    return used & reasons.RESERVED


def test_reason_codes_are_explained() -> None:
    """Every code that can be emitted is explained in arbitration.md, and every other one is named as reserved."""
    explained, _, reserved = _text("arbitration.md").partition("## Reserved reason codes")
    emitted = _emitted_reason_codes()
    assert sorted(code for code in emitted if f"`{code}`" not in explained) == []
    assert sorted(re.findall(r"`([A-Z_]+)`", reserved.partition("## ")[0])) == sorted(reasons.RESERVED - emitted)


def test_stages_are_those_of_the_code() -> None:
    """The table of stages has the numbers and codes of the code's table, in its order, as far as they are emitted."""
    emitted = _emitted_reason_codes()
    in_use = [(stage.number, emitted & set(stage.reason_codes)) for stage in STAGES]
    table = [(int(cells[0]), re.findall(r"`([A-Z_]+)`", cells[2])) for cells in _rows(_text("arbitration.md")) if cells[0].isdigit()]
    assert [number for number, used in in_use if used] == [number for number, _ in table]
    for number, used in in_use:
        assert used <= set(dict(table).get(number, ()))


def test_error_reasons_are_listed() -> None:
    """Every ErrorReason stands in the error table of contract.md."""
    names = [name.removeprefix("ERROR_REASON_") for name in error_pb2.ErrorReason.keys()[1:]]
    table = " ".join(cells[0] for cells in _rows(_text("contract.md")))
    assert [name for name in names if f"`{name}`" not in table] == []


def test_calls_are_listed() -> None:
    """Every call of every service stands in contract.md."""
    text = _text("contract.md")
    methods = [method.name for module in SERVICES for service in module.DESCRIPTOR.services_by_name.values() for method in service.methods]
    assert [name for name in methods if f"`{name}`" not in text] == []


def _limits(module: object) -> dict[str, int]:
    named = vars(module).items()
    return {name: value for name, value in named if name.isupper() and not name.startswith("_") and isinstance(value, int)}


def _documented(page: str) -> dict[str, str]:
    """Return the second cell of every table row whose first cell is a constant's name."""
    return {cells[0].strip("`"): cells[1] for cells in _rows(_text(page)) if re.fullmatch(r"`[A-Z_]+`", cells[0]) and len(cells) > 2}


def test_limits_are_listed_with_their_values() -> None:
    """Every limit of the contract stands in contract.md with the value that the code has."""
    documented = _documented("contract.md")
    assert {name: documented.get(name) for name in _limits(limits)} == {name: f"{value:,}" for name, value in _limits(limits).items()}


def test_limits_of_documents_are_listed_with_their_values() -> None:
    """Every limit of rule set documents stands in rule-language.md with the value that the code has."""
    documented = _documented("rule-language.md")
    expected = {}
    for name in LIMITS_OF_DOCUMENTS:
        module = importlib.import_module(f"gavel_rules.{name}")
        own = re.findall(
            r"^([A-Z_]+_MAX): Final",
            (ROOT / f"rules/gavel_rules/{name.replace('.', '/')}.py").read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        )
        expected.update({limit: f"{getattr(module, limit):,}" for limit in own})
    assert {name: documented.get(name) for name in expected} == expected


def _modules_of_the_compiler() -> set[Path]:
    """Return the compiler's modules: all of the core that `ruleset` and `analysis` import, and the process that runs them."""
    package = ROOT / "rules/gavel_rules"
    found: set[Path] = set()
    waiting = {package / "language/ruleset.py", package / "authoring/analysis.py"}
    while waiting:
        module = waiting.pop()
        found.add(module)
        imported = re.findall(r"^from gavel_rules\.([\w.]+) import", module.read_text(encoding="utf-8"), flags=re.MULTILINE)
        waiting.update({package / f"{name.replace('.', '/')}.py" for name in imported if name != "language"} - found)
    return found | {ROOT / "server/gavel_server/compile_worker.py"}


def _codes_of_the_compiler() -> set[str]:
    """Return every kebab-case text of the compiler's modules: these are its codes, and nothing else there looks like one."""
    found = {"not-bool", "not-double", "not-scalar", "not-string"}  # made of the type that an expression should have
    for module in _modules_of_the_compiler():
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z]+(-[a-z]+)+", node.value):
                found.add(node.value)
    return found - {events.FACT_DERIVATION_REACTOR}


def test_the_table_of_codes_is_complete() -> None:
    """The table has the codes that the compiler's modules use, and no other."""
    assert sorted(_codes_of_the_compiler()) == sorted({*codes.MISTAKES, *codes.WARNINGS})


def test_codes_of_the_compiler_are_listed() -> None:
    """rule-language.md lists every code with what the table says that it means."""
    rows = [cells for cells in _rows(_text("rule-language.md")) if re.fullmatch(r"`[a-z]+(-[a-z]+)+`", cells[0])]
    assert {**codes.MISTAKES, **codes.WARNINGS} == {cells[0].strip("`"): cells[1].rstrip(" |") for cells in rows}


def test_every_code_has_an_example() -> None:
    """Every code has an example that a test below makes, but for those that no single change to the sample can give."""
    without = {*codes.MISTAKES, *codes.WARNINGS} - {example[0] for example in _examples()}
    assert {
        "document-too-long",
        "duplicate-derivation",
        "engine-disagreement",
        "more-mistakes",
        "not-analysed",
        "schema-too-large",
        "too-complex",
        "too-deep",
        "too-large",
        "too-many-rules",
    } == without


def _sample() -> str:
    found = re.search(r"```yaml\n(.*?)```", _text("rule-language.md"), flags=re.DOTALL)
    assert found is not None
    return found.group(1)


def _examples() -> list[tuple[str, str, str, str]]:
    """Return (code, what to change, what into, message) of every example of a mistake or warning."""
    examples = []
    for cells in _rows(_text("rule-language.md")):
        change = re.fullmatch(r"`([^`]+)` to `([^`]+)`", cells[2]) if len(cells) == 4 else None
        if change is not None:
            examples.append((cells[0].strip("`"), change[1], change[2], cells[3].strip("`").strip()))
    return examples


def test_the_sample_document_is_valid() -> None:
    """The document at the top of rule-language.md compiles, without a warning."""
    compiled = compile_rule_set(_sample())
    assert (compiled.warnings, analyse(compiled)) == ((), ())


@pytest.mark.parametrize(("code", "old", "new", "message"), _examples(), ids=[example[0] for example in _examples()])
def test_example_of_a_mistake(code: str, old: str, new: str, message: str) -> None:
    """The change that the page describes gives the code and the message that it says."""
    document = _sample()
    assert old in document
    found: tuple[DocumentMessage, ...]
    try:
        compiled = compile_rule_set(document.replace(old, new, 1))
        found = (*compiled.warnings, *analyse(compiled))
    except DocumentError as error:
        found = error.messages
    said = [f"{one.code}: {one.message}" + (f" ({one.suggestion})" if one.suggestion else "") for one in found]
    assert f"{code}: {message}" in said


def test_settings_are_listed() -> None:
    """Every setting stands in operating.md with its option and its environment variable."""
    rows = {cells[0].strip("`"): cells for cells in _rows(_text("operating.md"))}
    for name in Settings.model_fields:
        assert f"`--{name.replace('_', '-')}`" in rows[name][1]
        assert f"`GAVEL_{name.upper()}`" == rows[name][2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    """Every `gavel COMMAND` that the docs show is a command of the program, or is named as one to come."""
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups} | FUTURE_COMMANDS
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^    .+$", text, flags=re.MULTILINE) + "\n".join(re.findall(r"```sh\n.*?```", text, flags=re.DOTALL)).splitlines()
    shown = {command for line in lines for command in re.findall(r"(?:^\s*|until |/)gavel ([a-z][a-z-]+)\b", line)}
    shown.update(re.findall(r"`gavel ([a-z][a-z-]+)\b[^`]*`", text))
    assert sorted(shown - known) == []


def test_every_command_is_listed() -> None:
    """operating.md has a table of all commands, and of nothing else."""
    groups = [("", app), *((f"{group.name} ", group.typer_instance) for group in app.registered_groups)]
    commands = {
        f"{prefix}{command.name or getattr(command.callback, '__name__', None)}"
        for prefix, group in groups
        if group is not None
        for command in group.registered_commands
    }
    table = _text("operating.md").partition("| to | `gavel` … |")[2].partition("\n\n")[0]
    assert commands == set(re.findall(r"`([a-z ]+)`", table))


def test_hazards_have_their_tests() -> None:
    """Every known hazard of the engines stands in guarantees.md, with tests that exist."""
    rows = {cells[0]: cells for cells in _rows(_text("guarantees.md")) if re.fullmatch(r"[HC]\d+", cells[0])}
    assert {*(f"H{number}" for number in range(1, 19)), *(f"C{number}" for number in range(1, 9))} == rows.keys()
    tests = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }
    for cells in rows.values():
        named = set(re.findall(r"`(test_\w+)`", cells[-1]))
        assert named
        assert named <= tests


def test_demands_have_their_tests() -> None:
    """The table of what seeds 002 demand goes through §4 to §10 in order, and each test that it names is in the file that it links to."""
    rows = [cells for cells in _rows(_text("guarantees.md")) if re.fullmatch(r"\d+(\.\d+)*", cells[0])]
    sections = [[int(number) for number in cells[0].split(".")] for cells in rows]
    assert sorted(sections) == sections
    assert set(range(4, 11)) == {section[0] for section in sections}
    for cells in rows:
        for name, target in re.findall(r"\[(test_\w+)\]\(([^)]+)\)", cells[-1]):
            assert re.search(rf"def {name}\(", (DOCS / target).read_text(encoding="utf-8")), (cells[0], name)
