"""Rule sets with one thing changed: what a suite that is worth its name must notice.

Every literal of every condition, of the variables that conditions use, and of what derivations and compensations are made of, is
changed by the least step that means something: a number by one in its last written place, up and down; a date and time by a
second, a length of time by one of its units, an offset by an hour; any other string by a letter at its end; true for false.
Derivations and compensations are also made otherwise, and taken away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

import rfc8785
from gavel_rules.authoring.suite import Suite
from gavel_rules.authoring.testing import run_cases
from gavel_rules.language import library
from gavel_rules.language.cel_library import parse
from gavel_rules.language.cel_syntax import Constant, Node, children
from gavel_rules.language.ruleset import DocumentError, compile_rule_set

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_TEXT: Final = re.compile(r"""[rR]?(?:'''[\s\S]*?'''|\"{3}[\s\S]*?\"{3}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""")
_LENGTH_OF_TIME: Final = re.compile(r"([0-9]+)((?:h|m|s|ms)[0-9hms]*)")
# What Gavel makes, which no suite can name.
_IDS: Final = re.compile(r"decision\.(?:decision_id|proposal_id)|execution\.execution_id")
_OFFSET: Final = re.compile(r"([+-])([0-9]{2})(:[0-9]{2})")


class Mutation(NamedTuple):
    """A document with one literal changed. `rule_id` is "" for a literal of a variable."""

    data: dict[str, Any]
    action: str  # the only one that the document still has, "" for all of them
    rule_id: str
    change: str  # for people


def mutations(data: dict[str, Any]) -> Iterator[Mutation]:
    """Yield every mutation of a rule set document. One of a rule keeps only that rule's action, so that it compiles fast."""
    for name, text in data.get("variables", {}).items():
        for changed, change in _changes(text):
            yield Mutation({**data, "variables": {**data["variables"], name: changed}}, "", "", f"variable {name}: {change}")
    for rule in data["rules"]:
        alone = _only(data, rule["action"])
        for changed, change in _changes(rule["when"]):
            rules = [{**one, "when": changed} if one["id"] == rule["id"] else one for one in alone["rules"]]
            yield Mutation({**alone, "rules": rules}, rule["action"], rule["id"], f"rule {rule['id']}: {change}")
    yield from _of_derivations(data)
    yield from _of_compensations(data)


def _of_derivations(data: dict[str, Any]) -> Iterator[Mutation]:
    for derivation in data.get("derivations", ()):
        action = derivation["on"]["action"]
        alone = _only(data, action)
        others: list[tuple[list[dict[str, Any]], str]] = [
            ([], "taken away"),
            ([{**derivation, "key": f"{derivation['key']}.x"}], "another key"),
        ]
        others += [([{**derivation, "value": changed}], change) for changed, change in _other_values(derivation["value"])]
        for other, change in others:
            derivations = [kept for one in alone["derivations"] for kept in (other if one == derivation else [one])]
            yield Mutation({**alone, "derivations": derivations}, action, "", f"derivation {derivation['id']}: {change}")


def _of_compensations(data: dict[str, Any]) -> Iterator[Mutation]:
    for action, part in data["actions"].items():
        if "compensation" not in part:
            continue
        # The whole document: the action that compensates may be declared in it.
        declared = part["compensation"]
        others = [({**declared, "action": f"{declared['action']}.x"}, "another action"), (None, "taken away")]
        for name, text in declared.get("params", {}).items():
            for changed, change in _other_values(text):
                others.append(({**declared, "params": {**declared["params"], name: changed}}, f"{name}: {change}"))
        for other, change in others:
            changed_part = {**part, "compensation": other} if other else {name: part[name] for name in part if name != "compensation"}
            yield Mutation({**data, "actions": {**data["actions"], action: changed_part}}, "", "", f"compensation of {action}: {change}")


def _other_values(text: str) -> Iterator[tuple[str, str]]:
    """Yield an expression over reports with a literal changed, and made to give something else altogether."""
    yield from _changes(text)
    if _IDS.search(text) is None:
        yield '"x"', "another value"


def unchanged(data: dict[str, Any]) -> Iterator[Mutation]:
    """Yield the documents that mutations are made from, one for each action: they have to survive, or mutations prove nothing."""
    for action in data["actions"]:
        yield Mutation(_only(data, action), action, "", f"nothing but {action}")


def survives(mutation: Mutation, suite: Suite) -> bool:
    """Whether no case of the suite fails on the mutation.

    What does not compile could never be deployed, and what the suite does not fit could not be tested: neither survives.
    """
    try:
        text = rfc8785.dumps(mutation.data).decode()
        rule_set = compile_rule_set(text)
        assert text == rule_set.canonical_json
        library.keep(rule_set)
    except DocumentError:
        return False
    cases = [case for case in suite.cases if mutation.action in ("", case.part.action or mutation.action)]
    # Those that this rule decides are the first to notice.
    cases.sort(key=lambda case: case.part.expect.rule_id != mutation.rule_id)
    try:
        return all(result.passed for result in run_cases(suite._replace(cases=tuple(cases)), rule_set, explained=False))
    except DocumentError:
        return False


def _only(data: dict[str, Any], action: str) -> dict[str, Any]:
    """The document with one action and what belongs to it."""
    alone = {**data, "actions": {action: data["actions"][action]}, "rules": [rule for rule in data["rules"] if rule["action"] == action]}
    if "derivations" in data:
        alone["derivations"] = [derivation for derivation in data["derivations"] if derivation["on"]["action"] == action]
    # Variables of other actions would not compile without them.
    variables = data.get("variables", {})
    used = _named(json.dumps([alone["actions"], alone["rules"], alone.get("derivations")]), variables)
    if variables:
        alone["variables"] = {name: text for name, text in variables.items() if name in used}
    return alone


def _named(text: str, variables: dict[str, str]) -> set[str]:
    """The variables that a text names, and those that they name."""
    found: set[str] = set()
    new = variables.keys() & set(_WORD.findall(text))
    while new:
        found |= new
        new = (variables.keys() & {word for name in new for word in _WORD.findall(variables[name])}) - found
    return found


def _changes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text with one literal changed, and the change as people read it."""
    seen = set()
    for literal in _literals(parse(text)):
        match literal.kind:
            case "bool":
                found, others = re.compile("true|false").match(text, literal.offset), ["false" if literal.value else "true"]
            case "int64" | "uint64" | "double":
                found = _NUMBER.match(text, literal.offset)
                others = _near(found.group()) if found else []
            case "string":
                found, others = _TEXT.match(text, literal.offset), [json.dumps(other) for other in _beside(str(literal.value))]
            case _:
                continue
        # A macro unfolds to literals of its own, which stand nowhere.
        if found is None or found.start() in seen:
            continue
        seen.add(found.start())
        for other in others:
            yield text[: found.start()] + other + text[found.end() :], f"{found.group()} to {other}"


def _literals(node: Node) -> Iterator[Constant]:
    if isinstance(node, Constant):
        yield node
    for child in children(node):
        yield from _literals(child)


def _near(written: str) -> list[str]:
    """A number, one more and one less in its last written place."""
    if written.startswith(("0x", "-0x")):
        return [str(int(written, 16) + step) for step in (1, -1)]
    number = Decimal(written)
    step = Decimal(1).scaleb(int(number.as_tuple().exponent))
    return [format(number + step, "f"), format(number - step, "f")]


def _beside(text: str) -> list[str]:
    """A string, changed by as little as means something."""
    length = _LENGTH_OF_TIME.fullmatch(text)
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
