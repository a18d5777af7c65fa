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
    administration_service_pb2,
    arbitration_service_pb2,
    error_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
    work_service_pb2,
)
from gavel.v1.decision_pb2 import Remedy
from gavel_rules import limits, reason_codes
from gavel_rules.authoring.lint import lint_rule_set
from gavel_rules.events import kinds
from gavel_rules.language.document import diagnostic_codes
from gavel_rules.language.rule_set import DocumentError, DocumentMessage, compile_rule_set
from gavel_rules.reason_codes import REASON_CODES
from gavel_server.cli.app import app
from gavel_server.config import FILE_ONLY, Settings
from gavel_server.log.postgresql.schema import schema_sql
from gavel_server.services.reads.log_reader import reason_code_violations

from tests.support.paths import ROOT

DOCS: Final = ROOT / "docs"
PAGES: Final = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SERVICES: Final = (
    administration_service_pb2,
    arbitration_service_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
    work_service_pb2,
)
# Modules whose limits an author of rule sets can meet.
LIMITS_OF_DOCUMENTS: Final = (
    "authoring.lint",
    "language.document.diagnostics",
    "language.document.models",
    "language.document.source",
    "language.document.yaml_reader",
    "language.document.params_schema",
    "language.document.schema_check",
    "language.cel.name_analysis",
    "language.cel.cost",
    "language.cel.pattern_cost",
    "text",
    "language.cel.variables",
    "language.cel.counter_reads",
    "language.counters.counter",
    "language.rule_set",
)


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
    """Each number belongs to one decision, and the page's heading has it."""
    pages = sorted((DOCS / "decisions").glob("0*.md"))
    assert [page.name[:4] for page in pages] == sorted({page.name[:4] for page in pages})
    assert [page.name for page in pages if not page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]} ")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_after_a_link_are_in_the_file(page: Path) -> None:
    """Every function or class in parentheses after a link to a source file is named in that file."""
    missing = []
    links = re.findall(r"\]\(([^)#\s]+\.(?:py|go|lua|sql))\)\s+\(((?:`[\w.]+`(?:,\s+)?)+)\)", page.read_text(encoding="utf-8"))
    for path, names in links:
        source = (page.parent / path).read_text(encoding="utf-8")
        missing += [name for name in re.findall(r"`([\w.]+)`", names) if not all(part in source for part in name.split("."))]
    assert missing == []


def _emitted_reason_codes() -> set[str]:
    """Return Gavel's reason codes that any module of the core uses."""
    used: set[str] = set()
    for module in sorted((ROOT / "rules/gavel_rules").rglob("*.py")):
        if module.stem != "reason_codes":  # it defines all of them
            used.update(re.findall(r"\breason_codes\.([A-Z_]+)\b", module.read_text(encoding="utf-8")))
    return used & reason_codes.RESERVED_CODES


def test_reason_codes_are_explained() -> None:
    """arbitration.md explains every code that can be emitted, and names every other one as reserved."""
    explained, _, reserved = _text("arbitration.md").partition("## Reserved reason codes")
    emitted = _emitted_reason_codes()
    assert sorted(code for code in emitted if f"`{code}`" not in explained) == []
    assert sorted(re.findall(r"`([A-Z_]+)`", reserved.partition("## ")[0])) == sorted(reason_codes.RESERVED_CODES - emitted)


def test_stages_are_those_of_the_code() -> None:
    """The page's table of stages has the numbers and emitted codes of REASON_CODES, in the same order."""
    emitted = _emitted_reason_codes()
    numbers = sorted({row.stage for row in reason_codes.REASON_CODES if row.stage is not None})
    in_use = [(number, emitted & set(reason_codes.codes_of_stage(number))) for number in numbers]
    table = [(int(cells[0]), re.findall(r"`([A-Z_]+)`", cells[2])) for cells in _rows(_text("arbitration.md")) if cells[0].isdigit()]
    assert [number for number, used in in_use if used] == [number for number, _ in table]
    for number, used in in_use:
        assert used <= set(dict(table).get(number, ()))


def test_error_reasons_are_listed() -> None:
    """Every ErrorReason is in the error table of contract.md."""
    names = [name.removeprefix("ERROR_REASON_") for name in error_pb2.ErrorReason.keys()[1:]]
    table = " ".join(cells[0] for cells in _rows(_text("contract.md")))
    assert [name for name in names if f"`{name}`" not in table] == []


def test_calls_are_listed() -> None:
    """Every call of every service is in contract.md."""
    text = _text("contract.md")
    methods = [method.name for module in SERVICES for service in module.DESCRIPTOR.services_by_name.values() for method in service.methods]
    assert [name for name in methods if f"`{name}`" not in text] == []


