"""Proofs that an event is in a log that was never rewritten: the Merkle tree beside the chain, checkpoints, witnesses, proof files."""
