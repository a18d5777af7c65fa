"""The meanings of Gavel's own reason codes."""

from __future__ import annotations

from gavel_client.meanings import REASON_CODE_MEANINGS
from gavel_rules.reason_codes import REASON_CODES, Bearer


def test_every_reason_code_of_a_first_decision_has_a_meaning() -> None:
    """Exactly the codes that a first decision can bear are explained; `gavel log` describes the others."""
    assert {row.code for row in REASON_CODES if row.bearer is Bearer.FIRST_DECISION} == set(REASON_CODE_MEANINGS)
