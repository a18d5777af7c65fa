"""Structured logs on stderr. Payloads, params, tokens and URLs with passwords are never log fields.

A process that a server starts to speak for it logs as the server does: how, is told in its environment.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

import structlog

_INHERITED: Final = "GAVEL_SERVER_LOGS"
_GRPC_LOGGER: Final = "grpc._cython.cygrpc"
_CALLER_LEFT: Final = "ExecuteBatchError raised in core"


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Whether a line of gRPC's is more than that a caller left while it was being answered, which any caller may do at any time."""
    return not record.getMessage().startswith(_CALLER_LEFT)


def configure(*, level: str, as_json: bool) -> None:
    """Send log lines of at least `level` to stderr, as JSON for machines or aligned text for people; likewise those of children."""
    os.environ[_INHERITED] = f"{level} {'json' if as_json else 'text'}"
    renderer = (
        structlog.processors.JSONRenderer()
        if as_json
        # Plain tracebacks: the pretty ones show local variables, which hold payloads.
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer], foreign_pre_chain=shared
        )
    )
    logging.getLogger(_GRPC_LOGGER).addFilter(_is_worth_saying)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def configure_as_parent() -> None:
    """Log as the server does that started this process."""
    level, form = os.environ.get(_INHERITED, "info text").split()
    configure(level=level, as_json=form == "json")
