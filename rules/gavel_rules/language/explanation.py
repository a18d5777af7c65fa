"""Explanations: the terms of a rule's condition, outermost first, each with its value as text. Variables are shown by their names."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from gavel.v1.arbitration_service_pb2 import ExplainedTerm, RuleExplanation

from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.syntax_tree import Call, Constant, ListLiteral, Node
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.cel.vocabulary import COUNTER_READS
from gavel_rules.language.engines.lowering import Span, operand_span, text_to_json
from gavel_rules.text import clip

VALUE_LENGTH_MAX: Final = 200

_SIGNS: Final = {"_==_": "==", "_!=_": "!=", "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">=", "@in": "in", "_&&_": "&&", "_||_": "||"}
# The sign of each comparison with its sides exchanged.
_MIRRORED: Final = {"_==_": "==", "_!=_": "!=", "_<_": ">", "_<=_": ">=", "_>_": "<", "_>=_": "<="}
_SCALARS: Final = ("BOOL", "INT", "UINT", "DOUBLE", "STRING", "BYTES", "TIMESTAMP", "DURATION")


def explain(
    policy_id: str, rule_id: str, condition: CheckedExpression, environment: Environment, values: dict[str, object]
) -> Generator[None, None, RuleExplanation]:
    """Return the terms of a rule's condition with their values in a case. Yields before each term, which takes up to a millisecond."""
    explanation = RuleExplanation(policy_id=policy_id, rule_id=rule_id)
    sources: set[str] = set()
    for low, high in _spans(condition.tree, (0, len(condition.source)), condition.source):
        source = condition.source[low:high].strip()
        if not source or source in sources:
            continue
        sources.add(source)
        yield None
        try:
            expression = environment.compile(source)
        except RuntimeError:
            continue  # the place in the tree does not enclose a whole expression
        value = _value(expression, source, values)
        whole = not explanation.terms  # the whole condition comes first
        expression = condition.written.strip() if whole else condition.by_name(low, high)
        explanation.terms.append(ExplainedTerm(expression=expression, value=value))
        if whole:
            explanation.matched = value == "true"
    return explanation


def branches(condition: CheckedExpression, environment: Environment) -> tuple[str, ...]:
    """Return the operands of a condition's logic that have no logic of their own, in the words of `explain`, each once."""
    texts: dict[str, str] = {}
    for low, high in _leaves(condition.tree, (0, len(condition.source)), condition.source):
        source = condition.source[low:high].strip()
        text = condition.written.strip() if (low, high) == (0, len(condition.source)) else condition.by_name(low, high)
        if source not in texts and _compiles(environment, source):
            texts[source] = text
    return tuple(texts.values())


class Threshold(NamedTuple):
    """A number that a condition compares a counter with: `expression`, in the words of `explain`, stands on the left of the operator."""

    expression: str
    operator: str
    value: float


def thresholds(condition: CheckedExpression, environment: Environment) -> tuple[Threshold, ...]:
    """Return the thresholds of a condition's counters, each once."""
    return tuple(dict.fromkeys(_thresholds(condition, environment, condition.tree, (0, len(condition.source)))))


def _thresholds(condition: CheckedExpression, environment: Environment, node: Node, span: Span) -> Iterator[Threshold]:
    match node:
        case Call("!_", None, (operand,)):
            yield from _thresholds(condition, environment, operand, (node.offset + 1, span[1]))
        case Call("_&&_" | "_||_", None, (left, right)):
            yield from _thresholds(condition, environment, left, (span[0], node.offset))
            yield from _thresholds(condition, environment, right, (node.offset + 2, span[1]))
        case Call(function, None, (left, right)) if function in _MIRRORED:
            sign = _SIGNS[function]
            sides = (
                (left, right, (span[0], node.offset), sign),
                (right, left, (node.offset + len(sign), span[1]), _MIRRORED[function]),
            )
            for part, other, place, operator in sides:
                number = other.value if isinstance(other, Constant) else None
                if isinstance(number, int | float) and not isinstance(number, bool) and _reads_counter(part, environment):
                    yield Threshold(condition.by_name(*operand_span(condition.source, place)), operator, float(number))


def _reads_counter(node: Node, environment: Environment) -> bool:
    return any(name.startswith(f"{COUNTER_READS}.") for name, _ in find_variables(node, environment.types))


def _compiles(environment: Environment, source: str) -> bool:
    try:
        environment.compile(source)
    except RuntimeError:
        return False
    return True


def _leaves(node: Node, span: Span, source: str) -> Iterator[Span]:
    """Yield the spans of the operands of a condition's logic that are not logic themselves, except for literals."""
    match node:
        case Call("!_", None, (operand,)):
            yield from _leaves(operand, (node.offset + 1, span[1]), source)
        case Call("_&&_" | "_||_", None, (left, right)):
            yield from _leaves(left, (span[0], node.offset), source)
            yield from _leaves(right, (node.offset + 2, span[1]), source)
        case Constant():
            return
        case _:
            yield span if span == (0, len(source)) else operand_span(source, span)


def _spans(node: Node, span: Span, source: str) -> Iterator[Span]:
    """Yield the spans of a condition, of the operands of its logic, and of the operands of its comparisons, except for literals."""
    yield span if span == (0, len(source)) else operand_span(source, span)
    match node:
        case Call("!_", None, (operand,)):
            yield from _spans(operand, (node.offset + 1, span[1]), source)
        case Call(function, None, (left, right)) if function in _SIGNS:
            sign = _SIGNS[function]
            for part, place in ((left, (span[0], node.offset)), (right, (node.offset + len(sign), span[1]))):
                if not isinstance(part, Constant | ListLiteral):
                    yield from _spans(part, place, source)


def _value(expression: Any, source: str, values: dict[str, object]) -> str:
    try:
        answer = expression.eval(data=values)
    except RuntimeError as error:
        return _failure(str(error))
    kind = answer.type().name()
    if kind == "ERROR":
        return _failure(answer.value())
    if kind.startswith(_SCALARS):
        return _literal(answer.plain_value())
    # `plain_value` of a null, or of what holds one, corrupts reference counts: see `engines.cel`.
    return _literal(values[source]) if source in values else f"a {kind.partition('<')[0].lower()}"


def _failure(message: object) -> str:
    text = str(message)
    if text.startswith("UNKNOWN: No value with name"):
        name = text.split('"')[1]
        return "error: a counter gives no number" if name.startswith(f"{COUNTER_READS}.") else f"error: {name} is absent"
    if text.partition(": ")[2].startswith("Key not found in map : "):
        return clip(f"error: {text.rpartition(' : ')[2]} is absent", VALUE_LENGTH_MAX)
    return clip(f"error: {text.partition(': ')[2] or text}", VALUE_LENGTH_MAX)


def _literal(value: object) -> str:
    """Return a value in CEL's notation."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return clip(text_to_json(value), VALUE_LENGTH_MAX)
    if isinstance(value, list):
        return clip(f"[{', '.join(map(_literal, value))}]", VALUE_LENGTH_MAX)
    if isinstance(value, dict):
        return clip("{" + ", ".join(f"{_literal(name)}: {_literal(item)}" for name, item in value.items()) + "}", VALUE_LENGTH_MAX)
    if isinstance(value, datetime):
        return f'timestamp("{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z")'
    if isinstance(value, timedelta):
        return f'duration("{value.total_seconds():g}s")'
    return clip(str(value), VALUE_LENGTH_MAX)