def _limits(module: object) -> dict[str, int]:
    named = vars(module).items()
    return {name: value for name, value in named if name.isupper() and not name.startswith("_") and isinstance(value, int)}


def _documented(page: str) -> dict[str, str]:
    """Return the second cell of every table row whose first cell is a constant's name."""
    return {cells[0].strip("`"): cells[1] for cells in _rows(_text(page)) if re.fullmatch(r"`[A-Z_]+`", cells[0]) and len(cells) > 2}


def test_the_map_of_the_code_names_what_exists() -> None:
    """Every path in architecture.md exists, and every function or class that it names in a file is defined there."""
    folders = [ROOT, *(ROOT / name for name in ("rules/gavel_rules", "server/gavel_server", "client/python/gavel_client", "tests"))]
    missing = []
    for path, name in re.findall(r"`([\w./*-]+(?:/|\.py|\.go|\.lua|\.proto))(?:: ([\w.]+))?`", _text("architecture.md")):
        files = [file for folder in folders for file in (*folder.glob(path), *folder.glob(f"*/{path}"), *folder.glob(f"*/*/{path}"))]
        sources = [file.read_text(encoding="utf-8") for file in files if file.is_file() and name]
        defined = [all(re.search(rf"\b(?:class|def|func|type)\b.*\b{part}\b", source) for part in name.split(".")) for source in sources]
        if not files or (name and not any(defined)):
            missing.append((path, name))
    assert missing == []


def test_limits_are_listed_with_their_values() -> None:
    """Every limit of the contract is in contract.md with its value in the code."""
    documented = _documented("contract.md")
    assert {name: documented.get(name) for name in _limits(limits)} == {name: f"{value:,}" for name, value in _limits(limits).items()}


def test_limits_of_calls_are_listed() -> None:
    """Every limit of requests, connections and costly work is in operating.md, and every constant named there exists."""
    section = _text("operating.md").partition("## Limits")[2].partition("\n## ")[0]
    listed = {name for cells in _rows(section) for name in re.findall(r"`([A-Z_]{4,})`", cells[0])}
    folders = (ROOT / "server/gavel_server", ROOT / "client/python/gavel_client")
    sources = {path: path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")}
    constants = {path: re.findall(r"^([A-Z][A-Z_]+)(?:: Final.*)? =", source, flags=re.MULTILINE) for path, source in sources.items()}
    assert listed - {name for names in constants.values() for name in names} == set()
    expected = {
        name
        for path in ("rpc/limits.py", "fairness/work_slots.py")
        for name in constants[ROOT / "server/gavel_server" / path]
        if not name.endswith("_RETRY_AFTER_MS")
    }
    named = set(re.findall(r"`([A-Z_]{4,})`", section))
    assert expected - named == set()


def test_limits_of_documents_are_listed_with_their_values() -> None:
    """Every limit of rule set documents is in rule-language.md with its value in the code."""
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
    """Return the compiler's modules: `language.rule_set`, `authoring.lint`, all modules of the core that these import, and the worker."""
    package = ROOT / "rules/gavel_rules"
    modules: set[Path] = set()
    waiting = {package / "language/rule_set.py", package / "authoring/lint.py"}
    while waiting:
        module = waiting.pop()
        modules.add(module)
        imported = re.findall(r"^from gavel_rules\.([\w.]+) import", module.read_text(encoding="utf-8"), flags=re.MULTILINE)
        waiting.update({path for name in imported if (path := package / f"{name.replace('.', '/')}.py").is_file()} - modules)
    return modules | {ROOT / "server/gavel_server/compile/worker.py"}


def _codes_of_the_compiler() -> set[str]:
    """Return every kebab-case text of the compiler's modules. These are its codes; no other text there has this form."""
    codes = {"not-bool", "not-double", "not-scalar", "not-string"}  # built from the type that an expression should have
    for module in _modules_of_the_compiler():
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z]+(-[a-z]+)+", node.value):
                codes.add(node.value)
    return codes - {kinds.FACT_DERIVATION_REACTOR}


def test_the_table_of_codes_is_complete() -> None:
    """The table has the codes that the compiler's modules use, and no other."""
    assert sorted(_codes_of_the_compiler()) == sorted({*diagnostic_codes.MISTAKES, *diagnostic_codes.WARNINGS})


def test_codes_of_the_compiler_are_listed() -> None:
    """rule-language.md lists every code with the meaning from the code's table."""
    rows = [cells for cells in _rows(_text("rule-language.md")) if re.fullmatch(r"`[a-z]+(-[a-z]+)+`", cells[0])]
    assert {**diagnostic_codes.MISTAKES, **diagnostic_codes.WARNINGS} == {cells[0].strip("`"): cells[1].rstrip(" |") for cells in rows}


