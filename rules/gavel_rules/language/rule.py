"""Rules, as arbitration reads them and decisions quote them."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One rule of a compiled rule set."""

    id: str
    priority: int
    effect: str  # "approve", "reject" or "review"
    reason_code: str  # "" for an approval
    condition: str  # as its author wrote it
