"""Consumers of the work queues, the fact derivation reactor, and the collector of facts.

`WorkQueue` needs Redis and `FactDerivationReactor` the rules, whose packages gavel-client alone does not have. The two are imported when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gavel_client.consumers.consumer import Consumer, Disposition, Statistics
from gavel_client.consumers.fact_collector import FactCollector
from gavel_client.consumers.work_source import DECISIONS, EXECUTIONS
from gavel_client.consumers.work_stream import REQUESTS, WorkStream

if TYPE_CHECKING:
    from gavel_client.consumers.fact_derivation import FactDerivationReactor
    from gavel_client.consumers.work_queue import WorkQueue

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

_MODULE_OF: Final = {"FactDerivationReactor": "fact_derivation", "WorkQueue": "work_queue"}


def __getattr__(name: str) -> Any:
    """Import a name on its first use. Raises ImportError if gavel-arbiter, which brings the packages that it needs, is missing."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} needs the package {error.name}, which gavel-client does not require: pip install gavel-arbiter;"
            " executors and collectors without redis_url take their work over gRPC and do not need it"
        ) from error
