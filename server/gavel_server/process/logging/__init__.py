"""Structured logs on stderr. Log fields never hold payloads, params, tokens or passwords.

A line is limited (`limit`), rendered, and then written by a thread (`writer`), so neither a flood of lines nor a reader that stops
holds up the server.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from io import StringIO
from typing import Any, Final, TextIO, cast

import structlog
from gavel_rules.text import printable

from gavel_server.process.logging.limit import LogLimit
from gavel_server.process.logging.repeated_line import count_repeated_lines
from gavel_server.process.logging.writer import LogWriter

STANDARD_ERROR: Final = 2
_TEMPLATE_LENGTH_MAX: Final = 100
_GRPC_LOGGER: Final = "grpc._cython.cygrpc"
# How gRPC begins the message about a caller that disconnected during its call.
_DISCONNECTION: Final = "ExecuteBatchError raised in core"
_UNDECODABLE: Final = "a caller sent headers that are not UTF-8"


class Logging:
    """The logging of this process. `start` replaces an earlier one; `close` writes the last lines."""

    def __init__(self, *, level: str, as_json: bool, descriptor: int = STANDARD_ERROR) -> None:
        """Write log lines of `level` and above to a descriptor, as JSON or as aligned text."""
        self._level: Final = level.upper()
        self._limit: Final = LogLimit()
        self._writer: Final = LogWriter(descriptor, self._sum_up, self._report_dropped)
        self._as_json: Final = as_json
        self._unlimited: Any = None  # a logger of lines that are about the log itself

    def start(self) -> None:
        """Take the lines of structlog, and in the same form those of libraries that use `logging`."""
        output = cast(TextIO, self._writer)
        renderer = _renderer(self._as_json, self._writer.isatty())
        rendering: list[structlog.typing.Processor] = [structlog.processors.TimeStamper(fmt="iso", utc=True)]
        rendering.append(structlog.processors.format_exc_info if self._as_json else _escape)
        wrapper = structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[self._level])
        structlog.configure(
            processors=[structlog.processors.add_log_level, self._drop_repeated, *rendering, renderer],
            wrapper_class=wrapper,
            logger_factory=structlog.WriteLoggerFactory(output),
            cache_logger_on_first_use=True,
        )
        self._unlimited = structlog.wrap_logger(
            structlog.WriteLogger(output), processors=[structlog.processors.add_log_level, *rendering, renderer], wrapper_class=wrapper
        )
        handler = logging.StreamHandler(output)
        handler.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
                foreign_pre_chain=[structlog.processors.add_log_level, *rendering],
            )
        )
        handler.addFilter(_filter_disconnections)
        handler.addFilter(self._admits_record)
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(self._level)
        self._writer.start()
        count_repeated_lines(self._limit)

    def close(self) -> None:
        """Write the last lines. Later lines are lost."""
        count_repeated_lines(None)
        self._sum_up(final=True)
        self._writer.close()

    def _drop_repeated(self, _: Any, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if not self._limit.admits(fields["event"], fields):
            raise structlog.DropEvent
        return fields

    def _admits_record(self, record: logging.LogRecord) -> bool:
        template = str(record.msg)[:_TEMPLATE_LENGTH_MAX]
        fields = {"level": record.levelname.lower(), "template": template, "message": record.getMessage()}
        return self._limit.admits(record.name, fields)

    def _sum_up(self, *, final: bool = False) -> None:
        for event, fields in self._limit.summaries(final=final):
            self._log(event, fields)

    def _report_dropped(self, count: int) -> None:
        self._log("log.dropped", {"level": "warning", "count": count})

    def _log(self, event: str, fields: Mapping[str, Any]) -> None:
        level = str(fields.get("level", "info"))
        self._unlimited.log(
            logging.getLevelNamesMapping()[level.upper()], event, **{name: value for name, value in fields.items() if name != "level"}
        )


def log_to_stderr() -> None:
    """Write warnings of a command to standard error, unless the process has a log: its standard output is for results."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[_drop_information, structlog.processors.add_log_level, _escape, _renderer(as_json=False, colors=False)],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _drop_information(_: Any, method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if logging.getLevelNamesMapping().get(method.upper(), logging.ERROR) < logging.WARNING:
        raise structlog.DropEvent
    return fields


def _renderer(as_json: bool, colors: bool) -> structlog.typing.Processor:
    if as_json:
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_format_exception)


def _format_exception(output: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Write a traceback without the default's local variables, which hold payloads, and with control characters escaped."""
    plain = StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    output.write("\n".join(map(printable, plain.getvalue().split("\n"))))


def _escape(_: Any, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters in texts, which may be a caller's: they would forge lines or control a terminal."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in fields.items()}


def _filter_disconnections(record: logging.LogRecord) -> bool:
    """Filter gRPC's errors about disconnected callers, which are normal, and name those about undecodable metadata without a traceback."""
    if record.name == _GRPC_LOGGER and record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        record.msg, record.args, record.exc_info = _UNDECODABLE, (), None
    return record.name != _GRPC_LOGGER or not record.getMessage().startswith(_DISCONNECTION)
