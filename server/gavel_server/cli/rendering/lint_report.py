"""The report of `gavel rules lint`: text for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gavel_rules.language.rule_set import DocumentMessage

from gavel_server.cli import rule_files
from gavel_server.cli.rule_files import FileCheck, InvalidFile


def check_lines(checks: Sequence[FileCheck]) -> Iterator[str]:
    """Yield the mistakes, the warnings, and a summary of each valid file."""
    yield from rule_files.mistake_lines(invalid for check in checks for invalid in check.invalid)
    for check in checks:
        for warning in check.warnings:
            place, _, rest = warning.format(check.file).partition(": ")
            yield f"{place}: warning: {rest}"
        if not check.invalid:
            yield f"{check.file}: {check.summary}"


def check_json(check: FileCheck) -> dict[str, Any]:
    """Return a check as JSON values, in the form of the contract's ValidateRuleSetResponse."""
    return {
        "file": check.file,
        "valid": not check.invalid,
        "errors": [{"file": invalid.file, **message_json(message)} for invalid in check.invalid for message in invalid.messages],
        "warnings": [message_json(warning) for warning in check.warnings],
        "digest": check.digest,
    }


def invalid_json(invalid: Iterable[InvalidFile]) -> list[dict[str, Any]]:
    """Return invalid files as JSON values."""
    return [{"file": one.file, "errors": [message_json(message) for message in one.messages]} for one in invalid]


def message_json(message: DocumentMessage) -> dict[str, Any]:
    """Return a mistake or warning as JSON values, in the form of the contract's DocumentMessage."""
    return {name: getattr(message, name) for name in ("line", "column", "code", "message", "suggestion")}
