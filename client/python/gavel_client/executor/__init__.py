"""The executor: it carries out approved decisions with an application's handlers."""

from gavel_client.executor.executor import Executor

__all__ = ["Executor"]
