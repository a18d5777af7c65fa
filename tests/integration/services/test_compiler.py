"""The compiler's children: no document may hang or crash a server, and what a child has said is not asked again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from gavel.v1.rule_set_service_pb2 import DeployRuleSetRequest
from gavel_server import compiler
from gavel_server.compiler import Compiler
from gavel_server.errors import ServiceError

from tests.integration.services.world import RULE_SET, World, refusal


async def test_compiling_is_limited_in_time() -> None:
    """A document that does not compile in time is COMPILE_LIMIT_EXCEEDED, and its child is gone."""
    with pytest.raises(ServiceError, match="took longer than 1 ms") as caught:
        await Compiler(time_limit_ms=1).check(RULE_SET)

    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "import gavel_server.compile_worker as w, sys; w.report_on = lambda text, analysed: 'x' * (1 << 40); sys.exit(w.main())",
            "memory",
        ),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
    ],
)
async def test_child_that_dies_is_a_limit(monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    """A child that runs out of memory or dies by a signal is COMPILE_LIMIT_EXCEEDED."""
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-c", program))
    with pytest.raises(ServiceError, match=said) as caught:
        await Compiler().check(RULE_SET)

    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED


# The faults are put into the child's engines: what the canary finds there, and how it answers, is what it is in production.
_SWAPPED = "import durable_rules_engine as d; d.create_ruleset = lambda n, text, real=d.create_ruleset: real(n, text.replace('lte', 'gte'))"
_BROKEN = "import durable_rules_engine as d; d.retract_fact = lambda *_: (1, 0)"
_FAILING = "import durable_rules_engine as d; d.retract_fact = lambda *on, real=d.retract_fact: real(*on) if 'warm' in on[1] else (1, 0)"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_SWAPPED, "the two rule engines disagree about refund.create with params {"),
        (_FAILING, "an engine fails (the Rete engine on refund.create kept a case: 1) when asked about refund.create with params {"),
        (_BROKEN, "an engine fails (the Rete engine on refund.create kept its warm-up) when started on refund.create"),
    ],
)
async def test_no_document_is_deployed_that_engines_answer_differently(monkeypatch: pytest.MonkeyPatch, fault: str, said: str) -> None:
    """A document on which an engine fails in the child, or the two disagree, is refused as engine-disagreement, with the case."""
    assert (await Compiler().check(RULE_SET)).valid
    monkeypatch.setattr(
        compiler, "_COMMAND", (sys.executable, "-c", f"{fault}\nimport gavel_server.compile_worker as w, sys; sys.exit(w.main())")
    )
    report = await Compiler().check(RULE_SET)
    assert ["engine-disagreement"] == [error.code for error in report.errors]
    assert said in report.errors[0].message
    assert (False, "") == (report.valid, report.digest)
    with pytest.raises(ServiceError, match="engine-disagreement") as caught:
        await Compiler().compile(RULE_SET)
    assert grpc.StatusCode.INVALID_ARGUMENT == caught.value.code


def stop_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler's children stop themselves before they begin, and go on when they are told: none can be done too early."""
    program = "import os, signal, sys; os.kill(os.getpid(), signal.SIGSTOP); import gavel_server.compile_worker as w; sys.exit(w.main())"
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-P", "-c", program))


def workers(state: str = "") -> list[int]:
    """The process ids of this process's compiler children, all or those in a state: "T" is stopped."""
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            with suppress(FileNotFoundError):  # gone in the meantime
                is_worker = b"gavel_server.compile_worker" in Path(f"/proc/{child}/cmdline").read_bytes()
                if is_worker and f"\nState:\t{state}" in Path(f"/proc/{child}/status").read_text(encoding="ascii"):
                    found.append(int(child))
    return found


