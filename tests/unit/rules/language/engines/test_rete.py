"""The Rete network: faults of the engine, its handles, limits and endurance."""

from __future__ import annotations

import gc
import json
import resource
from collections.abc import Callable
from typing import Any

import durable_rules_engine
import pytest
from gavel_rules.errors import NetworkFaultError
from gavel_rules.language.engines import rete
from gavel_rules.language.engines.case import Case
from gavel_rules.language.engines.lowering import Atom, Slot
from gavel_rules.language.engines.rete import CHAINS_MAX, HANDLE_FAILURES_MAX, NetworkLimitError, plan_network
from gavel_rules.language.rule_set import CompiledAction, compile_rule_set

Action = Callable[..., CompiledAction]
MakeCase = Callable[..., Case]


class Sabotage:
    """The real engine, except for one call: once armed, the next such call does something else.

    `created` and `deleted` are the handles of networks that it made: those of other tests may be collected at any time.
    """

    def __init__(self, call: str, instead: Callable[..., Any]) -> None:
        self._call = call
        self._instead = instead
        self.armed = False
        self.deleted: list[int] = []
        self.created: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if name == self._call and self.armed:
            self.armed = False
            return self._instead
        if name == "delete_ruleset":
            return self._delete
        if name == "create_ruleset":
            return self._create
        return getattr(durable_rules_engine, name)

    def _create(self, *arguments: Any) -> int:
        handle: int = durable_rules_engine.create_ruleset(*arguments)
        self.created.append(handle)
        return handle

    def _delete(self, handle: int) -> None:
        if handle in self.created:
            self.deleted.append(handle)
        durable_rules_engine.delete_ruleset(handle)


def _fail(*_: object) -> None:
    raise durable_rules_engine.error("Could not do it, error code: 303")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _none(*_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("call", "instead", "raised"),
    [
        ("assert_fact", _fail, NetworkFaultError),
        ("assert_fact", lambda *_: (2, 0), NetworkFaultError),
        ("assert_fact", _interrupt, KeyboardInterrupt),
        ("start_action_for_state", _fail, NetworkFaultError),
        ("start_action_for_state", _none, NetworkFaultError),
        ("start_action_for_state", lambda *_: ("", '{"r77":{}}'), KeyError),
        ("complete_and_start_action", _fail, NetworkFaultError),
        ("complete_and_start_action", _interrupt, KeyboardInterrupt),
        ("complete_and_start_action", lambda *_: '{"r0":{}}', None),
        ("retract_fact", _fail, NetworkFaultError),
        ("retract_fact", lambda *_: (1, 0), NetworkFaultError),
    ],
)
def test_fault(
    monkeypatch: pytest.MonkeyPatch,
    action: Action,
    case: MakeCase,
    call: str,
    instead: Callable[..., Any],
    raised: type[BaseException] | None,
) -> None:
    """H12, H13: every fault of the engine is raised, its handle is dead, and a new handle decides the next case correctly."""
    sabotage = Sabotage(call, instead)
    monkeypatch.setattr(rete, "durable_rules_engine", sabotage)
    compiled = action("params.amount > 5", "params.amount > 7", f"params.count > {len(call)}")
    assert len(compiled.evaluate(case(), cross_check=True).matches) == 2
    sabotage.armed = True
    if raised is None:
        assert compiled.evaluate(case(), cross_check=True).matches
        return
    with pytest.raises(raised):
        compiled.evaluate(case(), cross_check=True)
    assert not sabotage.armed
    for _ in range(3):
        assert [rule.id for rule in compiled.evaluate(case(), cross_check=True).matches] == ["r0", "r1"]
        assert compiled.evaluate(case({"amount": 1.0}), cross_check=True).matches == ()
    assert len(sabotage.created) == 2
    assert sabotage.deleted == []


def test_engine_that_fires_without_end(monkeypatch: pytest.MonkeyPatch, action: Action, case: MakeCase) -> None:
    """An engine that reports more firings than it has rules is at fault."""
    compiled = action("params.amount > 6")
    compiled.start()
    monkeypatch.setattr(durable_rules_engine, "complete_and_start_action", lambda *_: '{"r0":{}}')
    with pytest.raises(NetworkFaultError):
        compiled.evaluate(case(), cross_check=True)


def test_wrong_matches_are_a_disagreement(monkeypatch: pytest.MonkeyPatch, action: Action, case: MakeCase) -> None:
    """A network that matches other rules than the reference engine is reported with both answers."""
    sabotage = Sabotage(
        "assert_fact", lambda handle, _: durable_rules_engine.assert_fact(handle, '{"sid":"1","id":"c","kind":"case","one":1}')
    )
    monkeypatch.setattr(rete, "durable_rules_engine", sabotage)
    compiled = action("params.amount > 4.5", "true")
    compiled.start()
    sabotage.armed = True
    verdict = compiled.evaluate(case(), cross_check=True)
    assert (verdict.matches, verdict.error, verdict.disagreement) == ((), "", (("r1",), ("r0", "r1")))


