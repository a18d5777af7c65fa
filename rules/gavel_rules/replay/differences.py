"""Field differences of two envelopes, as JSON values by path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.replay_service_pb2 import FieldDifference
from google.protobuf import text_format
from google.protobuf.json_format import Error as JsonFormatError
from google.protobuf.json_format import MessageToDict

_ABSENT: Final = object()


def field_differences(recorded: Envelope, expected: Envelope) -> Iterator[FieldDifference]:
    """Yield every field in which two envelopes differ, by path.

    A forged envelope may hold what JSON cannot express, e.g. a time after the year 9999. Both envelopes are then given whole, as text.
    """
    try:
        left, right = _as_dict(recorded), _as_dict(expected)
    except JsonFormatError:
        yield FieldDifference(path="envelope", recorded=_as_text(recorded), expected=_as_text(expected))
        return
    yield from _differences("", left, right)


def _differences(path: str, recorded: Any, expected: Any) -> Iterator[FieldDifference]:
    if isinstance(recorded, dict) and isinstance(expected, dict):
        for key in sorted(recorded.keys() | expected.keys()):
            inner = f"{path}.{key}" if path else key
            yield from _differences(inner, recorded.get(key, _ABSENT), expected.get(key, _ABSENT))
    elif isinstance(recorded, list) and isinstance(expected, list) and len(recorded) == len(expected):
        for index, (left, right) in enumerate(zip(recorded, expected, strict=True)):
            yield from _differences(f"{path}[{index}]", left, right)
    elif recorded != expected:
        yield FieldDifference(path=path, recorded=_as_json(recorded), expected=_as_json(expected))


def _as_dict(envelope: Envelope) -> dict[str, Any]:
    return MessageToDict(envelope, preserving_proto_field_name=True)


def _as_text(envelope: Envelope) -> str:
    return text_format.MessageToString(envelope, as_one_line=True)


def _as_json(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True)
