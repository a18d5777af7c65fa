"""Mutations of a rule set, each with one change that a good suite must notice.

Every literal of every condition, variable, derivation and compensation is changed by the smallest meaningful step: a number by one
in its last decimal place, up and down; a time by a second, a duration by one of its units, a UTC offset by an hour; any other
string by a letter at its end; true to false. Derivations and compensations also get another value, or are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

import rfc8785
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.authoring.suites.suite import Suite
from gavel_rules.language import rule_set_cache
from gavel_rules.language.cel.library import parse
from gavel_rules.language.cel.syntax_tree import Constant, Node, children
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_TEXT: Final = re.compile(r"""[rR]?(?:'''[\s\S]*?'''|\"{3}[\s\S]*?\"{3}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""")
_DURATION: Final = re.compile(r"([0-9]+)((?:h|m|s|ms)[0-9hms]*)")
# Ids that Gavel generates, so no suite can expect their value.
_GENERATED_IDS: Final = re.compile(r"decision\.(?:decision_id|proposal_id)|execution\.execution_id")
_OFFSET: Final = re.compile(r"([+-])([0-9]{2})(:[0-9]{2})")


class Mutation(NamedTuple):
    """A document with one change. `rule_id` is "" if the change is not in a rule."""

    data: dict[str, Any]
    action: str  # the only one left in the document, "" for all
    rule_id: str
    change: str  # for people


def mutations(data: dict[str, Any]) -> Iterator[Mutation]:
    """Yield every mutation of a rule set document. A mutation of a rule keeps only that rule's action, to compile fast."""
    for name, text in data.get("variables", {}).items():
        for changed, change in _changes(text):
            yield Mutation({**data, "variables": {**data["variables"], name: changed}}, "", "", f"variable {name}: {change}")
    for rule in data["rules"]:
        single_action = _select_action(data, rule["action"])
        for changed, change in _changes(rule["when"]):
            rules = [{**one, "when": changed} if one["id"] == rule["id"] else one for one in single_action["rules"]]
            yield Mutation({**single_action, "rules": rules}, rule["action"], rule["id"], f"rule {rule['id']}: {change}")
    yield from _derivation_mutations(data)
    yield from _compensation_mutations(data)


def _derivation_mutations(data: dict[str, Any]) -> Iterator[Mutation]:
    for derivation in data.get("derivations", ()):
        action = derivation["on"]["action"]
        single_action = _select_action(data, action)
        others: list[tuple[list[dict[str, Any]], str]] = [
            ([], "removed"),
            ([{**derivation, "key": f"{derivation['key']}.x"}], "another key"),
        ]
        others += [([{**derivation, "value": changed}], change) for changed, change in _other_values(derivation["value"])]
        for other, change in others:
            derivations = [item for one in single_action["derivations"] for item in (other if one == derivation else [one])]
            yield Mutation({**single_action, "derivations": derivations}, action, "", f"derivation {derivation['id']}: {change}")


def _compensation_mutations(data: dict[str, Any]) -> Iterator[Mutation]:
    for action, part in data["actions"].items():
        if "compensation" not in part:
            continue
        # The whole document, because it may declare the compensating action.
        declaration = part["compensation"]
        others = [({**declaration, "action": f"{declaration['action']}.x"}, "another action"), (None, "removed")]
        for name, text in declaration.get("params", {}).items():
            for changed, change in _other_values(text):
                others.append(({**declaration, "params": {**declaration["params"], name: changed}}, f"{name}: {change}"))
        for other, change in others:
            changed_part = {**part, "compensation": other} if other else {name: part[name] for name in part if name != "compensation"}
            yield Mutation({**data, "actions": {**data["actions"], action: changed_part}}, "", "", f"compensation of {action}: {change}")


def _other_values(text: str) -> Iterator[tuple[str, str]]:
    """Yield an expression of a derivation or compensation with a literal changed, and one with another value."""
    yield from _changes(text)
    if _GENERATED_IDS.search(text) is None:
        yield '"x"', "another value"


def original_documents(data: dict[str, Any]) -> Iterator[Mutation]:
    """Yield the documents before mutation, one for each action. They must survive, or the mutations prove nothing."""
    for action in data["actions"]:
        yield Mutation(_select_action(data, action), action, "", f"nothing but {action}")


