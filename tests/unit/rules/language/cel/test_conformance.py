"""The CEL specification's own conformance cases, through our compiler and both engines.

tests/data/cel_spec.json holds the cases of the specification's suite that rules can express (Apache-2.0; extracted by
extract_cel_spec.cjs). A case becomes a condition: unchanged if it gives a bool, otherwise compared with the value that the suite expects.
Such conditions consist mostly of literals, which CEL evaluates alone. Every case that compares, tests or joins literals is therefore run
again with its operands as params, which the network then compares.

Cases outside Gavel's dialect are refused at compile time and counted here by code and reason: REFUSED lists them. The CEL library alone
evaluates them, unchecked, except for cases that need the suite's own protobuf messages.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pytest
from cel_expr_python import cel
from gavel_rules.language.cel.library import library_config
from gavel_rules.language.cel.syntax_tree import Call, Constant, ListLiteral, Node, decode
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, DocumentError, compile_rule_set
from gavel_rules.values import INTEGER_MAX

from tests.support.paths import ROOT

SUITE: Final = json.loads((ROOT / "tests/data" / "cel_spec.json").read_text(encoding="utf-8"))
FILES: Final = sorted({case["name"].partition("/")[0] for case in SUITE["cases"]})
ACTION: Final = "thing.do"
RULES_PER_DOCUMENT: Final = 50
COMPARISONS: Final = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_&&_", "_||_", "@in"})
TEXT_TESTS: Final = frozenset({"startsWith", "endsWith", "contains", "matches"})

# Why a case is outside Gavel's dialect, by the code of the compiler's diagnostic.
REFUSED: Final = {
    "bad-literal": "a pattern or time, written out, that is none: with the suite an error of the evaluation",
    "bad-character": "a literal with NUL, which the CEL library cuts off in strings",
    "not-bool": "a condition whose type is open, dyn",
    "unguarded-optional": "a key of a map read without has()",
    "hidden-input": "a named time zone: the answer would depend on the host's files; map and filter over a map, whose keys have no order",
    "not-supported": "protobuf messages",
    "type-error": "run by the suite without type checking: mixed types where one is wanted, order of lists and maps",
    "unknown-function": "a function that the suite declares",
    "unknown-name": "names that are no param, fact or attribute: google.protobuf.*, a.b.c",
    # Cases that are not run:
    "unbindable": "a variable or result of a type that no JSON value has: uint, bytes, null, Duration",
}
# The library takes {0: 1, 0u: 2} for a map of two keys, where the specification wants an error.
KNOWN: Final = {"fields/qualified_identifier_resolution/map_value_repeat_key_heterogeneous": True}
# The expected counts for each file of the suite: cases that both engines decide unchanged ("decided"), the same cases with operands as
# params ("lifted"), refused cases by code, and refused cases for which the library alone gives the suite's result ("library").
EXPECTED: Final[dict[str, dict[str, int]]] = {
    "basic": {"decided": 39, "library": 4, "lifted": 51, "unknown-function": 2, "unknown-name": 2},
    "comparisons": {
        "bad-character": 8,
        "decided": 308,
        "library": 50,
        "lifted": 262,
        "not-supported": 72,
        "type-error": 14,
        "unbindable": 4,
    },
    "conversions": {"decided": 108, "library": 1, "unknown-name": 1},
    "fields": {"decided": 47, "library": 9, "not-bool": 1, "unguarded-optional": 6, "unknown-name": 6},
    "fp_math": {"decided": 29, "library": 1, "type-error": 1},
    "integer_math": {"decided": 61, "library": 3, "type-error": 3},
    "lists": {"decided": 39, "lifted": 8},
    "logic": {"decided": 21, "library": 9, "lifted": 26, "type-error": 9},
    "macros": {"decided": 42, "hidden-input": 2, "library": 2},
    "string": {"decided": 51, "lifted": 31},
    "timestamps": {"bad-literal": 4, "decided": 61, "hidden-input": 6, "library": 14, "unbindable": 1, "unknown-name": 4},
}


class Conformance(NamedTuple):
    """A case as a condition over some params. `expected` is True, False, or None for an error."""

    name: str
    condition: str
    expected: bool | None
    params: dict[str, Any]


def as_condition(case: dict[str, Any]) -> Conformance | None:
    """Return a case of the suite as a condition; None if one of its values cannot be written."""
    text, params = case["expr"], {}
    for name, bound in case.get("bindings", {}).items():
        if name == "x":
            try:
                params["x"] = to_json(bound["value"])
            except ValueError:
                return None
            text = re.sub(r"\bx\b", "params.x", text)
    if case.get("error"):
        return Conformance(case["name"], f"type({text}\n) == int", None, params)
    if case["value"].keys() == {"boolValue"}:
        return Conformance(case["name"], text, case["value"]["boolValue"], params)
    try:
        return Conformance(case["name"], f"({text}\n) == {to_cel(case['value'])}", True, params)
    except ValueError:
        return None


def to_json(value: dict[str, Any]) -> Any:
    """Return a value of the suite as a param. Raises ValueError if params cannot have it."""
    ((kind, of),) = value.items()
    match kind:
        case "int64Value":
            return int(of)
        case "boolValue" | "stringValue" | "doubleValue":
            return of
        case "listValue":
            return [to_json(item) for item in of.get("values", ())]
        case "mapValue":
            return {entry["key"]["stringValue"]: to_json(entry["value"]) for entry in of.get("entries", ())}
    raise ValueError(kind)


def to_cel(value: dict[str, Any]) -> str:
    """Return a value of the suite as CEL. Raises ValueError if it has no literal."""
    ((kind, of),) = value.items()
    match kind:
        case "int64Value":
            return str(of)
        case "uint64Value":
            return f"{of}u"
        case "stringValue":
            return json.dumps(of, ensure_ascii=False)
        case "boolValue":
            return "true" if of else "false"
        case "doubleValue":
            return {"Infinity": "(1.0 / 0.0)", "-Infinity": "(-1.0 / 0.0)"}.get(of) or repr(float(of))
        case "bytesValue":
            return "b'" + "".join(f"\\x{byte:02x}" for byte in base64.b64decode(of)) + "'"
        case "listValue":
            return f"[{', '.join(map(to_cel, of.get('values', ())))}]"
        case "mapValue":
            return "{" + ", ".join(f"{to_cel(entry['key'])}: {to_cel(entry['value'])}" for entry in of.get("entries", ())) + "}"
        case "typeValue" | "nullValue":
            return str(of or "null")
    raise ValueError(kind)


def lift_literals(case: Conformance) -> Iterator[Conformance]:
    """Yield the case with literal operands as params: the left one, the right one, and both if there are two."""
    if case.params or case.expected is None:
        return
    try:
        tree = decode(cel.NewEnv(variables={}).compile(case.condition, disable_check=True).serialize())
    except RuntimeError:
        return
    match tree:
        case Call(function, None, (left, right)) if function in COMPARISONS:
            operator = function.strip("_@")
            for operands in ([left], [left, right], [right]):
                parts, params = _lift([left, right], operands)
                if params and all(parts):
                    yield case._replace(name=f"{case.name} lifted {len(operands)}", condition=f" {operator} ".join(parts), params=params)
        case Call("!_", None, (operand,)):
            parts, params = _lift([operand], [operand])
            if params:
                yield case._replace(name=f"{case.name} lifted", condition=f"!{parts[0]}", params=params)
        case Call(function, target, (argument,)) if function in TEXT_TESTS and target is not None:
            parts, params = _lift([target, argument], [target])
            if params and all(parts):
                yield case._replace(name=f"{case.name} lifted", condition=f"{parts[0]}.{function}({parts[1]})", params=params)


def _lift(nodes: Sequence[Node], wanted: Sequence[Node]) -> tuple[list[str], dict[str, Any]]:
    """Return each node as text, the requested ones as params if possible; "" for one without text."""
    parts, params = [], {}
    for number, node in enumerate(nodes):
        if isinstance(node, Constant) and _liftable(node) and any(node is one for one in wanted):
            params[f"p{number}"] = node.value
            parts.append(f"params.p{number}")
        else:
            parts.append(_text(node))
    return parts, params


def _liftable(node: Constant) -> bool:
    if node.kind == "int64" and isinstance(node.value, int):
        return abs(node.value) <= INTEGER_MAX
    return node.kind in ("double", "string", "bool")


def _text(node: Node) -> str:
    match node:
        case Constant("string" | "bool" as kind, value):
            return to_cel({f"{kind}Value": value})
        case Constant("int64" | "uint64" | "double" as kind, value):
            return to_cel({f"{kind}Value": value})
        case ListLiteral(elements):
            items = [_text(element) for element in elements]
            return f"[{', '.join(items)}]" if all(items) else ""
    return ""


def schema_of(value: Any) -> dict[str, Any]:
    """Return the JSON Schema of a param for a value."""
    if isinstance(value, list):
        return {"type": "array", "maxItems": 100, "items": schema_of(value[0])}
    if isinstance(value, dict):
        return {"type": "object", "additionalProperties": schema_of(next(iter(value.values())))}
    if isinstance(value, str):
        return {"type": "string", "maxLength": 1000}
    return {"type": {bool: "boolean", int: "integer", float: "number"}[type(value)]}


def rule_set(cases: Sequence[Conformance]) -> str:
    """Return a document with one rule per case, each on a line of its own: case N is on line 1 + N."""
    properties = {f"c{number}_{name}": schema_of(value) for number, case in enumerate(cases) for name, value in case.params.items()}
    params = {"type": "object", "required": list(properties), "properties": properties}
    rules = [
        {"id": f"r{number}", "action": ACTION, "priority": number + 1, "when": _own_params(case, number), "effect": "approve"}
        for number, case in enumerate(cases)
    ]
    head = {"gavel": "v1", "rule_set": "conformance", "version": 1, "actions": {ACTION: {"params": params}}}
    return json.dumps(head)[:-1] + ', "rules": [\n' + ",\n".join(map(json.dumps, rules)) + "]}"


def _own_params(case: Conformance, number: int) -> str:
    return re.sub(r"\bparams\.(x|p\d)\b", rf"params.c{number}_\1", case.condition)


def refusals(cases: Sequence[Conformance]) -> dict[str, str]:
    """Return the cases that the compiler refuses, each with its first code."""
    try:
        compile_rule_set(rule_set(cases))
    except DocumentError as error:
        codes: dict[str, str] = {}
        for message in error.messages:
            codes.setdefault(cases[message.line - 2].name, message.code)
        return codes
    return {}


def decide(cases: Sequence[Conformance]) -> dict[str, bool | None]:
    """Return the outcomes of the cases, None for one that fails. All modes of evaluation must agree."""
    action = compile_rule_set(rule_set(cases)).actions[ACTION]
    params = {f"c{number}_{name}": value for number, case in enumerate(cases) for name, value in case.params.items()}
    of = Case(action.typed_params(params), {}, 0.0, 0.0, 1.0, 0, "", "order/1", "AGENT", "agent", "1", 0, 3, 0, 0, now_ms=1_700_000_000_000)
    return {case.name: outcome for case, outcome in zip(cases, _outcomes(action, of, len(cases)), strict=True)}


def unchecked(case: Conformance) -> bool | str | None:
    """Return the library's outcome of a case that the compiler refuses; a sentence if the library cannot take it."""
    environment = cel.NewEnv(config=library_config(), variables={"params": cel.Type("map<string,dyn>")})
    try:
        expression = environment.compile(f"[{case.condition}\n]", disable_check=True)
    except RuntimeError as error:
        return str(error)
    try:
        answer = expression.eval(data={"params": case.params}).plain_value()
    except RuntimeError:
        return None
    return bool(answer[0]) if isinstance(answer, list) else None


