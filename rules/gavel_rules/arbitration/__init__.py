"""Arbitration: the stages that turn a proposal into exactly one decision."""
