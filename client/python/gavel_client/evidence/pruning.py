"""Removal of old evidence.

Evidence is as old as the last call that returned it, because each call writes it again. So nothing is removed that a recent TOOL_RESULT
names, on whatever bus.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gavel_client.evidence.store import EvidenceEntry, EvidenceStore


def prune(store: EvidenceStore, cutoff: datetime, *, dry_run: bool = False) -> Iterator[EvidenceEntry]:
    """Remove the evidence that was last written before `cutoff`, an aware time; yield each piece. Raises EvidenceError.

    With `dry_run` nothing is removed.
    """
    for evidence in list(store):
        if evidence.written_at < cutoff and (dry_run or store.remove(evidence.hash, cutoff)):
            yield evidence
