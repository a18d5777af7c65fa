"""RuleSetService over real gRPC: the lifecycle of rule sets, and hostile documents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import grpc
import pytest
from gavel.v1 import fact_pb2
from gavel.v1.arbitration_service_pb2 import PreflightRequest, PreflightResponse
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.event_service_pb2 import GetEventRequest
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel.v1.rule_set_service_pb2 import (
    ActivateRuleSetRequest,
    DeactivateRuleSetRequest,
    DeployRuleSetRequest,
    GetRuleSetRequest,
    ListRuleSetsRequest,
    RuleSet,
    SimulateRuleSetRequest,
    ValidateRuleSetRequest,
)
from gavel_rules.language import rule_set_cache
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set
from gavel_server.compile import compiler
from gavel_server.compile.compiler import Compiler

from tests.integration.services.world import RULE_SET, Refusal, World, fact, proposal, refusal

BROKEN = RULE_SET.replace("params.amount > 1000", "params.amuont > 1000").replace("effect: approve", "effect: aprove")


def versioned(version: int, name: str = "refunds", action: str = "refund.create") -> str:
    """Return the rule set under another version, name or action."""
    return (
        RULE_SET.replace("version: 1", f"version: {version}")
        .replace("rule_set: refunds", f"rule_set: {name}")
        .replace("refund.create", action)
    )


async def deploy(world: World, document: str = RULE_SET) -> int:
    """Deploy a document by the service, which compiles it in a child process first; return its sequence number."""
    return (await world.rule_sets.DeployRuleSet(DeployRuleSetRequest(document=document))).sequence_number


async def activate(world: World, version: int = 1, name: str = "refunds", expected: int | None = None) -> int:
    """Activate a version and return the sequence number at which it takes effect."""
    request = ActivateRuleSetRequest(policy_id=name, version=version, expected_active_version=expected)
    return (await world.rule_sets.ActivateRuleSet(request)).sequence_number


async def test_validate_writes_nothing(world: World) -> None:
    """A valid document is answered with its digest; an invalid one with every mistake, by line and column; nothing is appended."""
    good = await world.rule_sets.ValidateRuleSet(ValidateRuleSetRequest(document=RULE_SET))
    bad = await world.rule_sets.ValidateRuleSet(ValidateRuleSetRequest(document=BROKEN))

    assert (good.valid, list(good.errors)) == (True, [])
    assert good.digest.startswith("sha256:")
    assert (bad.valid, bad.digest) == (False, "")
    assert [error.code for error in bad.errors] != []
    assert all(error.line > 1 and error.column > 1 and error.message for error in bad.errors)
    assert await world.head() == 1


async def test_deploy_activate_decide_deactivate(world: World) -> None:
    """A deployed version decides from its activation until its deactivation, at the sequence numbers that were answered."""
    event = await world.publish(fact("order/1", "order.status", "delivered"))
    ask = proposal("order/1", cites=[event])
    assert (await world.propose(ask)).decision.reason_code == "NO_ACTIVE_POLICY"

    deployed = await world.rule_sets.DeployRuleSet(DeployRuleSetRequest(document=RULE_SET))
    assert (deployed.policy_id, deployed.version, deployed.sequence_number) == ("refunds", 1, 5)
    assert (await world.propose(ask)).decision.reason_code == "NO_ACTIVE_POLICY"

    assert await activate(world) == 8
    approved = (await world.propose(ask)).decision
    assert (approved.policy_id, approved.policy_version, approved.rule_id) == ("refunds", 1, "small")
    assert approved.rule_set_digest == deployed.digest

    deactivation = await world.rule_sets.DeactivateRuleSet(DeactivateRuleSetRequest(policy_id="refunds"))
    assert deactivation.sequence_number == 11
    assert (await world.propose(ask)).decision.reason_code == "NO_ACTIVE_POLICY"


async def test_the_log_holds_the_document(world: World) -> None:
    """The event that deploys a rule set holds its text and its canonical form, by the system itself."""
    number = await deploy(world)

    event = (await world.events.GetEvent(GetEventRequest(sequence_number=number))).envelope
    read = await world.rule_sets.GetRuleSet(GetRuleSetRequest(policy_id="refunds", version=1))

    assert event.fact.rule_set_deployed.document == RULE_SET == read.document
    assert event.fact.rule_set_deployed.canonical_json == read.canonical_json
    assert event.fact.observed_from == fact_pb2.OBSERVED_FROM_HUMAN_INPUT
    assert event.producer.id == "gavel"


async def test_deploying_again_changes_nothing(world: World) -> None:
    """The same digest under the same version is answered as before, whatever its layout; nothing is appended."""
    number = await deploy(world)

    assert await deploy(world, RULE_SET + "\n# a remark\n") == number
    assert await world.head() == number


async def test_other_document_under_a_deployed_version(world: World) -> None:
    """Another digest under a deployed version is ALREADY_EXISTS / VERSION_REUSED, and nothing is appended."""
    number = await deploy(world)

    problem = await refusal(deploy(world, RULE_SET.replace("<= 100", "<= 200")))

    assert (problem.code, problem.reason) == (grpc.StatusCode.ALREADY_EXISTS, "VERSION_REUSED")
    assert await world.head() == number


async def test_invalid_document_is_refused_with_every_mistake(world: World) -> None:
    """Deploying an invalid document is INVALID_ARGUMENT with line, column, code and suggestion of every mistake."""
    errors = (await world.rule_sets.ValidateRuleSet(ValidateRuleSetRequest(document=BROKEN))).errors

    problem = await refusal(deploy(world, BROKEN))

    assert (problem.code, problem.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_RULE_SET")
    assert problem.fields == [f"document:{error.line}:{error.column}" for error in errors]
    assert all(error.code in description for error, description in zip(errors, problem.descriptions, strict=True))
    assert await world.head() == 1


@pytest.mark.long
async def test_document_with_very_many_mistakes(world: World) -> None:
    """A document with thousands of mistakes still gets its error; ValidateRuleSet lists all of them."""
    document = RULE_SET + "".join(
        f"  - {{id: r{number}, action: refund.nothing, priority: {number + 10}, when: 'true', effect: approve}}\n" for number in range(500)
    )

    problem = await refusal(deploy(world, document))
    report = await world.rule_sets.ValidateRuleSet(ValidateRuleSetRequest(document=document))

    assert (problem.code, problem.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_RULE_SET")
    assert "more violations" in problem.descriptions[-1]
    assert len(report.errors) == 500


@pytest.mark.parametrize("document", ["", "x" * (1024 * 1024 + 1)])
async def test_empty_and_oversized_documents(world: World, document: str) -> None:
    """A document that is missing, or larger than an event, is INVALID_ARGUMENT."""
    for call in (
        world.rule_sets.ValidateRuleSet(ValidateRuleSetRequest(document=document)),
        world.rule_sets.DeployRuleSet(DeployRuleSetRequest(document=document)),
    ):
        problem = await refusal(call)
        assert (problem.code, problem.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["document"])
    assert await world.head() == 1


@pytest.mark.long
async def test_document_too_large_for_its_event(world: World) -> None:
    """A document that fits a request but, with its canonical form, no event is refused with that as its mistake."""
    document = RULE_SET + "# " + "x" * (1024 * 1024 - 4096) + "\n"

    problem = await refusal(deploy(world, document))

    assert (problem.code, problem.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_RULE_SET")
    assert "too-large" in problem.descriptions[0]
    assert await world.head() == 1


@pytest.mark.parametrize(
    "document",
    [
        "just text",
        "[]",
        "a: *unknown",
        "a: &a [*a]",
        "{" * 2000,
        "gavel: v1\ngavel: v1\n",
        '{"gavel": "v1"',
        RULE_SET.replace("params.amount > 1000", "(" * 3000 + "true" + ")" * 3000),
        RULE_SET.replace("params.amount > 1000", "[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, a * b)).size() > 1000"),
    ],
    ids=range(9),
)
async def test_hostile_documents_are_answered(world: World, document: str) -> None:
    """A hostile document is reported as valid or invalid, never as an internal error; the server keeps serving, and nothing is appended."""
    report = await world.rule_sets.ValidateRuleSet(ValidateRuleSetRequest(document=document))

    assert report.valid == (not report.errors)
    assert await world.head() == 1


@pytest.mark.parametrize(
    ("request_", "code", "reason", "fields"),
    [
        (ActivateRuleSetRequest(), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", ["policy_id", "version"]),
        (
            ActivateRuleSetRequest(policy_id="refunds", version=-1, mode=9, expected_active_version=-1),  # type: ignore[arg-type]
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            ["expected_active_version", "version", "mode"],
        ),
        (ActivateRuleSetRequest(policy_id="refunds", version=2), grpc.StatusCode.NOT_FOUND, "RULE_SET_NOT_FOUND", []),
        (ActivateRuleSetRequest(policy_id="nothing", version=1), grpc.StatusCode.NOT_FOUND, "RULE_SET_NOT_FOUND", []),
        (
            ActivateRuleSetRequest(policy_id="refunds", version=2, mode=fact_pb2.ACTIVATION_MODE_SHADOW),
            grpc.StatusCode.NOT_FOUND,
            "RULE_SET_NOT_FOUND",
            [],
        ),
        (
            ActivateRuleSetRequest(policy_id="refunds", version=1, expected_active_version=3),
            grpc.StatusCode.ABORTED,
            "ACTIVATION_RACED",
            [],
        ),
    ],
)
async def test_activation_errors(
    world: World, request_: ActivateRuleSetRequest, code: grpc.StatusCode, reason: str, fields: list[str]
) -> None:
    """An invalid activation has its code of the error table, and appends nothing."""
    number = await world.deploy()

    problem = await refusal(world.rule_sets.ActivateRuleSet(request_))

    assert (problem.code, problem.reason, problem.fields) == (code, reason, fields)
    assert await world.head() == number


async def test_one_of_two_concurrent_activations_wins(world: World) -> None:
    """Two activations race with one expectation: the first takes effect, the second is ABORTED / ACTIVATION_RACED."""
    await world.deploy(versioned(1))
    await world.deploy(versioned(2))

    answers = await asyncio.gather(activate(world, 1, expected=0), activate(world, 2, expected=0), return_exceptions=True)

    errors = [error for error in answers if isinstance(error, grpc.aio.AioRpcError)]
    assert [error.code() for error in errors] == [grpc.StatusCode.ABORTED]
    assert await world.head() == 4


async def test_expected_version_zero_and_repeated_activation(world: World) -> None:
    """expected_active_version 0 expects no active version; activating the active version again changes nothing."""
    await world.deploy()
    number = await activate(world, expected=0)

    assert await activate(world) == number
    assert (await refusal(activate(world, expected=0))).reason == "ACTIVATION_RACED"
    assert await world.head() == number


async def test_several_rule_sets_on_one_action(world: World) -> None:
    """Rule sets that agree on an action's declarations govern it together; an expected version is that of the own rule set."""
    await world.deploy()
    await activate(world, expected=0)
    await world.deploy(versioned(1, name="others").replace("params.amount <= 100", "params.amount <= 1"))
    await world.deploy(versioned(2))

    await activate(world, name="others", expected=0)

    assert await activate(world, 2, expected=1) == await world.head()
    status = await world.projections.GetStatus(GetStatusRequest())
    assert [(one.policy_id, one.version) for one in status.active_rule_sets] == [("others", 1), ("refunds", 2)]
    list_versions = (await world.rule_sets.ListRuleSets(ListRuleSetsRequest())).rule_sets
    assert [(one.policy_id, one.version, one.mode) for one in list_versions] == [
        ("others", 1, fact_pb2.ACTIVATION_MODE_ACTIVE),
        ("refunds", 1, fact_pb2.ACTIVATION_MODE_UNSPECIFIED),
        ("refunds", 2, fact_pb2.ACTIVATION_MODE_ACTIVE),
    ]
    decision = (await world.approve()).decision
    assert [(one.policy_id, one.version) for one in decision.active_rule_sets] == [("others", 1), ("refunds", 2)]
    assert (decision.policy_id, decision.policy_version, decision.rule_id) == ("refunds", 2, "small")