def test_every_code_has_an_example() -> None:
    """Every code has an example, which a test below compiles, except for codes that no single change to the sample can cause."""
    without = {*diagnostic_codes.MISTAKES, *diagnostic_codes.WARNINGS} - {example[0] for example in _examples()}
    assert {
        "constant-never-used",
        "counter-differs",
        "counter-never-read",
        "document-too-long",
        "duplicate-derivation",
        "duplicate-name",
        "engine-disagreement",
        "key-differs",
        "limit-differs",
        "more-mistakes",
        "never-approves",
        "never-equals",
        "not-analysed",
        "not-bundled",
        "not-imported",
        "schema-too-large",
        "threshold-too-exact",
        "shared-never-used",
        "shared-parts-disagree",
        "too-complex",
        "too-deep",
        "too-large",
        "too-many-rules",
        "unguarded-result",
        "window-in-seconds",
        "wrong-digest",
    } == without


def _sample() -> str:
    match = re.search(r"```yaml\n(.*?)```", _text("rule-language.md"), flags=re.DOTALL)
    assert match is not None
    return match.group(1)


def _examples() -> list[tuple[str, str, str, str]]:
    """Return (code, text to replace, replacement, message) of every example of a mistake or warning."""
    examples = []
    for cells in _rows(_text("rule-language.md")):
        change = re.fullmatch(r"`([^`]+)` to `([^`]+)`", cells[2]) if len(cells) == 4 else None
        if change is not None:
            examples.append((cells[0].strip("`"), change[1], change[2], cells[3].strip("`").strip()))
    return examples


def test_the_sample_document_is_valid() -> None:
    """The document at the top of rule-language.md compiles, without a warning."""
    compiled = compile_rule_set(_sample())
    assert (compiled.warnings, lint_rule_set(compiled)) == ((), ())


@pytest.mark.parametrize(("code", "old", "new", "message"), _examples(), ids=[example[0] for example in _examples()])
def test_example_of_a_mistake(code: str, old: str, new: str, message: str) -> None:
    """The change that the page describes gives the code and the message that the page shows."""
    document = _sample()
    assert old in document
    messages: tuple[DocumentMessage, ...]
    try:
        compiled = compile_rule_set(document.replace(old, new, 1))
        messages = (*compiled.warnings, *lint_rule_set(compiled))
    except DocumentError as error:
        messages = error.messages
    texts = [f"{one.code}: {one.message}" + (f" ({one.suggestion})" if one.suggestion else "") for one in messages]
    assert f"{code}: {message}" in texts


def test_settings_are_listed() -> None:
    """Every setting is in operating.md with its option and its environment variable."""
    rows = {cells[0].strip("`"): cells for cells in _rows(_text("operating.md"))}
    for name in Settings.model_fields:
        assert (f"`--{name.replace('_', '-')}`" in rows[name][1]) == (name not in FILE_ONLY)
        assert f"`GAVEL_{name.upper()}`" == rows[name][2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    """Every `gavel COMMAND` in the docs is a command of the program."""
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^    .+$", text, flags=re.MULTILINE) + "\n".join(re.findall(r"```sh\n.*?```", text, flags=re.DOTALL)).splitlines()
    shown = {command for line in lines for command in re.findall(r"(?:^\s*|until |/)gavel ([a-z][a-z-]+)\b", line)}
    shown.update(re.findall(r"`gavel ([a-z][a-z-]+)\b[^`]*`", text))
    assert sorted(shown - known) == []


def test_every_command_is_listed() -> None:
    """The table of commands in operating.md lists exactly the commands of the program."""
    groups = [("", app), *((f"{group.name} ", group.typer_instance) for group in app.registered_groups)]
    commands = {
        f"{prefix}{command.name or getattr(command.callback, '__name__', None)}"
        for prefix, group in groups
        if group is not None
        for command in group.registered_commands
    }
    commands |= {name.strip() for name, group in groups if name and group is not None and group.info.invoke_without_command is True}
    table = _text("operating.md").partition("| to | `gavel` … |")[2].partition("\n\n")[0]
    assert commands == set(re.findall(r"`([a-z -]+)`", table))


def test_hazards_have_their_tests() -> None:
    """Every known hazard of the engines is in guarantees.md, with tests that exist."""
    rows = {cells[0]: cells for cells in _rows(_text("guarantees.md")) if re.fullmatch(r"[HC]\d+", cells[0])}
    assert {*(f"H{number}" for number in range(1, 19)), *(f"C{number}" for number in range(1, 10))} == rows.keys()
    tests = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }
    for cells in rows.values():
        named = set(re.findall(r"`(test_\w+)`", cells[-1]))
        assert named
        assert named <= tests