async def stopped(count: int = 1) -> list[int]:
    """Wait for so many compiler children of this process that have stopped, and return their process ids."""
    while len(found := workers("T")) < count:  # noqa: ASYNC110  # a process table sets no event
        await asyncio.sleep(0.001)
    return found


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV, signal.SIGXCPU])
async def test_deployment_whose_child_is_killed(world: World, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals) -> None:
    """A deployment whose compiler is killed is refused as COMPILE_LIMIT_EXCEEDED and leaves nothing; the server goes on."""
    deployment = DeployRuleSetRequest(document=RULE_SET)
    with monkeypatch.context() as patched:
        stop_children(patched)
        deploying = asyncio.create_task(refusal(world.rule_sets.DeployRuleSet(deployment)))
        (child,) = await stopped()
        os.kill(child, sent)
        with suppress(ProcessLookupError):  # SIGKILL does not wait for it
            os.kill(child, signal.SIGCONT)
        heard = await deploying

    assert (heard.code, heard.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "COMPILE_LIMIT_EXCEEDED")
    assert sent.name in heard.message
    assert await world.head() == 1
    assert (await world.rule_sets.DeployRuleSet(deployment)).sequence_number == 2


async def test_compiler_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that hangs, here because it is stopped, is given up at the time limit and is gone; the next one compiles."""
    with monkeypatch.context() as patched:
        stop_children(patched)
        with pytest.raises(ServiceError, match="took longer than 500 ms") as caught:
            await Compiler(time_limit_ms=500).check(RULE_SET)

    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [] == workers("T")
    assert (await Compiler().check(RULE_SET)).valid


async def test_callers_that_hang_up_make_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of a caller that has hung up counts until it is gone: nobody gets more children than may compile at once."""
    compiling = Compiler(time_limit_ms=100_000)
    with monkeypatch.context() as patched:
        stop_children(patched)
        checking = [asyncio.create_task(compiling.check(RULE_SET)) for _ in range(compiler.COMPILES_MAX)]
        children = await stopped(compiler.COMPILES_MAX)
    for task in checking:
        task.cancel()
    await asyncio.gather(*checking, return_exceptions=True)
    another = asyncio.create_task(compiling.check(RULE_SET))
    await asyncio.sleep(0.3)

    assert set(workers()) == set(children)
    for child in children:
        os.kill(child, signal.SIGCONT)
    assert (await another).valid


async def test_child_with_a_bug_is_internal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that fails otherwise is a bug: INTERNAL with an id."""
    monkeypatch.setattr(compiler, "_COMMAND", (sys.executable, "-c", "raise RuntimeError"))
    with pytest.raises(ServiceError, match=r"internal error [0-9a-f]{32}") as caught:
        await Compiler().check(RULE_SET)

    assert caught.value.code == grpc.StatusCode.INTERNAL


async def test_what_a_child_has_answered_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is given to a child once, and once more to be analysed; its mistakes are remembered too, a child's failure is not."""
    compiling = Compiler()
    mistaken = RULE_SET.replace("version: 1", "version: 0")
    answers = [await compiling.check(RULE_SET), await compiling.check(mistaken)]
    assert [True, False] == [answer.valid for answer in answers]
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_COMMAND", (sys.executable, "-c", "raise RuntimeError"))
        assert answers == [await compiling.check(RULE_SET), await compiling.check(mistaken)]
        with pytest.raises(ServiceError, match="internal error"):
            await compiling.check(RULE_SET, analysed=True)

    assert (await compiling.check(RULE_SET, analysed=True)).valid


async def test_the_answers_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many documents the last few are remembered, the one that was asked for longest ago goes first; a long answer never is."""
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


async def test_callers_that_wait_are_limited() -> None:
    """So many documents compile at once, so many wait; one more is refused with RESOURCE_EXHAUSTED at once."""
    compiling = Compiler()
    most = compiler.COMPILES_MAX + compiler.COMPILES_WAITING_MAX
    waiting = [asyncio.create_task(compiling.check(RULE_SET)) for _ in range(most)]
    await asyncio.sleep(0)

    with pytest.raises(ServiceError) as caught:
        await compiling.check(RULE_SET)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)

    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await compiling.check(RULE_SET)).valid