@pytest.mark.parametrize("mode", [fact_pb2.ACTIVATION_MODE_ACTIVE, fact_pb2.ACTIVATION_MODE_SHADOW])
async def test_rule_sets_that_disagree(world: World, mode: fact_pb2.ActivationMode.ValueType) -> None:
    """A rule set that disagrees with an active one is FAILED_PRECONDITION / RULE_SETS_DISAGREE, also as a shadow or in a simulation."""
    await world.deploy()
    await activate(world)
    other = versioned(1, name="others").replace("{max_attempts: 2}", "{max_attempts: 3}")
    number = await world.deploy(other)

    request = ActivateRuleSetRequest(policy_id="others", version=1, mode=mode)
    problem = await refusal(world.rule_sets.ActivateRuleSet(request))
    error = await refusal(world.arbitration.Preflight(PreflightRequest(envelope=proposal("order/1"), rule_set_override=other)))

    simulated = await refusal(world.rule_sets.SimulateRuleSet(SimulateRuleSetRequest(document=other)).read())

    for one in (problem, error, simulated):
        assert (one.code, one.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "RULE_SETS_DISAGREE")
        assert one.message == (
            "retry.max_attempts of action refund.create is 3, but 2 in rule set refunds version 1, which is in force. "
            "Rule sets that share an action must agree on these settings: change one of them, or take refunds out of force first"
        )
    assert await world.head() == number


