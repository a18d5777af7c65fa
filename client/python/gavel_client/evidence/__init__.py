"""Evidence: what tools returned, kept by content hash (constitution §5.3)."""

from gavel_client.evidence.store import EvidenceEntry, EvidenceStore

__all__ = ["EvidenceEntry", "EvidenceStore"]
