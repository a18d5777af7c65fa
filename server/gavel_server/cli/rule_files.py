"""Rule sets and their test suites as files: found under folders, read, and checked.

A suite has a name like `*_test.yaml`, `*_test.yml` or `*_test.json`. An invalid file is a value here, not an exception, so that a
command goes on with the next file and one run reports every mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gavel_rules.authoring.lint import lint_rule_set
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.authoring.suites.case_bus import CaseBusError
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import check_suite
from gavel_rules.authoring.suites.seeds import find_seeds
from gavel_rules.authoring.suites.suite import SUITE_SUFFIXES, Suite
from gavel_rules.language.rule_set import CompiledRuleSet, DocumentError, DocumentMessage, compile_rule_set

from gavel_server.cli.documents import STANDARD_INPUT, read_document, read_rule_set
from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.rendering import output

DOCUMENT_SUFFIXES: Final = (".yaml", ".yml", ".json")
# A rule set has at least one of these keys at its top.
_TOP_KEYS: Final = frozenset(["gavel", "rule_set"])
_LIBRARY_LINE: Final = re.compile(r"""^["']?library["']?[ \t]*:""", re.MULTILINE)
_TOP_KEY_LINE: Final = re.compile(r"""^["']?(?:gavel|rule_set)["']?[ \t]*:""", re.MULTILINE)
# A grants document has this key, and its suite names it.
_GRANTS_LINE: Final = re.compile(r"""^["']?grants["']?[ \t]*:""", re.MULTILINE)
_TESTS_LINE: Final = re.compile(r"""^["']?tests["']?[ \t]*:[ \t]*(?:"([^"\n]+)"|'([^'\n]+)'|([^\n]+?))[ \t]*(?: #.*)?$""", re.MULTILINE)


class InvalidFile(NamedTuple):
    """A file that is not valid, with every mistake in it."""

    file: str
    messages: tuple[DocumentMessage, ...]


class SuiteFile(NamedTuple):
    """A suite, and the rule set that it tests."""

    file: str
    suite: Suite
    rule_set_file: str
    rule_set: CompiledRuleSet
    others: Mapping[str, CompiledRuleSet]  # rule sets that are in force too, by file

    @property
    def in_force(self) -> tuple[CompiledRuleSet, ...]:
        """All rule sets that it tests, in its order."""
        return self.rule_set, *self.others.values()


class FileCheck(NamedTuple):
    """The result of checking one file. `digest`, `summary` and `rule_set` are set only if nothing is invalid."""

    file: str
    invalid: tuple[InvalidFile, ...]
    warnings: tuple[DocumentMessage, ...] = ()
    digest: str = ""
    summary: str = ""
    rule_set: CompiledRuleSet | None = None  # None for a suite


def is_suite(name: str) -> bool:
    """Whether a file is a test suite, by its name."""
    return name.endswith(SUITE_SUFFIXES)


def find_files(paths: Iterable[str], *, suites_only: bool = False) -> list[str]:
    """Return the files that the paths name, in order, each once: a file itself, and every rule set and suite below a folder.

    Below a folder, YAML and JSON that is not a suite counts as a rule set if it has a key `gavel` or `rule_set` at its top, and no key
    `grants`. The number of other such files (grants and their suites, workflows, schemas) is noted on stderr. Hidden folders are skipped.

    Raises InvalidInputError for an empty path, for a file that is not a suite with `suites_only`, and for a folder without a document.
    """
    suffixes = SUITE_SUFFIXES if suites_only else DOCUMENT_SUFFIXES
    files: dict[str, None] = {}
    for path in paths:
        if not path:
            raise InvalidInputError("an empty path names no file; name a file, or . for everything below this folder")
        if suites_only and not is_suite(path) and Path(path).is_file():
            suite = Path(path).with_name(Path(path).stem + SUITE_SUFFIXES[0])
            near = f"did you mean {suite}?" if suite.is_file() else f"suites are named *{SUITE_SUFFIXES[0]}"
            raise InvalidInputError(f"{path} does not have the name of a test suite; {near}")
        if path == STANDARD_INPUT or not Path(path).is_dir():
            files[path] = None
            continue
        below = list(_files_below(path, suffixes))
        documents = [file for file in below if (not is_suite_of_grants(file) if is_suite(file) else _is_rule_set(file))]
        if len(documents) < len(below):
            output.print_note(
                f"gavel: skipped {len(below) - len(documents)} of {len(below)} files below {path}: they are not about rule sets"
            )
        if not documents:
            kind = "suite" if suites_only else "rule set"
            raise InvalidInputError(f"there is no {kind} ({', '.join('*' + name for name in suffixes)}) below {path}")
        files.update(dict.fromkeys(documents))
    return list(files)


def find_grant_suites(paths: Iterable[str]) -> list[str]:
    """Return the files that the paths name, in order, each once: a file itself, and every suite of grants below a folder.

    Raises InvalidInputError for a folder without one.
    """
    files: dict[str, None] = {}
    for path in paths:
        suites = [path] if not Path(path).is_dir() else [file for file in _files_below(path, SUITE_SUFFIXES) if is_suite_of_grants(file)]
        if not suites:
            raise InvalidInputError(
                f"there is no suite of grants below {path}: no *{SUITE_SUFFIXES[0]} names a grants document under tests"
            )
        files.update(dict.fromkeys(suites))
    return list(files)


def is_suite_of_grants(file: str) -> bool:
    """Whether a suite names a grants document under `tests`. One that cannot be read does not."""
    text = _text_of(file)
    if text.lstrip().startswith("{"):
        data = _json_object(text)
        tested = data.get("tests") if data is not None else None
    else:
        match = _TESTS_LINE.search(text)
        tested = next(filter(None, match.groups())) if match is not None else None
    return isinstance(tested, str) and _is_grants(_text_of(str(Path(file).parent / tested)))


def _files_below(path: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yield the files below a folder whose names end so, sorted, without those in hidden folders."""
    for file in sorted(Path(path).rglob("*")):
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.name.endswith(suffixes) and not is_hidden and file.is_file():
            yield str(file)


def _is_rule_set(file: str) -> bool:
    """Whether a file has a rule set's key at its top. An unreadable one counts, so that reading it reports the reason."""
    try:
        text = read_document(file)
    except InvalidInputError:
        return True
    if text.lstrip().startswith("{"):
        data = _json_object(text)
        return data is None or (not _TOP_KEYS.isdisjoint(data) and "grants" not in data and "library" not in data)
    # A document that others import is checked with them.
    return _TOP_KEY_LINE.search(text) is not None and not _is_grants(text) and _LIBRARY_LINE.search(text) is None


def _is_grants(text: str) -> bool:
    if text.lstrip().startswith("{"):
        return "grants" in (_json_object(text) or {})
    return _GRANTS_LINE.search(text) is not None


def _text_of(file: str) -> str:
    """Return the text of a file, "" if it cannot be read."""
    try:
        return read_document(file)
    except InvalidInputError:
        return ""


def _json_object(text: str) -> dict[str, object] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def load_rule_set(file: str) -> CompiledRuleSet | InvalidFile:
    """Return the rule set of a file. Raises InvalidInputError if it cannot be read."""
    try:
        return compile_rule_set(read_rule_set(file))
    except DocumentError as error:
        return InvalidFile(file, error.messages)


def load_suite(file: str, rule_sets: dict[str, CompiledRuleSet | InvalidFile]) -> SuiteFile | list[InvalidFile]:
    """Return the suite of a file with its rule set, or the files with mistakes.

    `rule_sets` caches rule sets by file. Raises InvalidInputError if the suite cannot be read.
    """
    try:
        suite = read_suite(read_document(file))
    except DocumentError as error:
        return [InvalidFile(file, error.messages)]
    folder = Path() if file == STANDARD_INPUT else Path(file).parent
    tested: dict[str, CompiledRuleSet] = {}
    for index, name in enumerate((suite.tests, *suite.other_files)):
        rule_set_file = str(folder / name)
        if rule_set_file not in rule_sets:
            try:
                rule_sets[rule_set_file] = load_rule_set(rule_set_file)
            except InvalidInputError as error:
                # `tests` is one file, or a list of files.
                place = suite.source.locate(("tests", index))
                message = DocumentMessage(*place, "no-rule-set", str(error), "give the rule set's path relative to the suite's folder")
                return [InvalidFile(file, (message,))]
        one = rule_sets[rule_set_file]
        if isinstance(one, InvalidFile):
            return [one]
        tested[rule_set_file] = one
    (rule_set_file, rule_set), *others = tested.items()
    try:
        check_suite(suite, rule_set, [one for _, one in others])
    except DocumentError as error:
        return [InvalidFile(file, error.messages)]
    except CaseBusError as error:
        return [InvalidFile(rule_set_file, (DocumentMessage(1, 1, "not-deployable", str(error)),))]
    return SuiteFile(file, suite, rule_set_file, rule_set, dict(others))


def check_file(file: str) -> FileCheck:
    """Check a rule set, or a suite against its rule set. Raises InvalidInputError if the file cannot be read."""
    if is_suite(file):
        suite_file = load_suite(file, {})
        if not isinstance(suite_file, SuiteFile):
            return FileCheck(file, tuple(suite_file))
        return FileCheck(file, (), summary=f"{len(suite_file.suite.cases)} cases of {suite_file.rule_set_file}, valid")
    rule_set = load_rule_set(file)
    if isinstance(rule_set, InvalidFile):
        return FileCheck(file, (rule_set,))
    summary = f"{rule_set.policy_id} version {rule_set.version} is valid, {rule_set.digest}"
    warnings = tuple(sorted((*rule_set.warnings, *lint_rule_set(rule_set, seeds=_seeds_beside(file, rule_set)))))
    return FileCheck(file, (), warnings, rule_set.digest, summary, rule_set)


def _seeds_beside(file: str, rule_set: CompiledRuleSet) -> list[Seed]:
    """Return the cases of the suites in the folder of a rule set that test it. A suite with mistakes is noted on stderr, and not used."""
    seeds: list[Seed] = []
    for suite_path in sorted(Path(file).parent.iterdir()) if file != STANDARD_INPUT else ():
        name = str(suite_path)
        if not is_suite(name) or not suite_path.is_file() or Path(file).name not in _text_of(name):
            continue
        suite_file = load_suite(name, {file: rule_set})
        if not isinstance(suite_file, SuiteFile):
            output.print_note(f"gavel: {name} has mistakes, so its cases were not used; gavel rules lint {name} lists them")
        elif Path(suite_file.rule_set_file) == Path(file):
            seeds.extend(find_seeds(suite_file.suite, suite_file.rule_set, suite_file.in_force))
    return seeds


def mistake_lines(invalid: Iterable[InvalidFile]) -> Iterator[str]:
    """Yield a line for every mistake; a file that is given twice counts once."""
    for one in dict.fromkeys(invalid):
        for message in one.messages:
            yield message.format(one.file)