async def test_dry_run_replaces_the_active_version_of_its_name(world: World) -> None:
    """A rule set given to Preflight stands in for the active version of its own name, beside the others; explanations name each."""
    await world.deploy()
    await activate(world)
    await world.deploy(versioned(1, name="others"))
    await activate(world, name="others")
    status = await world.publish(fact("order/1", "order.status", "delivered"))
    strict = versioned(2, name="others").replace("effect: approve", "effect: reject, reason_code: NEVER")

    async def preflight(override: str) -> PreflightResponse:
        request = PreflightRequest(envelope=proposal("order/1", cites=[status]), rule_set_override=override, explain=True)
        answer = await world.arbitration.Preflight(request)
        assert isinstance(answer, PreflightResponse)
        return answer

    plain, error, third = await preflight(""), await preflight(strict), await preflight(strict.replace("others", "third"))

    assert (plain.decision.outcome, plain.decision.policy_id) == (OUTCOME_APPROVED, "others")
    assert (error.decision.reason_code, error.decision.policy_id) == ("NEVER", "others")
    assert [(one.policy_id, one.version) for one in error.decision.active_rule_sets] == [("others", 2), ("refunds", 1)]
    assert (third.decision.reason_code, list(third.decision.active_policy_ids)) == ("NEVER", ["others", "refunds", "third"])
    assert [(one.policy_id, one.rule_id) for one in error.explanations] == [
        (policy_id, rule_id) for policy_id in ("others", "refunds") for rule_id in ("cancelled", "large", "small")
    ]


