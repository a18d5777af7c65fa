"""Rule sets on one action whose say is dictated by the proposal, for tests of how their says come together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetAt

from tests.unit.core.driver import Core, compiled, document

NAMES: Final = ("alpha", "beta", "gamma")
SAYS: Final = ("reject", "review", "approve", "nothing", "err")
PARAMS: Final[dict[str, Any]] = {
    "type": "object",
    "required": list(NAMES),
    "properties": {name: {"enum": list(SAYS)} for name in NAMES},
}
STATUS: Final[dict[str, Any]] = {"key": "order.status", "type": "string", "max_age_ms": 60_000}


def obedient(name: str, version: int = 1, facts: Mapping[str, Any] | None = None, **action: Any) -> str:
    """A rule set that says what the param of its name wants, by two rules where it says anything; "err" makes a rule err."""
    rules: list[dict[str, Any]] = [
        {"id": f"{effect}-{which}", "when": f'params.{name} == "{effect}"', "effect": effect}
        | ({} if effect == "approve" else {"reason_code": f"{name.upper()}_{effect.upper()}S"})
        for effect in ("review", "approve", "reject")
        for which in ("first", "second")
    ]
    erring = {
        "id": "erring",
        "when": f'params.{name} == "err" && 1 / int(params.{name}.size() - 3) > 0',
        "effect": "reject",
        "reason_code": "ERRED",
    }
    return document(facts or {"status": STATUS}, [*rules, erring], rule_set=name, version=version, **{"params": PARAMS, **action})


def put_in_force(core: Core, texts: Iterable[str]) -> Core:
    """Deploy and activate rule sets, one after the other."""
    for text in texts:
        core.activate(text)
    return core


def watch(core: Core, text: str) -> None:
    """Deploy a rule set and let it watch."""
    rule_set = compiled(text)
    core.run(DeployRuleSet(core.new_id(), rule_set, text))
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), rule_set.policy_id, rule_set.version, None, shadow=True)), RuleSetAt)


def saying(*says: str) -> dict[str, object]:
    """Params that dictate what alpha, beta and gamma say; those not named say nothing."""
    return dict(zip(NAMES, (*says, *["nothing"] * len(NAMES)), strict=False))
