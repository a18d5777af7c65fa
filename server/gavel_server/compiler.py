"""Compiling rule set documents without trusting them: first in a child process with limits, then in the server.

The child (`compile_worker`) has a time limit and a memory limit and may die; the server then answers COMPILE_LIMIT_EXCEEDED
and goes on. Only what the child has answered for is compiled in the server, once per version (`gavel_rules.language.library`), and in a
thread: the event loop goes on deciding. How many children run at once is limited, because each takes a processor, and so is
how many callers wait for one. What a child has answered follows from the document alone and is remembered: who deploys what he
has validated, or tries many proposals on one candidate, waits for one child.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
import uuid
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.rule_set_service_pb2 import DocumentMessage, ValidateRuleSetResponse
from gavel_rules.language import library
from gavel_rules.language.ruleset import CompiledRuleSet, compile_rule_set
from gavel_rules.limits import MESSAGE_BYTES_MAX
from gavel_rules.records import DeployedRuleSet

from gavel_server.compile_worker import ANALYSED, EXIT_MEMORY, MEMORY_BYTES_MAX
from gavel_server.errors import ServiceError, internal, invalid

TIME_LIMIT_MS: Final = 10_000
COMPILES_MAX: Final = 2
COMPILES_WAITING_MAX: Final = 16
RETRY_AFTER_MS: Final = 2_000
# So many answers of children are remembered, none of them larger than this.
ANSWERS_MAX: Final = 256
ANSWER_BYTES_MAX: Final = 16 * 1024
# Of what a broken child says, so much goes into the server's log.
COMPLAINT_BYTES_MAX: Final = 4 * 1024

_COMMAND: Final = (sys.executable, "-P", "-m", "gavel_server.compile_worker")
_LOG: Final = structlog.get_logger("gavel.compiler")
# One thread: two that compile would only take the interpreter from each other, and from the event loop.
_thread: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compile")


class Compiler:
    """Compiles documents for one server, from one event loop."""

    def __init__(self, time_limit_ms: int = TIME_LIMIT_MS) -> None:
        self._time_limit_ms = time_limit_ms
        self._free = asyncio.Semaphore(COMPILES_MAX)
        self._callers = 0
        self._running: set[asyncio.Future[bytes]] = set()
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    async def check(self, document: str, analysed: bool = False) -> ValidateRuleSetResponse:
        """Compile a document in a child process and try it out there; return everything there is to say about it.

        With `analysed`, the warnings also say how its rules stand to each other, which takes its time.
        Raises ServiceError: INVALID_REQUEST, COMPILE_LIMIT_EXCEEDED, QUEUE_FULL, INTERNAL.
        """
        encoded = document.encode()
        if not encoded:
            raise invalid([("document", "is required: a rule set in YAML or JSON")])
        if len(encoded) > MESSAGE_BYTES_MAX:
            raise invalid([("document", f"is larger than {MESSAGE_BYTES_MAX} bytes")])
        key = hashlib.sha256(bytes([analysed]) + encoded).digest()
        answer = self._answers.get(key)
        if answer is None:
            answer = await self._ask_child(encoded, analysed)
        if len(answer) <= ANSWER_BYTES_MAX:
            self._answers[key] = answer
            self._answers.move_to_end(key)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return ValidateRuleSetResponse.FromString(answer)

    async def compile(self, document: str, field: str = "document") -> CompiledRuleSet:
        """Return the rule set of a document that has passed `check`, as it will decide: compiled from its canonical text.

        `field` is where the request has the document.

        Raises ServiceError: what `check` raises, and INVALID_RULE_SET with every mistake.
        """
        report = await self.check(document)
        violations = [(f"{field}:{error.line}:{error.column}", _sentence(error)) for error in report.errors]
        if violations:
            place, description = violations[0]
            more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
            raise ServiceError(error_pb2.ERROR_REASON_INVALID_RULE_SET, f"{place}: {description}{more}", violations)
        return library.find(report.digest) or library.keep(await compile_in_thread(document, canonically=True))

    async def _ask_child(self, encoded: bytes, analysed: bool) -> bytes:
        """Return a child's answer about a document, a serialized ValidateRuleSetResponse. Raises what `check` raises."""
        if self._callers >= COMPILES_MAX + COMPILES_WAITING_MAX:
            message = f"{COMPILES_WAITING_MAX} rule sets wait to be compiled; try again"
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=RETRY_AFTER_MS)
        self._callers += 1
        try:
            await self._free.acquire()
        except asyncio.CancelledError:
            self._callers -= 1
            raise
        # A caller may hang up; its child goes on, and keeps its place until it is gone.
        running = asyncio.ensure_future(self._run_child(encoded, analysed))
        self._running.add(running)
        running.add_done_callback(self._leave)
        return await asyncio.shield(running)

    def _leave(self, running: asyncio.Future[bytes]) -> None:
        self._running.discard(running)
        self._free.release()
        self._callers -= 1

    async def _run_child(self, document: bytes, analysed: bool) -> bytes:
        # `subprocess` starts the child by vfork, which runs no fork handlers; the event loop's own way would run gRPC's, in a
        # process whose other threads are inside gRPC.
        try:
            child = await asyncio.to_thread(
                subprocess.run,
                (*_COMMAND, *((ANALYSED,) if analysed else ())),
                input=document,
                capture_output=True,
                timeout=self._time_limit_ms / 1000,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _limit_exceeded(f"took longer than {self._time_limit_ms} ms to compile") from None
        return _answer(child.returncode, child.stdout, child.stderr)


async def ready(deployed: DeployedRuleSet) -> None:
    """Compile a deployed version beside the event loop if it is not at hand, so that whoever applies its activation finds it."""
    if library.find(deployed.digest) is None:
        library.keep(await compile_in_thread(deployed.canonical_json))


async def compile_in_thread(text: str, *, canonically: bool = False) -> CompiledRuleSet:
    """Compile a document, or `canonically` its canonical text, beside the event loop. Raises DocumentError."""
    return await asyncio.get_running_loop().run_in_executor(_thread, _compile_canonically if canonically else compile_rule_set, text)


def _compile_canonically(document: str) -> CompiledRuleSet:
    return compile_rule_set(compile_rule_set(document).canonical_json)


def _answer(status: int, answer: bytes, said: bytes) -> bytes:
    """Return what a child has answered, or raise the ServiceError for how it ended."""
    if status == 0:
        return answer
    if status == EXIT_MEMORY:
        raise _limit_exceeded(f"took more than {MEMORY_BYTES_MAX} bytes of memory to compile")
    if status < 0:
        raise _limit_exceeded(f"stopped its compiler with {signal.Signals(-status).name}")
    error_id = uuid.uuid4().hex
    _LOG.error("compiler.failed", error_id=error_id, status=status, said=said[-COMPLAINT_BYTES_MAX:].decode(errors="replace"))
    raise internal(error_id)


def _limit_exceeded(what: str) -> ServiceError:
    message = f"the rule set {what}; make it smaller or simpler"
    return ServiceError(error_pb2.ERROR_REASON_COMPILE_LIMIT_EXCEEDED, message, retry_after_ms=RETRY_AFTER_MS)


def _sentence(error: DocumentMessage) -> str:
    return f"{error.code}: {error.message}" + (f" ({error.suggestion})" if error.suggestion else "")