async def test_deactivation_errors(world: World) -> None:
    """Deactivating a rule set that is not active is NOT_FOUND, with a wrong expectation ABORTED, without a name INVALID_ARGUMENT."""
    await world.deploy()
    number = await activate(world)

    async def deactivate(**fields: object) -> Refusal:
        return await refusal(world.rule_sets.DeactivateRuleSet(DeactivateRuleSetRequest(**fields)))  # type: ignore[arg-type]

    assert (await deactivate(mode=9)).fields == ["policy_id", "mode"]
    shadowless = await deactivate(policy_id="refunds", mode=fact_pb2.ACTIVATION_MODE_SHADOW)
    assert (shadowless.reason, shadowless.message) == ("RULE_SET_NOT_FOUND", "rule set refunds has no shadow")
    assert (await deactivate(policy_id="refunds", expected_active_version=2)).reason == "ACTIVATION_RACED"
    assert (await deactivate(policy_id="nothing")).reason == "RULE_SET_NOT_FOUND"
    assert await world.head() == number


async def test_get_without_a_version(world: World) -> None:
    """Without a version GetRuleSet answers the active one, else the newest; a version that is not deployed is NOT_FOUND."""
    await world.deploy(versioned(1))
    await world.deploy(versioned(2))
    await world.deploy(versioned(10))
    read = world.rule_sets.GetRuleSet

    assert (await read(GetRuleSetRequest(policy_id="refunds"))).rule_set.version == 10
    await activate(world, 1)
    active = (await read(GetRuleSetRequest(policy_id="refunds"))).rule_set
    assert (active.version, active.mode, list(active.action_types)) == (1, fact_pb2.ACTIVATION_MODE_ACTIVE, ["refund.create"])
    for request in (GetRuleSetRequest(policy_id="refunds", version=3), GetRuleSetRequest(policy_id="nothing")):
        assert (await refusal(read(request))).reason == "RULE_SET_NOT_FOUND"
    assert (await refusal(read(GetRuleSetRequest(version=-1)))).fields == ["policy_id", "version"]