def test_engine_that_keeps_failing(monkeypatch: pytest.MonkeyPatch, action: Action, case: MakeCase) -> None:
    """Dead handles are never freed, so their number is limited."""
    compiled = action("params.amount > 5.25")
    monkeypatch.setattr(rete, "durable_rules_engine", Sabotage("none", _fail))
    for _ in range(HANDLE_FAILURES_MAX):
        compiled.start()
        compiled._network._abandon()
    with pytest.raises(NetworkFaultError, match="restart the process"):
        compiled.evaluate(case(), cross_check=True)


def test_equal_documents_share_a_network(monkeypatch: pytest.MonkeyPatch, document: Callable[..., dict[str, Any]], case: MakeCase) -> None:
    """Activating a version again starts no second network; a network that no rule set holds is deleted."""
    sabotage = Sabotage("none", _fail)
    monkeypatch.setattr(rete, "durable_rules_engine", sabotage)
    text = json.dumps(document(["params.amount > 5.125"]))
    sets = [compile_rule_set(text) for _ in range(3)]
    for compiled in sets:
        assert len(compiled.actions["thing.do"].evaluate(case(), cross_check=True).matches) == 1
    assert len(sabotage.created) == 1
    del compiled
    sets.clear()
    gc.collect()
    assert sabotage.created == sabotage.deleted


def _chain(*numbers: int) -> tuple[Atom, ...]:
    return tuple(Atom("$gt", Slot("n", "x"), str(number)) for number in numbers)


def test_plan_limits() -> None:
    """Alternatives are counted over all rules of an action, and one too many is refused."""
    plan_network([tuple(_chain(rule * 10 + number) for number in range(10)) for rule in range(CHAINS_MAX // 10)])
    with pytest.raises(NetworkLimitError, match=str(CHAINS_MAX + 1)):
        plan_network([tuple(_chain(rule * 10 + number) for number in range(10)) for rule in range(CHAINS_MAX // 10)] + [(_chain(-1),)])


@pytest.mark.parametrize("depth", [1, 3, 24])
def test_branches_stay_under_the_engine_s_bound(depth: int) -> None:
    """On every path through a network the children of all nodes sum to at most 60."""
    for shared in {0, depth // 2, depth - 1}:
        formulas = [
            (_chain(*range(shared), *(1000 + number * depth + step for step in range(depth - shared))),) for number in range(CHAINS_MAX)
        ]
        definition = json.loads(plan_network(formulas).definition)
        trie: dict[str, Any] = {}
        for rule in definition.values():
            node = trie
            for condition in rule["all"][0]["m"]["$and"]:
                node = node.setdefault(json.dumps(condition), {})
        assert _sum_of_children(trie) <= 60


def _sum_of_children(node: dict[str, Any]) -> int:
    return len(node) + max(map(_sum_of_children, node.values())) if node else 0


def test_evaluated_case_is_retracted(action: Action, case: MakeCase) -> None:
    """A case that matched is retracted by `sid` and `id`; the engine then holds nothing of it."""
    compiled = action("params.amount > 5.375", 'params.name == "a" || facts.open')
    for amount, expected in ((6.0, ["r0", "r1"]), (1.0, ["r1"]), (7.0, ["r0", "r1"])):
        assert expected == [rule.id for rule in compiled.evaluate(case({"amount": amount}), cross_check=False).matches]
        assert durable_rules_engine.get_facts(compiled._network._handle, "1") == "[]"


@pytest.mark.long
def test_endurance(action: Action, document: Callable[..., dict[str, Any]], case: MakeCase) -> None:
    """Thousands of evaluations and hundreds of redeployments take no more memory, and every answer is correct."""
    compiled = action("params.amount > 5", 'params.name == "a" || facts.open', "has(facts.score) && facts.score * 2.0 > 1.0")
    cases = [case({"amount": float(number % 10)}, {"score": number / 7 if number % 3 else None}) for number in range(50)]
    expected = [compiled.evaluate_reference(of) for of in cases]

    def work() -> None:
        for _ in range(60):
            assert [compiled.evaluate(of, cross_check=True) for of in cases] == expected
        for number in range(40):
            other = compile_rule_set(json.dumps({**document(["params.amount > 5", "facts.open"]), "version": number + 1}))
            assert len(other.actions["thing.do"].evaluate(cases[9], cross_check=True).matches) == 2

    work()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    work()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 4096
