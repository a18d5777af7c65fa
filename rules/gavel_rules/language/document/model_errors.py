"""Pydantic's errors about a document, in the codes and words of diagnostics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gavel_rules.language.document.models import CounterPart, VersionsPart
from gavel_rules.text import DID_YOU_MEAN, NAME_LENGTH_MAX, suggestion

# pydantic's error types and their diagnostic codes. Any other type is "wrong-type".
_CODES: Final[Mapping[str, str]] = {
    "missing": "missing-key",
    "extra_forbidden": "unknown-key",
    "literal_error": "unknown-value",
    "string_pattern_mismatch": "bad-name",
    "string_too_short": "out-of-range",
    "string_too_long": "out-of-range",
    "too_short": "out-of-range",
    "too_long": "out-of-range",
    "greater_than": "out-of-range",
    "greater_than_equal": "out-of-range",
    "less_than": "out-of-range",
    "less_than_equal": "out-of-range",
}
_FIXES: Final[Mapping[str, str]] = {
    "string_type": "quote it",
    "list_type": "write a list, e.g. [one, two]",
    "bool_type": "write true or false",
    "model_type": "write its keys, e.g. {key: value}",
    "dict_type": "write its keys, e.g. {key: value}",
}


def diagnostic_code(error_type: str) -> str:
    """Return the diagnostic code for a type of pydantic's errors."""
    return _CODES.get(error_type, "wrong-type")


def describe_error(details: ErrorDetails) -> str:
    """Return pydantic's message; a model or dict is called a mapping."""
    if details["type"] in ("model_type", "dict_type"):
        return "input should be a mapping"
    return re.sub(r"^[A-Z](?![A-Z])", lambda first: first.group().lower(), details["msg"])


def suggest_fix(details: ErrorDetails) -> str:
    """Return what to write in place of a value of the wrong type; "" where the message already says it."""
    if details["input"] is None:
        return "the value is empty: write one, or remove the key"
    if details["type"] == "string_type" and details["loc"][-1] == "action" and isinstance(details["input"], list):
        return "for several actions write `actions`, which needs `gavel: v2`"
    if details["type"] == "list_type" and details["loc"][-1] in VersionsPart.model_fields:
        return "quote it"
    if details["type"].startswith("int_") and str(details["loc"][-1]).endswith("_ms"):
        return _suggest_milliseconds(details["input"])
    if details["type"] == "model_type" and details["loc"][-1] == "calendar" and isinstance(details["input"], str):
        return f"write {{unit: {details['input']}}}"
    if details["type"] == "literal_error":
        known = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"write {known[0]}" if len(known) == 1 else suggest_value(str(details["input"]), known)
    return _FIXES.get(details["type"], "")


def _suggest_milliseconds(value: object) -> str:
    """Return the number of milliseconds that a text such as "24h" means."""
    span = _SPAN.fullmatch(value) if isinstance(value, str) else None
    return f"write milliseconds: {int(span[1]) * _UNITS_MS[span[2]]}" if span is not None else "write milliseconds, e.g. 60000"


_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(rf"([0-9]{{1,9}}) ?({'|'.join(_UNITS_MS)})")


def suggest_key(key: str, model: type[BaseModel], reported: int = 0) -> str:
    """Return the nearest key of a part as a suggestion for an unknown one, all its keys if they are few, or ""."""
    meant = _OTHER_WORDS.get(key) if model is CounterPart else None
    return f"{DID_YOU_MEAN} {meant}?" if meant else suggestion(key, sorted(model.model_fields), reported)


def is_misspelt(name: str, written: Iterable[object], model: type[BaseModel]) -> bool:
    """Return whether a key that is missing is meant by an unknown one, which is reported with a suggestion."""
    unknown = [key for key in islice(written, _WRITTEN_MAX) if isinstance(key, str) and key not in model.model_fields]
    return any(suggest_key(key, model) == f"{DID_YOU_MEAN} {name}?" for key in unknown)


_WRITTEN_MAX: Final = 100  # of more keys of a part, the first ones are looked at
# What other languages call the keys of a counter.
_OTHER_WORDS: Final = {"group_by": "by", "key": "by", "per": "by", "filter": "where", "when": "where", "total": "sum", "aggregate": "sum"}


def suggest_value(value: str, known: Sequence[str]) -> str:
    """Return "did you mean X?" if a value is a slip of one of a few known ones; "" otherwise, where all of them should be named.

    Names are open and many, so `text.suggestion` names a distant one too. Values stand for different things: STARTED is not ABORTED.
    """
    if len(value) > NAME_LENGTH_MAX:
        return ""
    by_lower_case = {one.lower(): one for one in known}
    written = value.lower()
    longer = [one for one in by_lower_case if one.startswith(written)] if written else []
    near = longer[:1] or get_close_matches(written, by_lower_case, n=1, cutoff=_VALUE_CUTOFF)
    return f"{DID_YOU_MEAN} {by_lower_case[near[0]]}?" if near else ""


def suggest_expression(details: ErrorDetails) -> str:
    """Return what to write in place of a value that is no text where the document wants an expression; "" for anything else."""
    key, value = str(details["loc"][-1]), details["input"]
    if details["type"] != "string_type" or not isinstance(value, bool | int | float | list | dict):
        return ""
    if key == "retry_after":
        return f"it says when a counter has room again, not after how long: {_RETRY_AFTER_FORM}"
    is_named = len(details["loc"]) > 1 and details["loc"][-2] in _NAMED_EXPRESSIONS
    gives = _SCALAR if is_named else _EXPRESSIONS.get(key, "")
    if not gives:
        return ""
    if isinstance(value, list | dict):
        return f"write one expression, e.g. {_EXAMPLES[gives]}" if gives in _EXAMPLES else ""
    literal = json.dumps(value)
    if gives == _DOUBLE and not isinstance(value, bool):
        literal = json.dumps(float(value))
    elif gives not in (_SCALAR, _BOOL if isinstance(value, bool) else _NUMBER):
        return f"write an expression that gives a {gives}, e.g. {_EXAMPLES[gives]}"
    return f"an expression is a text: write '{literal}'"


# The least similarity of a slip, from 0 to 1.
_VALUE_CUTOFF: Final = 0.75
_RETRY_AFTER_FORM: Final = "write it like `history.NAME.frees(params.customer_id, params.amount, 1000.0)`"
_BOOL: Final = "bool"
_DOUBLE: Final = "double"
_NUMBER: Final = "number"
_STRING: Final = "string"
_SCALAR: Final = "string, number or boolean"
# The keys of expressions, and what these give.
_EXPRESSIONS: Final[Mapping[str, str]] = {
    "when": _BOOL,
    "where": _BOOL,
    "by": _STRING,
    "distinct": _STRING,
    "conflict_key": _STRING,
    "subject": _STRING,
    "sum": _NUMBER,
    "min": _NUMBER,
    "max": _NUMBER,
    "last": _NUMBER,
    "settle": _NUMBER,
    "score": _DOUBLE,
    "value": _SCALAR,
}
# The keys of mappings of expressions, whose own keys are names.
_NAMED_EXPRESSIONS: Final = ("variables", "detail", "params")
_EXAMPLES: Final[Mapping[str, str]] = {
    _BOOL: "`params.amount > 100.0`",
    _STRING: '`params.customer_id + "/" + subject`',
    _NUMBER: "`params.amount`",
    _DOUBLE: "`double(proposal.priority)`",
}