async def test_list_in_pages(world: World) -> None:
    """Versions are listed by policy_id and version, in pages of any size, each with whether it is in force."""
    for version in (10, 2, 1):
        await world.deploy(versioned(version))
    await world.deploy(versioned(1, name="others", action="other.create"))
    await activate(world, 2)

    async def list_versions(page_size: int) -> AsyncIterator[RuleSet]:
        token = ""
        while True:
            page = await world.rule_sets.ListRuleSets(ListRuleSetsRequest(page_size=page_size, page_token=token))
            assert len(page.rule_sets) <= page_size
            for rule_set in page.rule_sets:
                yield rule_set
            token = page.next_page_token
            if not token:
                return

    for page_size in (1, 2, 3, 100):
        assert [(one.policy_id, one.version, one.mode) async for one in list_versions(page_size)] == [
            ("others", 1, 0),
            ("refunds", 1, 0),
            ("refunds", 2, fact_pb2.ACTIVATION_MODE_ACTIVE),
            ("refunds", 10, 0),
        ]


# Compiling beside the event loop


async def test_a_version_is_compiled_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deploying and activating compile in another thread, and the version once for all that follow: nothing in the event loop's."""
    threads: list[str] = []

    def compiled(text: str) -> CompiledRuleSet:
        threads.append(threading.current_thread().name)
        return compile_rule_set(text)

    for module in (compiler, rule_set_cache):
        monkeypatch.setattr(module, "compile_rule_set", compiled)
    document = versioned(4321)
    await deploy(world, document)
    for _ in range(2):
        await activate(world, 4321)
        await world.rule_sets.DeactivateRuleSet(DeactivateRuleSetRequest(policy_id="refunds"))
    await deploy(world, document)

    # The document, and its canonical text, which decides.
    assert [name.startswith("compile") for name in threads] == [True, True]


# The compiler's limits


async def test_validation_warns_of_rules_that_never_decide(world: World) -> None:
    """ValidateRuleSet warns of a rule that never decides, with its place; the same document deploys without that."""
    document = (
        RULE_SET
        + "  - {id: never, action: refund.create, priority: 2, when: params.amount < 1.0 && params.amount > 1.0, effect: approve}\n"
    )
    report = await world.rule_sets.ValidateRuleSet(ValidateRuleSetRequest(document=document))

    assert report.valid
    assert [(warning.code, warning.line) for warning in report.warnings] == [("unreachable-rule", document.count("\n"))]
    assert [warning.code for warning in (await Compiler().check(document)).warnings] == []
    assert await deploy(world, document) == 2


async def test_warnings_come_with_a_valid_document(world: World) -> None:
    """A document with warnings alone is valid, and they are answered."""
    document = RULE_SET.replace('facts.status == "cancelled"', "params.amount < 0.0")
    report = await world.rule_sets.ValidateRuleSet(ValidateRuleSetRequest(document=document))

    assert report.valid
    assert [warning.code for warning in report.warnings] == ["fact-never-read"]