def survives(mutation: Mutation, suite: Suite) -> bool:
    """Return whether no case of the suite fails on the mutation.

    A mutation that does not compile or does not fit the suite does not survive.
    """
    try:
        text = rfc8785.dumps(mutation.data).decode()
        rule_set = compile_rule_set(text)
        assert text == rule_set.canonical_json
        rule_set_cache.put(rule_set)
    except DocumentError:
        return False
    cases = [case for case in suite.cases if mutation.action in ("", case.part.action or mutation.action)]
    # Cases that this rule decides fail most likely, so they run first.
    cases.sort(key=lambda case: case.part.expect.rule_id != mutation.rule_id)
    try:
        return all(result.passed for result in run_cases(suite._replace(cases=tuple(cases)), rule_set, explain=False))
    except DocumentError:
        return False


def _select_action(data: dict[str, Any], action: str) -> dict[str, Any]:
    """Return the document with one action and its rules, counters, derivations and variables."""
    single_action = {
        **data,
        "actions": {action: data["actions"][action]},
        "rules": [rule for rule in data["rules"] if rule["action"] == action],
    }
    if "counters" in data:
        single_action["counters"] = {name: counter for name, counter in data["counters"].items() if counter["action"] == action}
    if "derivations" in data:
        single_action["derivations"] = [derivation for derivation in data["derivations"] if derivation["on"]["action"] == action]
    # Variables of the other actions would not compile.
    variables = data.get("variables", {})
    names = _used_variables(json.dumps([single_action["actions"], single_action["rules"], single_action.get("derivations")]), variables)
    if variables:
        single_action["variables"] = {name: text for name, text in variables.items() if name in names}
    return single_action


def _used_variables(text: str, variables: dict[str, str]) -> set[str]:
    """Return the variables that a text uses, directly or through others."""
    names: set[str] = set()
    new = variables.keys() & set(_WORD.findall(text))
    while new:
        names |= new
        new = (variables.keys() & {word for name in new for word in _WORD.findall(variables[name])}) - names
    return names


def _changes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text with one literal changed, and a description of the change."""
    offsets = set()
    for literal in _literals(parse(text)):
        match literal.kind:
            case "bool":
                match, others = re.compile("true|false").match(text, literal.offset), ["false" if literal.value else "true"]
            case "int64" | "uint64" | "double":
                match = _NUMBER.match(text, literal.offset)
                others = _number_changes(match.group()) if match else []
            case "string":
                match, others = _TEXT.match(text, literal.offset), [json.dumps(other) for other in _text_changes(str(literal.value))]
            case _:
                continue
        # The literals of an expanded macro are not in the text.
        if match is None or match.start() in offsets:
            continue
        offsets.add(match.start())
        for other in others:
            yield text[: match.start()] + other + text[match.end() :], f"{match.group()} to {other}"


def _literals(node: Node) -> Iterator[Constant]:
    if isinstance(node, Constant):
        yield node
    for child in children(node):
        yield from _literals(child)


def _number_changes(written: str) -> list[str]:
    """Return a number plus and minus one in its last decimal place."""
    if written.startswith(("0x", "-0x")):
        return [str(int(written, 16) + step) for step in (1, -1)]
    number = Decimal(written)
    step = Decimal(1).scaleb(int(number.as_tuple().exponent))
    return [format(number + step, "f"), format(number - step, "f")]


def _text_changes(text: str) -> list[str]:
    """Return a string changed by the smallest meaningful step."""
    length = _DURATION.fullmatch(text)
    if length is not None:
        return [f"{int(length[1]) + step}{length[2]}" for step in (1, -1)]
    offset = _OFFSET.fullmatch(text)
    if offset is not None:
        return [f"{offset[1]}{int(offset[2]) + step:02}{offset[3]}" for step in (1, -1) if int(offset[2]) + step >= 0]
    try:
        moment = datetime.fromisoformat(text) if "T" in text else None
    except ValueError:
        moment = None
    if moment is not None:
        return [(moment + timedelta(seconds=step)).isoformat() for step in (1, -1)]
    return [f"{text}x"]
