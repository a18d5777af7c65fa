"""Statuses and headers of failed calls."""

from __future__ import annotations

from typing import get_args

import pytest
from gavel_client.llm.errors import FailureCode
from gavel_client.llm.providers.failures import RETRY_AFTER_MS_MAX, failure_code, retry_after_ms
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(400, 599))
def test_every_status_has_a_code(status: int) -> None:
    """Any refused or failed call has a code of the closed set."""
    assert failure_code(status) in get_args(FailureCode)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2_000),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after-ms": "250", "retry-after": "9"}, 250),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e300"}, RETRY_AFTER_MS_MAX),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1_000),
    ],
)
def test_advice(headers: dict[str, str], expected: int | None) -> None:
    """The finer header comes first; what is no number of seconds is no advice, and advice is bounded."""
    assert expected == retry_after_ms(headers)