def _outcomes(action: CompiledAction, of: Case, count: int) -> list[bool | None]:
    verdicts = {action.evaluate(of, cross_check=True), action.evaluate(of, cross_check=False), action.evaluate_reference(of)}
    assert 1 == len(verdicts), verdicts
    (verdict,) = verdicts
    assert verdict.disagreement is None
    if verdict.error:
        assert 1 == count, f"{verdict.error} errs"
        return [None]
    matches = {rule.id for rule in verdict.matches}
    return [f"r{number}" in matches for number in range(count)]


def portions(cases: Sequence[Conformance]) -> Iterator[Sequence[Conformance]]:
    """Yield cases that may share a rule set; a case that fails is alone, because an error decides for all."""
    calm = [case for case in cases if case.expected is not None]
    yield from (calm[start : start + RULES_PER_DOCUMENT] for start in range(0, len(calm), RULES_PER_DOCUMENT))
    yield from ([case] for case in cases if case.expected is None)


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_conformance(file: str) -> None:
    """Each case has the suite's outcome on both engines, with literals and with params, or is refused for a known reason."""
    of_file = [case for case in SUITE["cases"] if case["name"].startswith(f"{file}/")]
    conditions = [condition for case in of_file if (condition := as_condition(case)) is not None]
    counts: Counter[str] = Counter({"unbindable": len(of_file) - len(conditions)})
    exclusions = {name: code for portion in portions(conditions) for name, code in refusals(portion).items()}
    counts.update(exclusions.values())
    accepted = [case for case in conditions if case.name not in exclusions]
    variants = [variant for case in accepted for variant in lift_literals(case)]
    counts["decided"], counts["lifted"] = len(accepted), len(variants)
    mismatches = {}
    counts["library"] = sum(unchecked(case) is case.expected for case in conditions if case.name in exclusions)
    for portion in (*portions(accepted), *portions(variants)):
        expected = {case.name: KNOWN.get(case.name, case.expected) for case in portion}
        outcomes = decide(portion)
        mismatches.update({name: (expected[name], outcomes[name]) for name in expected if expected[name] is not outcomes[name]})
    assert {} == mismatches
    assert EXPECTED[file] == {name: count for name, count in sorted(counts.items()) if count}
    assert counts.keys() <= REFUSED.keys() | {"decided", "lifted", "library"}
