"""Inputs known to make the rule engines err, hang or crash, sent to a real server: decided correctly, or refused with a code.

Unit tests cover each hazard of the engines (docs/guarantees.md lists them). These tests send the worst of them to a server, as an agent or
an author would. The server must go on serving, and its log must replay.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import arbitration_service_pb2_grpc
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, proposal_envelope, reference
from gavel_rules.language.document.models import RULES_PER_ACTION_MAX
from gavel_rules.language.engines.rete import CHAINS_MAX, SLOTS_MAX
from gavel_rules.limits import TEXT_BYTES_MAX

from tests.e2e.world import ACTION, AGENT, DAY_MS, DEPOT, POLICY, Server, open_bus, prove, publish_status

PARAMS: dict[str, Any] = {
    "type": "object",
    "required": ["amount"],
    "properties": {
        "amount": {"type": "number"},
        "limit": {"type": "number"},
        "count": {"type": "integer"},
        "name": {"type": "string"},
        "urgent": {"type": "boolean"},
    },
}
# Each hazard's rule rejects with the hazard's name, so the decision tells which condition held.
CONDITIONS = {
    "ERRS": "has(params.count) && 10 / params.count == 3",
    "FORWARD": "params.amount > 800.0 || params.amount < -800.0",
    "ADMIN": 'has(params.name) && params.name == "admin"',
    "REFUND": 'has(params.name) && params.name in ["refund", ""]',
    "ABOVE_LIMIT": "has(params.limit) && params.amount > params.limit",
    "URGENT": "has(params.urgent) && params.urgent",
    "PATTERN": 'has(params.name) && params.name.matches("^((a)*|[ab])c$")',
    "SMALL": "params.amount <= 50 && params.amount >= 0",
}


def document(conditions: dict[str, str], **changes: Any) -> str:
    """Return a rule set that rejects by each condition and approves nothing."""
    facts = {"status": {"key": "parcel.status", "type": "string", "max_age_ms": DAY_MS, "sources": [DEPOT.id]}}
    rules = [
        {"id": code.lower(), "action": ACTION, "priority": 60_000 - number, "when": when, "effect": "reject", "reason_code": code}
        for number, (code, when) in enumerate(conditions.items())
    ]
    action = {"params": PARAMS, "facts": facts, **changes}
    return json.dumps({"gavel": "v1", "rule_set": POLICY, "version": 1, "actions": {ACTION: action}, "rules": rules})


class Rules:
    """A bus with rules in force, and a fact as evidence for proposals."""

    def __init__(self, client: GavelClient, fact: Envelope) -> None:
        self.client = client
        self._fact = fact

    def proposal(self, params: dict[str, Any]) -> Envelope:
        """Return a proposal with these params, without the checks of our client."""
        cited = [reference(self._fact)]
        envelope = proposal_envelope(
            self._fact.subject, AGENT, action_type=ACTION, params={}, max_fact_age_ms=DAY_MS, based_on_events=cited
        )
        envelope.proposal.params.update(params)
        return envelope

    async def decide(self, params: dict[str, Any]) -> str:
        """The reason code of the rejection, which a preflight must foretell."""
        envelope = self.proposal(params)
        forecast = (await self.client.preflight(envelope)).decision
        decision = (await self.client.submit_proposal(envelope)).decision.decision
        assert Outcome.Value("OUTCOME_REJECTED") == decision.outcome
        assert (forecast.outcome, forecast.reason_code, forecast.rule_id) == (decision.outcome, decision.reason_code, decision.rule_id)
        return decision.reason_code


@pytest.fixture
async def rules(pair: tuple[Server, Server], bus: str) -> AsyncIterator[Rules]:
    """The rules above in force, on the test's own bus. Afterwards the log must replay."""
    async with pair[0].client(bus) as client:
        await open_bus(client, document(CONDITIONS))
        yield Rules(client, (await publish_status(client, ["parcel/1"]))["parcel/1"])
        await prove(client)


