"""Compiles untrusted rule set documents: first in a child process with limits, then in the server.

The child (`worker`) has a time limit and a memory limit. If it exceeds one, the server answers COMPILE_LIMIT_EXCEEDED.
The server compiles only documents that a child has accepted, once per version, in a thread, so the event loop keeps deciding. The
number of children is limited, because each takes a processor, and so is the number of waiting compilations, of which each caller has a
share; they take turns by caller (`fairness/places`). A child's answer depends only on the document and is cached: validating a
document and then deploying it runs one child.
"""

from __future__ import annotations

import asyncio
import errno
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
from gavel_rules.language import rule_set_cache
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set
from gavel_rules.limits import MESSAGE_BYTES_MAX
from gavel_rules.state.records import DeployedRuleSet

from gavel_server.compile.worker import ANALYSED, EXIT_MEMORY, MEMORY_BYTES_MAX, PROCESSOR_SECONDS_MAX
from gavel_server.errors import ServiceError, internal, invalid
from gavel_server.fairness.callers import INTERNAL
from gavel_server.fairness.places import Places
from gavel_server.process.children import child_environment

# Ends a child that hangs. A child that computes is ended by its own limit of processor time, which does not depend on other load.
TIME_LIMIT_MS: Final = 60_000
COMPILES_MAX: Final = 2
COMPILES_WAITING_MAX: Final = 16
RETRY_AFTER_MS: Final = 2_000
# Why a process cannot be started now, and perhaps later.
_SHORTAGES: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
# Size of the cache of children's answers, and the largest answer that it holds.
ANSWERS_MAX: Final = 256
ANSWER_BYTES_MAX: Final = 16 * 1024
# How much of a failed child's standard error goes into the server's log.
ERROR_OUTPUT_BYTES_MAX: Final = 4 * 1024

_COMMAND: Final = (sys.executable, "-P", "-m", "gavel_server.compile.worker")
_LOG: Final = structlog.get_logger("gavel.compiler")
# One thread: two would only compete for the interpreter, also with the event loop.
_thread: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compile")


