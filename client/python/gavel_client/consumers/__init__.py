"""Consumers of the work queues, and the fact derivation reactor."""

from gavel_client.consumers.consumer import Consumer, Disposition, Statistics
from gavel_client.consumers.fact_derivation import FactDerivationReactor
from gavel_client.consumers.work_queue import DECISIONS, EXECUTIONS, WorkQueue

__all__ = ["DECISIONS", "EXECUTIONS", "Consumer", "Disposition", "FactDerivationReactor", "Statistics", "WorkQueue"]
