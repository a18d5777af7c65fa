"""Consumers of the work queues, the fact derivation reactor, and the collector of facts."""

from gavel_client.consumers.consumer import Consumer, Disposition, Statistics
from gavel_client.consumers.fact_collector import FactCollector
from gavel_client.consumers.fact_derivation import FactDerivationReactor
from gavel_client.consumers.work_queue import DECISIONS, EXECUTIONS, WorkQueue
from gavel_client.consumers.work_stream import REQUESTS, WorkStream

__all__ = [
    "DECISIONS",
    "EXECUTIONS",
    "REQUESTS",
    "Consumer",
    "Disposition",
    "FactCollector",
    "FactDerivationReactor",
    "Statistics",
    "WorkQueue",
    "WorkStream",
]
