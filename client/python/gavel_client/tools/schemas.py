"""Checks of arguments and results against the JSON Schemas of a contract."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final

from google.protobuf.struct_pb2 import Struct

from gavel_client.envelopes import content_hash
from gavel_client.values import from_struct

VALIDATORS_MAX: Final = 256
PROBLEMS_MAX: Final = 8
# Stands for values in messages, which are recorded.
_MASK: Final = "the value"


class Schemas:
    """Validators, the last VALIDATORS_MAX of them cached by the hash of their schema. Any thread may use them."""

    def __init__(self) -> None:
        # Imported here, because only runtimes of tools need it.
        try:
            import jsonschema_rs
        except ImportError as error:
            raise ImportError("the runtime of tools needs the package jsonschema-rs: pip install 'gavel-client[tools]'") from error
        self._validator: Final = jsonschema_rs.Draft202012Validator
        self._cached: Final[OrderedDict[str, Any]] = OrderedDict()
        self._lock: Final = threading.Lock()

    def problem(self, schema: Struct, value: object, name: str) -> str:
        """Return why `value`, called `name`, does not match a schema, without the values in it; "" if it does."""
        if not schema.fields:
            return ""
        problems: list[str] = []
        validator = self._of(schema)
        try:
            for error in validator.iter_errors(value):
                place = "".join(f"/{part}" for part in error.instance_path)
                problems.append(f"{name}{place}: {error.message}")
                if len(problems) == PROBLEMS_MAX:
                    break
        except (ValueError, RecursionError) as error:  # lone surrogates, too many levels
            return f"{name} cannot be checked: {error}"
        return "; ".join(problems)

    def check(self, schema: Struct) -> None:
        """Raise ValueError for a schema with which nothing can be checked."""
        if schema.fields:
            self._of(schema)

    def _of(self, schema: Struct) -> Any:
        document = from_struct(schema)
        key = content_hash(document)
        with self._lock:
            if key not in self._cached:
                # Nothing is read or fetched for the author of a schema.
                self._cached[key] = self._validator(document, mask=_MASK, offline=True)
                if len(self._cached) > VALIDATORS_MAX:
                    self._cached.popitem(last=False)
            self._cached.move_to_end(key)
            return self._cached[key]


def schema_hash(schema: Struct) -> str:
    """Return the hash of one schema, as TOOL_CALL and TOOL_RESULT record it; "" without a schema."""
    return content_hash(from_struct(schema)) if schema.fields else ""