class Compiler:
    """Compiles documents for one server, from one event loop."""

    def __init__(self, time_limit_ms: int = TIME_LIMIT_MS) -> None:
        self._time_limit_ms = time_limit_ms
        self._places = Places(
            "rule sets wait to be compiled", COMPILES_MAX, waiting_max=COMPILES_WAITING_MAX, retry_after_ms=RETRY_AFTER_MS
        )
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    async def check(self, document: str, caller: str = INTERNAL, *, with_analysis: bool = False) -> ValidateRuleSetResponse:
        """Compile a document in a child process and run it on generated cases; return all errors and warnings.

        `with_analysis` adds warnings about the relations between its rules, which takes longer. `caller` names the caller whose share of
        the places it uses. Raises ServiceError: INVALID_REQUEST, COMPILE_LIMIT_EXCEEDED, QUEUE_FULL, INTERNAL.
        """
        encoded = document.encode()
        if not encoded:
            raise invalid([("document", "is required: a rule set in YAML or JSON")])
        if len(encoded) > MESSAGE_BYTES_MAX:
            raise invalid([("document", f"is larger than {MESSAGE_BYTES_MAX} bytes")])
        key = hashlib.sha256(bytes([with_analysis]) + encoded).digest()
        answer = self._answers.get(key)
        if answer is None:
            answer = await self._places.run(caller, self._run_child(encoded, with_analysis))
        if len(answer) <= ANSWER_BYTES_MAX:
            self._answers[key] = answer
            self._answers.move_to_end(key)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return ValidateRuleSetResponse.FromString(answer)

    async def compile(self, document: str, caller: str = INTERNAL, field: str = "document") -> CompiledRuleSet:
        """Check a document and return its rule set, compiled from its canonical text, as for decisions.

        `field` is the field of the request that holds the document. Raises ServiceError: the errors of `check`, and
        INVALID_RULE_SET with every violation.
        """
        report = await self.check(document, caller)
        violations = [(f"{field}:{error.line}:{error.column}", _sentence(error)) for error in report.errors]
        if violations:
            place, description = violations[0]
            more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
            raise ServiceError(error_pb2.ERROR_REASON_INVALID_RULE_SET, f"{place}: {description}{more}", violations)
        known = rule_set_cache.get(report.digest)
        if known is not None:
            return known
        return await self._places.run(caller, _compile_once(document, report.digest))

    async def _run_child(self, document: bytes, with_analysis: bool) -> bytes:
        """Return a child's answer, a serialized ValidateRuleSetResponse. Raises the errors of `check`."""
        # `subprocess` starts the child by vfork. uvloop would fork, which holds the event loop for 30 ms for each GiB of this process
        # (ADR 0047).
        try:
            child = await asyncio.to_thread(
                subprocess.run,
                (*_COMMAND, *((ANALYSED,) if with_analysis else ())),
                input=document,
                capture_output=True,
                timeout=self._time_limit_ms / 1000,
                start_new_session=True,
                env=child_environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _limit_exceeded(f"took longer than {self._time_limit_ms} ms to compile") from None
        except OSError as error:
            if error.errno not in _SHORTAGES:
                raise  # the installation is broken
            raise _lack_of_resources(f"the compiler cannot be started: {error.strerror}") from error
        return _answer(child.returncode, child.stdout, child.stderr)


async def _compile_once(document: str, digest: str) -> CompiledRuleSet:
    """Return the rule set of a document from the cache, or compile it from its canonical text."""
    return rule_set_cache.get(digest) or rule_set_cache.put(await compile_in_thread(document, canonically=True))


async def ensure_compiled(deployed: DeployedRuleSet) -> None:
    """Compile a deployed version in the thread unless it is cached. Applying its activation then need not compile it."""
    if rule_set_cache.get(deployed.digest) is None:
        rule_set_cache.put(await compile_in_thread(deployed.canonical_json))


async def compile_in_thread(text: str, *, canonically: bool = False) -> CompiledRuleSet:
    """Compile a document, or `canonically` its canonical text, in the thread. Raises DocumentError."""
    return await asyncio.get_running_loop().run_in_executor(_thread, _compile_canonically if canonically else compile_rule_set, text)


def _compile_canonically(document: str) -> CompiledRuleSet:
    return compile_rule_set(compile_rule_set(document).canonical_json)


def _answer(status: int, answer: bytes, errors: bytes) -> bytes:
    """Return a child's answer. Raises the ServiceError that explains its exit status."""
    if status == 0:
        return answer
    if status == EXIT_MEMORY:
        raise _limit_exceeded(f"took more than {MEMORY_BYTES_MAX} bytes of memory to compile")
    if status == -signal.SIGXCPU:
        raise _limit_exceeded(f"took more than {PROCESSOR_SECONDS_MAX} s of processor time to compile (SIGXCPU)")
    if status == -signal.SIGKILL:  # its own limits never end so, but the kernel ends it first when memory is short
        raise _lack_of_resources("the compiler was killed, probably because the machine lacks memory")
    if status < 0:
        raise _limit_exceeded(f"stopped its compiler with {signal.Signals(-status).name}")
    error_id = uuid.uuid4().hex
    _LOG.error("compiler.failed", error_id=error_id, status=status, stderr=errors[-ERROR_OUTPUT_BYTES_MAX:].decode(errors="replace"))
    raise internal(error_id)


def _limit_exceeded(problem: str) -> ServiceError:
    message = f"the rule set {problem}; make it smaller or simpler"
    return ServiceError(error_pb2.ERROR_REASON_COMPILE_LIMIT_EXCEEDED, message)


def _lack_of_resources(problem: str) -> ServiceError:
    _LOG.warning("compiler.lacks_resources", problem=problem)
    return ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, f"{problem}; try again", retry_after_ms=RETRY_AFTER_MS)


def _sentence(error: DocumentMessage) -> str:
    return f"{error.code}: {error.message}" + (f" ({error.suggestion})" if error.suggestion else "")
