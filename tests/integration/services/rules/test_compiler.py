"""The compiler's child processes: no document hangs or crashes a server, and a child's answer is cached."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import PreflightRequest
from gavel.v1.rule_set_service_pb2 import DeployRuleSetRequest, SimulateRuleSetRequest
from gavel_server.compile import compiler
from gavel_server.compile.compiler import Compiler
from gavel_server.errors import ServiceError

from tests.integration.services.world import RULE_SET, World, proposal, refusal


async def test_compiling_is_limited_in_time() -> None:
    """A document that does not compile in time is COMPILE_LIMIT_EXCEEDED, and its child is gone."""
    with pytest.raises(ServiceError, match="took longer than 1 ms") as error_info:
        await Compiler(time_limit_ms=1).check(RULE_SET)

    assert error_info.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "import gavel_server.compile.worker as w, sys; w.report_on = lambda text, with_analysis: 'x' * (1 << 40); sys.exit(w.main())",
            "memory",
        ),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        (
            "import gavel_server.compile.worker as w\n"
            "w.PROCESSOR_SECONDS_MAX = 1\n"
            "def report_on(text, with_analysis):\n"
            "    while True:\n"
            "        pass\n"
            "w.report_on = report_on\n"
            "w.main()",
            "of processor time",
        ),
    ],
)
async def test_killed_child_is_a_limit_error(monkeypatch: pytest.MonkeyPatch, program: str, message: str) -> None:
    """A child that runs out of memory or dies by a signal is COMPILE_LIMIT_EXCEEDED."""
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-c", program))
    with pytest.raises(ServiceError, match=message) as error_info:
        await Compiler().check(RULE_SET)

    assert error_info.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
async def test_a_compiler_that_cannot_be_started_now(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A machine that is short of processes, memory or files is asked again later: that is no fault of the document, and no bug."""

    def run(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ServiceError, match=f"cannot be started: {os.strerror(number)}; try again") as error_info:
        await Compiler().check(RULE_SET)
    assert error_pb2.ERROR_REASON_QUEUE_FULL == error_info.value.reason


# The faults are injected into the child's engines; the canary and its answer are those of production.
_SWAPPED = "import durable_rules_engine as d; d.create_ruleset = lambda n, text, real=d.create_ruleset: real(n, text.replace('lte', 'gte'))"
_BROKEN = "import durable_rules_engine as d; d.retract_fact = lambda *_: (1, 0)"
_FAILING = "import durable_rules_engine as d; d.retract_fact = lambda *on, real=d.retract_fact: real(*on) if 'warm' in on[1] else (1, 0)"


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_SWAPPED, "the two rule engines disagree on a case of refund.create with params {"),
        (_FAILING, "an engine fails (the Rete engine on refund.create kept a case: 1) on a case of refund.create with params {"),
        (_BROKEN, "an engine fails (the Rete engine on refund.create kept its warm-up) when it starts for refund.create"),
    ],
)
async def test_document_with_an_engine_disagreement_is_refused(monkeypatch: pytest.MonkeyPatch, fault: str, message: str) -> None:
    """A document on which an engine fails in the child, or the two disagree, is refused as engine-disagreement, with the case."""
    assert (await Compiler().check(RULE_SET)).valid
    monkeypatch.setattr(
        compiler, "_COMMAND", (sys.executable, "-c", f"{fault}\nimport gavel_server.compile.worker as w, sys; sys.exit(w.main())")
    )
    report = await Compiler().check(RULE_SET)
    assert ["engine-disagreement"] == [error.code for error in report.errors]
    assert message in report.errors[0].message
    assert (False, "") == (report.valid, report.digest)
    with pytest.raises(ServiceError, match="engine-disagreement") as error_info:
        await Compiler().compile(RULE_SET)
    assert grpc.StatusCode.INVALID_ARGUMENT == error_info.value.code


def stop_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler's children stop themselves before they begin, and continue on a signal, so that none ends too early."""
    program = "import os, signal, sys; os.kill(os.getpid(), signal.SIGSTOP); import gavel_server.compile.worker as w; sys.exit(w.main())"
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-P", "-c", program))