async def test_params_that_an_engine_could_confuse(rules: Rules) -> None:
    """Params that an engine could confuse are decided correctly; no name or value is taken for another."""
    collisions = {
        "c1ceajyv": 1.0,
        "proposal.c1ceajyv": 1.0,
        "proposal.amount": 1.0,
        "params.amount": 1.0,
        "n0": 1.0,
        "sid": "9",
        "id": "x",
        "$s": 1,
    }
    assert "NO_RULE_MATCHED" == await rules.decide({"amount": 500.0, **collisions})
    assert "SMALL" == await rules.decide({**collisions, "amount": 50.0})
    assert "FORWARD" == await rules.decide({"amount": 900.0, "$forward": 1.0, "ckaoagwb": 1.0, "proposal.ckaoagwb": 1.0})
    for length in (TEXT_BYTES_MAX - 1, TEXT_BYTES_MAX):
        assert "NO_RULE_MATCHED" == await rules.decide({"amount": 500.0, "name": "refund" + "x" * (length - 6)})
        assert "NO_RULE_MATCHED" == await rules.decide({"amount": 500.0, "name": "y" * length})
    assert "REFUND" == await rules.decide({"amount": 500.0, "name": "refund"})
    for _ in range(20):
        assert "NO_RULE_MATCHED" == await rules.decide({"amount": 500.0})
        assert "ABOVE_LIMIT" == await rules.decide({"amount": 500.0, "limit": 1e-7})
    assert "NO_RULE_MATCHED" == await rules.decide({"amount": 500.0, "name": "abc"})
    assert "PATTERN" == await rules.decide({"amount": 500.0, "name": "bc"})
    assert "EVALUATION_ERROR" == await rules.decide({"amount": 500.0, "count": 0})


@pytest.mark.parametrize(
    "params",
    [
        {"amount": "9"},
        {"amount": ""},
        {"amount": True},
        {"amount": None},
        {"amount": [900.0]},
        {"amount": 500.0, "urgent": 1},
        {"amount": 500.0, "urgent": "true"},
        {"amount": 500.0, "count": 1.5},
        {},
    ],
)
async def test_values_of_another_type(rules: Rules, params: dict[str, Any]) -> None:
    """A value of another type than declared is INVALID_PARAMS: "9" is never compared with 100."""
    assert "INVALID_PARAMS" == await rules.decide(params)


@pytest.mark.parametrize(
    "params",
    [
        {"amount": 500.0, "name": "admin\0evil"},
        {"amount": 500.0, "admin\0evil": 1.0},
        {"amount": 500.0, "name": "x" * (TEXT_BYTES_MAX + 1)},
        {"amount": float("inf")},
        {"amount": 2.0**63},
    ],
)
async def test_values_that_no_engine_can_hold(rules: Rules, params: dict[str, Any]) -> None:
    """Strings that an engine would truncate and numbers that it cannot hold are INVALID_ARGUMENT and are not recorded."""
    before = await rules.client.get_status()
    with pytest.raises(GavelError) as refusal:
        await rules.client.submit_proposal(rules.proposal(params))
    assert grpc.StatusCode.INVALID_ARGUMENT == refusal.value.code
    assert refusal.value.violations
    assert before.head_chain_hash == (await rules.client.get_status()).head_chain_hash


async def test_values_nested_too_deep(rules: Rules) -> None:
    """Values nested so deep that they would exhaust a stack are INVALID_ARGUMENT."""
    deep: Any = 1.0
    for _ in range(40):
        deep = [deep]
    with pytest.raises(GavelError) as refusal:
        await rules.client.submit_proposal(rules.proposal({"amount": 500.0, "deep": deep}))
    assert grpc.StatusCode.INVALID_ARGUMENT == refusal.value.code


async def test_bytes_nested_too_deep(rules: Rules, pair: tuple[Server, Server]) -> None:
    """Bytes that nest a hundred thousand levels are refused, and the server keeps serving."""
    value = b""
    for _ in range(20_000):
        value = b"\x32" + _varint(len(value) + 1 + len(_varint(len(value)))) + b"\x0a" + _varint(len(value)) + value
    entry = b"\x0a\x01d\x12" + _varint(len(value)) + value
    struct = b"\x0a" + _varint(len(entry)) + entry
    field = arbitration.SubmitProposalRequest(envelope=rules.proposal({"amount": 1.0})).SerializeToString()
    async with grpc.aio.insecure_channel(pair[0].address) as channel:
        call: Any = channel.unary_unary("/gavel.v1.ArbitrationService/SubmitProposal")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call(field + b"\x12" + _varint(len(struct)) + struct)
    assert grpc.StatusCode.INVALID_ARGUMENT == refusal.value.code()


