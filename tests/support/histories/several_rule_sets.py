"""Rule sets on one action whose answers the proposal's params script, for tests of how verdicts are combined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetPosition

from tests.support.driver import Core, compile_cached, document

NAMES: Final = ("alpha", "beta", "gamma")
ANSWERS: Final = ("reject", "review", "approve", "nothing", "err")
PARAMS: Final[dict[str, Any]] = {
    "type": "object",
    "required": list(NAMES),
    "properties": {name: {"enum": list(ANSWERS)} for name in NAMES},
}
STATUS: Final[dict[str, Any]] = {"key": "order.status", "type": "string", "max_age_ms": 60_000}


def script(name: str, version: int = 1, facts: Mapping[str, Any] | None = None, **action: Any) -> str:
    """Return a rule set that answers as the param of its name says, by two rules; "err" makes a rule err."""
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


def activate_all(core: Core, texts: Iterable[str]) -> Core:
    """Deploy and activate rule sets in order."""
    for text in texts:
        core.activate(text)
    return core


def activate_shadow(core: Core, text: str) -> None:
    """Deploy a rule set and activate it as a shadow."""
    rule_set = compile_cached(text)
    core.run(DeployRuleSet(core.new_id(), rule_set, text))
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), rule_set.policy_id, rule_set.version, None, shadow=True)), RuleSetPosition)


def scripted_params(*answers: str) -> dict[str, object]:
    """Return params that script the answers of alpha, beta and gamma; the rest answers nothing."""
    return dict(zip(NAMES, (*answers, *["nothing"] * len(NAMES)), strict=False))
