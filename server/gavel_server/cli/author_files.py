"""Rule sets and their test suites as files: found under folders, read, and what is wrong with them.

A suite is known by its name: `*_test.yaml`, `*_test.yml` or `*_test.json`. What is invalid is a value here, not an exception:
the commands for authors go on with the next file, so that one run names every mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gavel_rules.authoring.analysis import analyse
from gavel_rules.authoring.case_bus import RefusedError
from gavel_rules.authoring.suite import SUITE_SUFFIXES, Suite, read_suite
from gavel_rules.authoring.testing import check_suite
from gavel_rules.language.ruleset import CompiledRuleSet, DocumentError, DocumentMessage, compile_rule_set

from gavel_server.cli import output
from gavel_server.cli.documents import STANDARD_INPUT, read_document, read_rule_set
from gavel_server.cli.errors import InvalidInputError

DOCUMENT_SUFFIXES: Final = (".yaml", ".yml", ".json")
# What stands at the top of a rule set, if not both.
_HEAD: Final = frozenset(["gavel", "rule_set"])
_HEAD_LINE: Final = re.compile(r"""^["']?(?:gavel|rule_set)["']?[ \t]*:""", re.MULTILINE)


class Invalid(NamedTuple):
    """A file that is not what it should be, with everything that is wrong with it."""

    file: str
    messages: tuple[DocumentMessage, ...]


class TestedRuleSet(NamedTuple):
    """A suite, and the rule set that it tests."""

    file: str
    suite: Suite
    rule_set_file: str
    rule_set: CompiledRuleSet


class Checked(NamedTuple):
    """What is to be said of one file: nothing is `invalid`, or `summary` says what it is."""

    file: str
    invalid: tuple[Invalid, ...]
    warnings: tuple[DocumentMessage, ...] = ()
    digest: str = ""
    summary: str = ""
    rule_set: CompiledRuleSet | None = None  # where the file holds one, and nothing is invalid


def is_suite(name: str) -> bool:
    """Whether a file is a test suite, by its name."""
    return name.endswith(SUITE_SUFFIXES)


def found(paths: Iterable[str], *, suites_only: bool = False) -> list[str]:
    """Return the files that the paths name: files as they are, of folders every rule set and suite below, in order, each once.

    Suites are known by their names. Other YAML and JSON below a folder (workflows, schemas, a server's data) is left alone unless it
    has a key `gavel` or `rule_set` at its top. How many such files there are is noted. Hidden folders are not looked into.

    Raises InvalidInputError for a path that cannot be meant, and for a folder that holds no document.
    """
    wanted = SUITE_SUFFIXES if suites_only else DOCUMENT_SUFFIXES
    files: dict[str, None] = {}
    for path in paths:
        if not path:
            raise InvalidInputError("an empty path names no file; name one, or . for all below this folder")
        if suites_only and not is_suite(path) and Path(path).is_file():
            raise InvalidInputError(f"{path} is no test suite by its name; suites are named *{SUITE_SUFFIXES[0]}")
        if path == STANDARD_INPUT or not Path(path).is_dir():
            files[path] = None
            continue
        named = (file for file in sorted(Path(path).rglob("*")) if file.name.endswith(wanted) and file.is_file())
        below = [file for file in named if not _is_hidden(file, Path(path))]
        ours = [str(file) for file in below if is_suite(file.name) or _says_what_it_is(file)]
        if len(ours) < len(below):
            output.note(f"gavel: {len(below) - len(ours)} of {len(below)} files below {path} have no key `gavel` and are left alone")
        if not ours:
            raise InvalidInputError(
                f"there is no {'suite' if suites_only else 'rule set'} ({', '.join('*' + name for name in wanted)}) below {path}"
            )
        files.update(dict.fromkeys(ours))
    return list(files)


def _is_hidden(file: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(below).parts)


def _says_what_it_is(file: Path) -> bool:
    """Whether a file has a key of ours at its top. One that cannot be read says so when it is read as a document."""
    try:
        text = read_document(str(file))
        document = json.loads(text) if text.lstrip().startswith("{") else None
    except (InvalidInputError, ValueError, RecursionError):
        return True
    if isinstance(document, dict):
        return not _HEAD.isdisjoint(document)
    return _HEAD_LINE.search(text) is not None


def rule_set_in(file: str) -> CompiledRuleSet | Invalid:
    """Return the rule set of a file. Raises InvalidInputError when it cannot be read."""
    try:
        return compile_rule_set(read_rule_set(file))
    except DocumentError as error:
        return Invalid(file, error.messages)


def suite_in(file: str, known: dict[str, CompiledRuleSet | Invalid]) -> TestedRuleSet | list[Invalid]:
    """Return the suite of a file with its rule set, or what is wrong with either.

    `known` holds the rule sets read so far, by file. Raises InvalidInputError when the suite cannot be read.
    """
    try:
        suite = read_suite(read_document(file))
    except DocumentError as error:
        return [Invalid(file, error.messages)]
    folder = Path() if file == STANDARD_INPUT else Path(file).parent
    rule_set_file = str(folder / suite.tests)
    if rule_set_file not in known:
        try:
            known[rule_set_file] = rule_set_in(rule_set_file)
        except InvalidInputError as error:
            place = suite.source.place(("tests",))
            message = DocumentMessage(*place, "no-rule-set", str(error), "name the rule set's file as seen from the suite's folder")
            return [Invalid(file, (message,))]
    rule_set = known[rule_set_file]
    if isinstance(rule_set, Invalid):
        return [rule_set]
    try:
        check_suite(suite, rule_set)
    except DocumentError as error:
        return [Invalid(file, error.messages)]
    except RefusedError as error:
        return [Invalid(rule_set_file, (DocumentMessage(1, 1, "not-deployable", str(error)),))]
    return TestedRuleSet(file, suite, rule_set_file, rule_set)


def checked(file: str) -> Checked:
    """Return what is to be said of a rule set, or of a suite and its fit to its rule set. Raises InvalidInputError."""
    if is_suite(file):
        tested = suite_in(file, {})
        if not isinstance(tested, TestedRuleSet):
            return Checked(file, tuple(tested))
        return Checked(file, (), summary=f"{len(tested.suite.cases)} cases of {tested.rule_set_file}, valid")
    rule_set = rule_set_in(file)
    if isinstance(rule_set, Invalid):
        return Checked(file, (rule_set,))
    summary = f"{rule_set.policy_id} version {rule_set.version} is valid, {rule_set.digest}"
    warnings = tuple(sorted((*rule_set.warnings, *analyse(rule_set))))
    return Checked(file, (), warnings, rule_set.digest, summary, rule_set)


def lines(invalid: Iterable[Invalid]) -> Iterator[str]:
    """Yield every mistake as a line, each file's once."""
    for one in dict.fromkeys(invalid):
        for message in one.messages:
            yield message.format(one.file)