def workers(state: str = "") -> list[int]:
    """The process ids of this process's compiler children, all or those in a state: "T" is stopped."""
    processes = []
    for task in Path("/proc/self/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            with suppress(FileNotFoundError):  # it has ended
                is_worker = b"gavel_server.compile.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
                if is_worker and f"\nState:\t{state}" in Path(f"/proc/{child}/status").read_text(encoding="ascii"):
                    processes.append(int(child))
    return processes


async def test_a_child_gives_way_to_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that compiles has a lower priority than this process."""
    program = (
        "import os, signal, gavel_server.compile.worker as w\n"
        "real = w.report_on\n"
        "def report_on(text, with_analysis):\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return real(text, with_analysis)\n"
        "w.report_on = report_on\n"
        "w.main()"
    )
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-P", "-c", program))
    checking = asyncio.create_task(Compiler().check(RULE_SET))
    (child,) = await wait_until_stopped()
    assert os.getpriority(os.PRIO_PROCESS, child) > os.nice(0)
    os.kill(child, signal.SIGCONT)
    assert (await checking).valid


async def wait_until_stopped(count: int = 1) -> list[int]:
    """Wait until `count` compiler children of this process have stopped, and return their process ids."""
    while len(processes := workers("T")) < count:  # noqa: ASYNC110  # a process table sets no event
        await asyncio.sleep(0.001)
    return processes


@pytest.mark.parametrize(
    ("signal_number", "reason", "problem_text"),
    [
        (signal.SIGKILL, "QUEUE_FULL", "lacks memory; try again"),  # by the kernel, which ends the compiler first
        (signal.SIGSEGV, "COMPILE_LIMIT_EXCEEDED", "SIGSEGV"),
        (signal.SIGXCPU, "COMPILE_LIMIT_EXCEEDED", "SIGXCPU"),
    ],
)
async def test_deployment_whose_child_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch, signal_number: signal.Signals, reason: str, problem_text: str
) -> None:
    """A deployment whose compiler is killed is refused, with a delay if the document is not at fault, and leaves nothing."""
    deployment = DeployRuleSetRequest(document=RULE_SET)
    with monkeypatch.context() as patched:
        stop_children(patched)
        deploying = asyncio.create_task(refusal(world.rule_sets.DeployRuleSet(deployment)))
        (child,) = await wait_until_stopped()
        os.kill(child, signal_number)
        with suppress(ProcessLookupError):  # SIGKILL does not wait for it
            os.kill(child, signal.SIGCONT)
        problem = await deploying

    assert (problem.code, problem.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
    assert problem_text in problem.message
    assert (reason == "QUEUE_FULL") == bool(problem.retry_after_ms)
    assert await world.head() == 1
    assert (await world.rule_sets.DeployRuleSet(deployment)).sequence_number == 2


async def test_compiler_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that hangs, here because it is stopped, is killed at the time limit; the next one compiles."""
    with monkeypatch.context() as patched:
        stop_children(patched)
        with pytest.raises(ServiceError, match="took longer than 500 ms") as error_info:
            await Compiler(time_limit_ms=500).check(RULE_SET)

    assert error_info.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [] == workers("T")
    assert (await Compiler().check(RULE_SET)).valid


@pytest.mark.long
async def test_cancelled_callers_still_count_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of a cancelled caller counts until it ends: never more children compile than the limit."""
    compiling = Compiler(time_limit_ms=100_000)
    with monkeypatch.context() as patched:
        stop_children(patched)
        checking = [asyncio.create_task(compiling.check(RULE_SET)) for _ in range(compiler.COMPILES_MAX)]
        children = await wait_until_stopped(compiler.COMPILES_MAX)
    for task in checking:
        task.cancel()
    await asyncio.gather(*checking, return_exceptions=True)
    another = asyncio.create_task(compiling.check(RULE_SET))
    await asyncio.sleep(0.3)

    assert set(workers()) == set(children)
    for child in children:
        os.kill(child, signal.SIGCONT)
    assert (await another).valid


@pytest.mark.long
async def test_callers_share_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that validates many documents at once is refused beyond its share; another caller is not, and takes its turn."""
    waiting_max = 4  # each compilation takes half a second of processor time
    monkeypatch.setattr(compiler, "COMPILES_WAITING_MAX", waiting_max)
    compiling = Compiler(time_limit_ms=100_000)
    with monkeypatch.context() as patched:
        stop_children(patched)
        running = [asyncio.create_task(compiling.check(f"{RULE_SET}\n# {number}", "10.0.0.1:1")) for number in range(2)]
        children = await wait_until_stopped(compiler.COMPILES_MAX)
    greedy = [asyncio.create_task(compiling.check(f"{RULE_SET}\n# {number}", "10.0.0.1:1")) for number in range(2, 2 + waiting_max + 2)]
    other = asyncio.create_task(compiling.check(RULE_SET, "10.0.0.1:2"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = [task for task in greedy if task.done()]
    for child in children:
        os.kill(child, signal.SIGCONT)
    assert (await other).valid
    assert 3 == len(refused)  # two that found no place, and one that the other caller has displaced
    for task in refused:
        error = task.exception()
        assert isinstance(error, ServiceError)
        assert (grpc.StatusCode.RESOURCE_EXHAUSTED, compiler.RETRY_AFTER_MS) == (error.code, error.retry_after_ms)
    waiting = [task for task in greedy if task not in refused]
    assert sum(task.done() for task in waiting) < len(waiting)
    assert all([(await task).valid for task in (*running, *waiting)])


async def test_refused_overrides_name_the_share(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller whose overrides wait for the compiler hears of its share for one more, and for a simulation: QUEUE_FULL."""
    waiting_max = compiler.COMPILES_WAITING_MAX
    stop_children(monkeypatch)

    def preflight(number: int) -> PreflightRequest:
        return PreflightRequest(envelope=proposal("order/1"), rule_set_override=f"{RULE_SET}\n# {number}")

    async def simulate(number: int) -> None:
        await anext(aiter(world.rule_sets.SimulateRuleSet(SimulateRuleSetRequest(document=f"{RULE_SET}\n# {number}"))))

    running = [asyncio.ensure_future(world.arbitration.Preflight(preflight(number))) for number in range(compiler.COMPILES_MAX)]
    children = await wait_until_stopped(compiler.COMPILES_MAX)
    more = [asyncio.create_task(refusal(world.arbitration.Preflight(preflight(number)))) for number in range(2, 2 + waiting_max + 1)]
    (refused, *_), waiting = await asyncio.wait(more, return_when=asyncio.FIRST_COMPLETED)
    for problem in (refused.result(), await refusal(simulate(99))):
        assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL") == (problem.code, problem.reason)
        assert f"{waiting_max} rule sets wait to be compiled" in problem.message
        assert "the caller has used its share" in problem.message
    for task in (*running, *waiting):
        task.cancel()
    for child in children:
        os.kill(child, signal.SIGKILL)


async def test_bug_in_a_child_is_internal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that fails otherwise is a bug: INTERNAL with an id."""
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-c", "raise RuntimeError"))
    with pytest.raises(ServiceError, match=r"internal error [0-9a-f]{32}") as error_info:
        await Compiler().check(RULE_SET)

    assert error_info.value.code == grpc.StatusCode.INTERNAL


async def test_compiler_answers_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is compiled by one child, and analysed by one more; mistakes are cached too, a child's failure is not."""
    compiling = Compiler()
    invalid = RULE_SET.replace("version: 1", "version: 0")
    answers = [await compiling.check(RULE_SET), await compiling.check(invalid)]
    assert [True, False] == [answer.valid for answer in answers]
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_COMMAND", (sys.executable, "-c", "raise RuntimeError"))
        assert answers == [await compiling.check(RULE_SET), await compiling.check(invalid)]
        with pytest.raises(ServiceError, match="internal error"):
            await compiling.check(RULE_SET, with_analysis=True)

    assert (await compiling.check(RULE_SET, with_analysis=True)).valid


async def test_cache_of_compiler_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds the latest answers and drops the least recently used one; long answers are not cached."""
    monkeypatch.setattr(compiler, "ANSWERS_MAX", 2)
    compiling = Compiler()
    documents = [f"# {number}\n{RULE_SET}" for number in range(3)]
    for document in (documents[0], documents[1], documents[0], documents[2]):
        assert (await compiling.check(document)).valid
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_COMMAND", (sys.executable, "-c", "raise RuntimeError"))
        assert (await compiling.check(documents[0])).valid
        assert (await compiling.check(documents[2])).valid
        with pytest.raises(ServiceError, match="internal error"):
            await compiling.check(documents[1])
    monkeypatch.setattr(compiler, "ANSWER_BYTES_MAX", 1)
    assert (await compiling.check(documents[1])).valid
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-c", "raise RuntimeError"))
    with pytest.raises(ServiceError, match="internal error"):
        await compiling.check(documents[1])


async def test_queue_of_compilations_is_bounded() -> None:
    """A limited number of documents compile at once and a limited number wait; one more is RESOURCE_EXHAUSTED at once."""
    compiling = Compiler()
    most = compiler.COMPILES_MAX + compiler.COMPILES_WAITING_MAX
    tasks = [asyncio.create_task(compiling.check(RULE_SET)) for _ in range(most)]
    await asyncio.sleep(0)

    with pytest.raises(ServiceError) as error_info:
        await compiling.check(RULE_SET)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert error_info.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await compiling.check(RULE_SET)).valid
