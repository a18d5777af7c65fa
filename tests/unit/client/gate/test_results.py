"""The reports of what tools return and raise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_FAILED, EXECUTION_STATUS_PARTIAL, EXECUTION_STATUS_SUCCESS, Execution
from gavel_client import HandlerError, content_hash
from gavel_client.gate.results import OUTPUT_BYTES_MAX, failure, output_of, success
from gavel_client.values import to_struct
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_a_json_output_comes_back_from_the_report(value: Any) -> None:
    """An output of JSON values is read from the report as it was; a text with a JSON object is read as the object."""
    result = success(value)
    recorded = output_of(Execution(result=to_struct(result.result)))
    is_wrapped = isinstance(value, dict) and set(value) <= {"output", "output_hash"}
    assert EXECUTION_STATUS_SUCCESS == result.status
    assert is_wrapped or value == recorded or (isinstance(value, str) and value.startswith("{"))


@pytest.mark.parametrize(
    ("output", "result"),
    [
        ({"refunded": 40}, {"refunded": 40}),
        ('{"refunded": 40}', {"refunded": 40}),
        ("sent", {"output": "sent"}),
        ("{sent}", {"output": "{sent}"}),
        (None, {"output": None}),
        (b"bytes", {}),
        (object(), {}),
        (2**60, {}),
        ("x" * OUTPUT_BYTES_MAX, {"output_hash": content_hash("x" * OUTPUT_BYTES_MAX)}),
    ],
)
def test_an_output_becomes_a_result(output: object, result: dict[str, object]) -> None:
    """Objects become the result itself, for derivations of rule sets; large outputs become a hash, and what is not JSON nothing."""
    assert result == success(output).result


def test_only_a_handler_error_says_that_there_was_no_effect() -> None:
    """A HandlerError is FAILED with its code; any other exception and a cancellation are PARTIAL, without the exception's text."""
    declared = failure(HandlerError("CLOSED", "opens at nine"))
    assert (EXECUTION_STATUS_FAILED, "CLOSED", "opens at nine") == (declared.status, declared.error_code, declared.error_message)
    raised = failure(ConnectionResetError("token=secret"))
    assert (EXECUTION_STATUS_PARTIAL, "TOOL_ERROR") == (raised.status, raised.error_code)
    assert "secret" not in raised.error_message
    cancelled = failure(asyncio.CancelledError())
    assert (EXECUTION_STATUS_PARTIAL, "TOOL_CANCELLED") == (cancelled.status, cancelled.error_code)
