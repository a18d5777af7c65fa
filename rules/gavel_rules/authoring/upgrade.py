"""Upgrades documents of the language's first version to the second, which has everything of the first.

Only the version of the language and the version of the rule set change, in place: layout and comments stay. The result is compiled, and
both versions are compared on generated cases: a document that decides otherwise is not written.
"""

from __future__ import annotations

import re
from typing import Final

from gavel_rules.authoring.diff import diff_rule_sets
from gavel_rules.errors import GavelRulesError
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import compile_rule_set

_LANGUAGE: Final = re.compile(r"""(["']?)v1\1""")
_NUMBER: Final = re.compile("[0-9]+")


class UpgradeError(GavelRulesError):
    """A document cannot be upgraded; the message says why."""


def upgrade(text: str) -> str:
    """Return a rule set in the second version of the language, with the next version number.

    A rule set that is in the second version stays as it is.
    Raises DocumentError if it is not valid, now or in the second version, and UpgradeError if it would decide otherwise.
    """
    older = compile_rule_set(text)
    data = Source(text, Messages()).data
    if isinstance(data, dict) and data["gavel"] == "v2":
        return text
    upgraded = _replace(text, "gavel", _LANGUAGE, "v2")
    upgraded = _replace(upgraded, "version", _NUMBER, str(older.version + 1))
    newer = compile_rule_set(upgraded)
    diff = diff_rule_sets(older, newer)
    if diff.cases:
        raise UpgradeError(f"the upgraded document decides otherwise, for example {diff.cases[0]}; please report this as a bug")
    return upgraded


def _replace(text: str, key: str, pattern: re.Pattern[str], value: str) -> str:
    """Return a document with another value of a key at its top; quotes stay."""
    source = Source(text, Messages())
    start = source.offset((key,))
    written = pattern.match(text, start)
    if written is None:
        line, _ = source.locate((key,))
        raise UpgradeError(f"the value of {key} on line {line} is written in an unusual way; change it by hand to {value}")
    quote = text[start] if text[start] in "\"'" else ""
    return f"{text[:start]}{quote}{value}{quote}{text[written.end() :]}"