def _varint(number: int) -> bytes:
    request = bytearray()
    while number > 127:
        request.append(number & 127 | 128)
        number >>= 7
    return bytes([*request, number])


async def codes(client: GavelClient, text: str) -> set[str]:
    """Return the codes of the mistakes in a document."""
    return {message.code for message in (await client.validate_rule_set(text)).errors}


@pytest.mark.long
async def test_conditions_that_an_engine_could_confuse(new_bus_clients: tuple[GavelClient, GavelClient]) -> None:
    """Conditions that compare incomparable values, and more rules than the engines hold, are refused with their code."""
    client = new_bus_clients[0]
    for condition in (
        'params.amount >= "100"',
        "has(params.urgent) && params.urgent == 1",
        'has(params.urgent) && params.urgent == "true"',
    ):
        assert {"type-error"} == await codes(client, document({"A": condition}))
    assert {"bad-character"} == await codes(client, document({"A": 'params.name == "admin\0"'}))
    assert {"unguarded-optional"} == await codes(client, document({"A": "params.amount > params.limit"}))
    siblings = {f"A{number}": f"params.amount > {number}" for number in range(RULES_PER_ACTION_MAX + 12)}
    assert {"too-many-rules"} == await codes(client, document(siblings))
    values = {f"A{number}": f"params.amount * 2.0 > {number}.5" for number in range(SLOTS_MAX + 1)}
    assert {"too-complex"} == await codes(client, document(values))
    alternatives = {
        f"A{number}": " || ".join(f"params.amount == {number * 16 + at}" for at in range(16)) for number in range(CHAINS_MAX // 16 + 1)
    }
    assert {"too-complex"} == await codes(client, document(alternatives))
    await open_bus(client, document({"A": "true"}))
    assert (await client.get_status()).writable


@pytest.mark.long
async def test_512_siblings_that_all_hold(new_bus_clients: tuple[GavelClient, GavelClient]) -> None:
    """An action with the maximum of rules, all true, is deployed, and the highest rule decides."""
    client = new_bus_clients[0]
    await open_bus(client, document({f"A{number}": f"params.amount > {-number}" for number in range(RULES_PER_ACTION_MAX)}))
    fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
    rules = Rules(client, fact)
    assert "A0" == await rules.decide({"amount": 1.0})
    assert "A499" == await rules.decide({"amount": -498.5})
    assert "NO_RULE_MATCHED" == await rules.decide({"amount": -499.0})
    await prove(client)


@pytest.mark.long
async def test_the_largest_decision_can_be_read(pair: tuple[Server, Server], bus: str) -> None:
    """Any client can read the largest decision: of the largest proposal, with the most and longest rules, all true."""
    pad = "x" * 850
    rules = {f"A{number}": f'params.amount > 0.0 && subject != "{number}{pad}"' for number in range(RULES_PER_ACTION_MAX)}
    async with pair[0].client(bus) as client:
        await open_bus(client, document(rules))
        fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
        texts = {f"note{number}": "x" * TEXT_BYTES_MAX for number in range(15)}
        envelope = Rules(client, fact).proposal({"amount": 1.0, **texts})
        # A plain channel with the default limits.
        async with grpc.aio.insecure_channel(pair[0].address) as channel:
            stub = arbitration_service_pb2_grpc.ArbitrationServiceStub(channel)
            request = arbitration.SubmitProposalRequest(bus=bus, envelope=envelope)
            answer = await stub.SubmitProposal(request)
        decision = answer.decision.decision
        assert ("A0", RULES_PER_ACTION_MAX) == (decision.reason_code, len(decision.rule_matches))
        assert answer.decision.ByteSize() < envelope.ByteSize() + 128 * 1024
        await prove(client)
