"""Pydantic's errors about a document, in the codes and words of diagnostics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic_core import ErrorDetails

from gavel_rules.language.document.models import VersionsPart
from gavel_rules.text import DID_YOU_MEAN, suggestion

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
        return "write milliseconds, e.g. 60000"
    if details["type"] == "string_type" and details["loc"][-1] == "by" and isinstance(details["input"], list):
        return 'write one expression, e.g. `params.customer_id + "/" + subject`'
    if details["type"] == "model_type" and details["loc"][-1] == "calendar" and isinstance(details["input"], str):
        return f"write {{unit: {details['input']}}}"
    if details["type"] == "literal_error":
        known = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        near = suggestion(str(details["input"]), known)
        return f"write {known[0]}" if len(known) == 1 else near if near.startswith(DID_YOU_MEAN) else ""
    return _FIXES.get(details["type"], "")