def test_demands_have_their_tests() -> None:
    """The constitution lists the demands of §4 to §11 in order, and each test it names is in the linked file."""
    framework, _, systems = _text("constitution.md").partition("## The four systems")
    rows = [cells for cells in _rows(framework) if re.fullmatch(r"\d+(\.\d+)*", cells[0])]
    sections = [[int(number) for number in cells[0].split(".")] for cells in rows]
    assert sorted(sections) == sections
    assert set(range(4, 12)) == {section[0] for section in sections}
    for cells in [*rows, *_rows(systems)]:
        for name, target in re.findall(r"\[(test_\w+)\]\(([^)]+)\)", cells[-1]):
            assert re.search(rf"def {name}\(", (DOCS / target).read_text(encoding="utf-8")), (cells[0], name)


def test_limits_of_calls_have_their_values() -> None:
    """Every limit in the tables of operating.md stands beside its value in the code, with a unit."""
    places: dict[str, list[tuple[str, str]]] = {}
    for package, folder in (("gavel_server", ROOT / "server/gavel_server"), ("gavel_client", ROOT / "client/python/gavel_client")):
        for path in sorted(folder.rglob("*.py")):
            names = re.findall(r"^([A-Z][A-Z_]+)(?:: Final.*)? =", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            module = ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
            for name in names:
                places.setdefault(name, []).append((module, name))
    section = _text("operating.md").partition("## Limits")[2].partition("\n## ")[0]
    wrong = []
    for cells in _rows(section):
        for name in re.findall(r"`([A-Z_]{4,})`", cells[0]):
            values = [getattr(importlib.import_module(module), name) for module, name in places[name]]
            if not any(_is_quoted(name, value, cells[1]) for value in values):
                wrong.append((name, values))
    assert wrong == []


def _is_quoted(name: str, value: object, text: str) -> bool:
    """Return whether a text has the value of a constant in one of the forms that its name allows: a count, bytes, or a time."""
    if isinstance(value, tuple):
        return all(_is_quoted(f"{name}_BYTES_SECONDS", part, text) for part in value)
    assert isinstance(value, (int, float))
    forms = []
    if "BYTES" in name:
        units = ((1, "bytes"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"))
        forms += [f"{value // size:,} {unit}" for size, unit in units if value % size == 0]
    if "SECONDS" in name:
        forms += [f"{value:g} s", f"{value * 1000:g} ms"]
    if "_MS" in name:
        forms.append(f"{value / 1000:g} s")
    if not forms:
        forms.append(f"{value:,}")
    return any(re.search(rf"(?<![\d.,]){re.escape(form)}(?![\d]|,\d|\.\d)", text) for form in forms)


def test_log_lines_and_metrics_exist() -> None:
    """Every log line and metric that operating.md names is one of the server's; names of the schema in PostgreSQL are in the schema."""
    text = _text("operating.md")
    folders = (ROOT / "server/gavel_server", ROOT / "client/python/gavel_client")
    code = "".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    lines = set(re.findall(r"`([a-z]+\.[a-z_]+)`", text)) - {"checkpoint.json", "redis.log"}
    metrics = {name.removesuffix("_total") for name in re.findall(r"`(gavel_[a-z_]+)`", text)}
    assert lines
    assert metrics
    assert sorted(name for name in lines | metrics if f'"{name}"' not in code and name not in schema_sql()) == []


def test_remedies_are_those_of_the_table() -> None:
    """The table of remedies in arbitration.md has every reason code with the remedies of the code's own table."""
    section = _text("arbitration.md").partition("## What helps")[2].partition("\n## ")[0]
    documented = {code: re.findall(r"`([A-Z_]+)`", cells[1]) for cells in _rows(section) for code in re.findall(r"`([A-Z_]+)`", cells[0])}
    assert {row.code: [Remedy.Name(one).removeprefix("REMEDY_") for one in row.remedies] for row in REASON_CODES} == documented


def test_reason_codes_of_examples() -> None:
    """The reason codes by which examples search the log, in operating.md, the help and the refusal, are codes of Gavel."""
    ((_, refusal),) = reason_code_violations(["lower_case"])
    source = (ROOT / "server/gavel_server/cli/commands/reads/log.py").read_text(encoding="utf-8")
    examples = [
        re.findall(pattern, text)
        for pattern, text in (
            (r'"([A-Z_]+)"', refusal),
            (r"reason code, e\.g\. ([A-Z_]+)", source),
            (r"log search .*--reason ([A-Z_]+)", _text("operating.md")),
        )
    ]
    assert all(examples)
    assert {code for codes in examples for code in codes} <= {row.code for row in REASON_CODES}
