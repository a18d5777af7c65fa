"""Lowers a checked condition to a formula that the Rete network decides exactly.

A formula is a disjunction of conjunctions of atoms. An atom compares a slot, which holds one typed value of the case, with a literal or
another slot. The network has no negation: an expression e is lowered to two positive formulas, "e is true" and "e is false", in which
an atom with a missing value does not hold. The parts that the network cannot decide exactly (regular expressions, order of strings,
arithmetic, macros, time) become guards: boolean slots that CEL computes when the case is written. A guard that fails leaves its slot
empty, neither true nor false.

A guard is a span of the author's text, found by the places in the syntax tree, compiled again and compared with its tree. If they
differ, or a formula grows too large, the whole condition becomes one guard. Both ways are exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Final, NamedTuple

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.syntax_tree import Call, Constant, Identifier, ListLiteral, Node
from gavel_rules.language.cel.tokens import tokens
from gavel_rules.language.cel.tree_queries import count_macros, presence_path
from gavel_rules.language.cel.vocabulary import ValueType
from gavel_rules.values import INTEGER_MAX

CONJUNCTIONS_MAX: Final = 16
CONDITIONS_PER_CONJUNCTION_MAX: Final = 24  # conditions of the engine; a comparison of two slots takes two
LITERAL_LENGTH_MAX: Final = 4096

NUMBER: Final = "n"
TEXT: Final = "s"
FLAG: Final = "b"
PRESENCE: Final = "p"
GUARD: Final = "g"


class Slot(NamedTuple):
    """A value that the network reads: a variable, the presence of a path, or a guard, named by its text."""

    kind: str
    name: str


class Atom(NamedTuple):
    """One comparison. `operator` is "" for equality, "$neq", "$lt", "$lte", "$gt" or "$gte"; `right` is JSON or a slot."""

    operator: str
    left: Slot
    right: str | Slot


Conjunction = tuple[Atom, ...]
Formula = tuple[Conjunction, ...]
Span = tuple[int, int]

_TRUE: Final[Formula] = ((),)
_FALSE: Final[Formula] = ()


_OBJECT_KINDS: Final = ("object", "map")


class Guard(NamedTuple):
    """A boolean that CEL computes if the optional values at `required_paths` are present."""

    source: str
    required_paths: tuple[str, ...]


class LoweredCondition(NamedTuple):
    """A condition as a formula, with the guards among its slots."""

    formula: Formula
    guards: tuple[Guard, ...]


class _NotLowerableError(GavelRulesError):
    """The formula passes a limit, or a part of the text cannot stand alone: the condition becomes one guard."""


_COMPARISONS: Final = {"_==_": "", "_!=_": "$neq", "_<_": "$lt", "_<=_": "$lte", "_>_": "$gt", "_>=_": "$gte"}
_NEGATED: Final = {"": "$neq", "$neq": "", "$lt": "$gte", "$lte": "$gt", "$gt": "$lte", "$gte": "$lt"}
_MIRRORED: Final = {"": "", "$neq": "$neq", "$lt": "$gt", "$lte": "$gte", "$gt": "$lt", "$gte": "$lte"}
_OF_KIND: Final = {"int": NUMBER, "double": NUMBER, "string": TEXT, "bool": FLAG}
_OF_LITERAL: Final = {"int64": NUMBER, "double": NUMBER, "string": TEXT, "bool": FLAG}


def lower(condition: CheckedExpression, environment: Environment, outcome: bool = True) -> LoweredCondition:
    """Lower "the value of the condition is `outcome`"."""
    whole = (0, len(condition.source))
    # CEL limits the iterations of one evaluation: two macros could pass apart and fail together.
    if count_macros(condition.tree) <= 1:
        work = _Lowering(condition, environment)
        try:
            formula = work.lower(condition.tree, whole, outcome)
            return LoweredCondition(formula, tuple(work.guards))
        except _NotLowerableError:
            pass
    guard = Guard(condition.source, ())
    return LoweredCondition(_one("", Slot(GUARD, guard.source), _flag(outcome)), (guard,))


class _Lowering:
    def __init__(self, condition: CheckedExpression, environment: Environment) -> None:
        self._condition = condition
        self._environment = environment
        self.guards: dict[Guard, None] = {}

    def lower(self, node: Node, span: Span, outcome: bool) -> Formula:
        """Return the formula for "the value of the node is `outcome`". `span` holds the node's text, perhaps in parentheses."""
        match node:
            case Constant(kind="bool", value=value):
                return _TRUE if value is outcome else _FALSE
            case Call("!_", None, (operand,)):
                return self.lower(operand, (node.offset + 1, span[1]), not outcome)
            case Call("_&&_" | "_||_", None, (left, right)):
                of_left = self.lower(left, (span[0], node.offset), outcome)
                of_right = self.lower(right, (node.offset + 2, span[1]), outcome)
                return _both(of_left, of_right) if (node.function == "_&&_") is outcome else _either(of_left, of_right)
            case Call("_?_:_", None, (condition, then, otherwise)):
                colon = _colon(self._condition.source, node.offset + 1, span[1])
                positive = _both(self.lower(condition, (span[0], node.offset), True), self.lower(then, (node.offset + 1, colon), outcome))
                negative = _both(self.lower(condition, (span[0], node.offset), False), self.lower(otherwise, (colon + 1, span[1]), outcome))
                return _either(positive, negative)
        formula = self._leaf(node, outcome)
        return formula if formula is not None else self._guard(node, span, outcome)

    def _leaf(self, node: Node, outcome: bool) -> Formula | None:
        path = presence_path(node)
        if path is not None:
            return _one("", Slot(PRESENCE, path), _flag(outcome)) if self._is_within_objects(path) else None
        match node:
            case Identifier():
                slot = self._slot(node)
                return _one("", slot, _flag(outcome)) if slot is not None and slot.kind == FLAG else None
            case Call("@in", None, (member, ListLiteral(elements))):
                return self._membership(member, elements, outcome)
            case Call(function, None, (left, right)) if function in _COMPARISONS:
                operator = _COMPARISONS[function]
                return self._comparison(operator if outcome else _NEGATED[operator], left, right)
        return None

    def _is_within_objects(self, path: str) -> bool:
        """Report whether each value that holds the one at a path is an object. A presence test below another value is an error in CEL."""
        root, *steps = path.split(".")
        type_ = self._environment.scope[root]
        for step in steps[:-1]:
            field = type_.fields.get(step)
            if field is None or field.type.kind not in _OBJECT_KINDS:
                return False
            type_ = field.type
        return True

    def _comparison(self, operator: str, left: Node, right: Node) -> Formula | None:
        if isinstance(left, Constant):
            left, right, operator = right, left, _MIRRORED[operator]
        slot = self._slot(left)
        if slot is None or (slot.kind != NUMBER and operator not in ("", "$neq")):
            return None
        if isinstance(right, Constant):
            literal = _literal(right, slot.kind)
            return _one(operator, slot, literal) if literal is not None else None
        other = self._slot(right)
        return _one(operator, slot, other) if other is not None and other.kind == slot.kind else None

    def _membership(self, member: Node, elements: tuple[Node, ...], outcome: bool) -> Formula | None:
        slot = self._slot(member)
        if slot is None:
            return None
        literals: dict[str, None] = {}
        for element in elements:
            literal = _literal(element, slot.kind) if isinstance(element, Constant) else None
            if literal is None:
                return None
            literals[literal] = None
        if outcome:
            return tuple((Atom("", slot, literal),) for literal in literals) if len(literals) <= CONJUNCTIONS_MAX else None
        # "Not in an empty list" holds for every present value, and has no literal to compare: CEL decides.
        return (tuple(Atom("$neq", slot, literal) for literal in literals),) if 0 < len(literals) <= CONJUNCTIONS_MAX else None

    def _slot(self, node: Node) -> Slot | None:
        if not isinstance(node, Identifier):
            return None
        kind = _OF_KIND.get(self._environment.types.get(node.name, _UNKNOWN).kind)
        return Slot(kind, node.name) if kind is not None else None

    def _guard(self, node: Node, span: Span, outcome: bool) -> Formula:
        low, high = operand_span(self._condition.source, span)
        source = self._condition.source[low:high].strip()
        try:
            same = self._environment.tree(source) == node
        except RuntimeError:
            same = False
        if not same:
            raise _NotLowerableError
        guard = Guard(source, self._environment.unguarded_paths(self._condition.text[low:high].strip()))
        if any("[" in need for need in guard.required_paths):
            raise _NotLowerableError  # only the whole condition can test the presence in an element of a list
        self.guards[guard] = None
        return _one("", Slot(GUARD, source), _flag(outcome))


_UNKNOWN: Final = ValueType("dyn")


def _one(operator: str, left: Slot, right: str | Slot) -> Formula:
    return ((Atom(operator, left, right),),)


def _both(left: Formula, right: Formula) -> Formula:
    if len(left) * len(right) > CONJUNCTIONS_MAX:
        raise _NotLowerableError
    formula = tuple(dict.fromkeys(tuple(dict.fromkeys((*a, *b))) for a in left for b in right))
    if any(_length(conjunction) > CONDITIONS_PER_CONJUNCTION_MAX for conjunction in formula):
        raise _NotLowerableError
    return formula


def _either(left: Formula, right: Formula) -> Formula:
    formula = tuple(dict.fromkeys((*left, *right)))
    if len(formula) > CONJUNCTIONS_MAX:
        raise _NotLowerableError
    return () if not formula else _TRUE if () in formula else formula


def _length(conjunction: Conjunction) -> int:
    return sum(1 if isinstance(atom.right, str) else 2 for atom in conjunction)


def _flag(outcome: bool) -> str:
    return "true" if outcome else "false"


def _literal(constant: Constant, kind: str) -> str | None:
    """Return a literal as JSON; None if it is of another kind, or the network would not hold it exactly."""
    if _OF_LITERAL.get(constant.kind) != kind:
        return None
    value = constant.value
    if isinstance(value, bool):
        return _flag(value)
    if isinstance(value, str):
        text = text_to_json(value)
        return text if len(text) <= LITERAL_LENGTH_MAX else None
    if isinstance(value, int | float) and math.isfinite(value) and (isinstance(value, float) or abs(value) <= INTEGER_MAX):
        return number_to_json(value)
    return None


def number_to_json(number: int | float) -> str:
    """Return a finite number as JSON for the network's parser, which requires a fraction before an exponent."""
    text = repr(number)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return text


def text_to_json(text: str) -> str:
    """Return a string as ASCII JSON. Rules and cases both use this function, because the network compares raw JSON text."""
    return encode_basestring_ascii(text)


def operand_span(source: str, span: Span) -> Span:
    """Return the span of an operand without the parentheses around it, its own or halves of others."""
    low, high = span
    opened: list[re.Match[str]] = []
    for token in tokens(source, low, high):
        if token.lastgroup == "open":
            opened.append(token)
        elif token.lastgroup == "close":
            if not opened:
                high = token.start()
                break
            opened.pop()
    if opened:
        low = opened[-1].end()
    return _strip_parentheses(source, low, high)


def _colon(source: str, low: int, high: int) -> int:
    """Return the place of the colon for the question mark just before `low`."""
    depth = 0
    for token in tokens(source, low, high):
        depth += {"open": 1, "close": -1}.get(token.lastgroup or "", 0)
        if depth == 0 and token.group() == ":":
            return token.start()  # a nested choice before the colon needs parentheses in CEL
    return high


def _strip_parentheses(source: str, low: int, high: int) -> Span:
    """Return a span without the pairs of parentheses that enclose all of it."""
    parts = [token for token in tokens(source, low, high) if token.lastgroup != "comment" and not token.group().isspace()]
    first, last = 0, len(parts) - 1
    while first < last and parts[first].group() == "(" and _find_closing(parts, first) == last:
        low, high = parts[first].end(), parts[last].start()
        first, last = first + 1, last - 1
    return low, high


def _find_closing(parts: Sequence[re.Match[str]], opening: int) -> int:
    """Return the index of the token that closes an opening one, or -1."""
    depth = 0
    for index in range(opening, len(parts)):
        depth += {"open": 1, "close": -1}.get(parts[index].lastgroup or "", 0)
        if depth == 0:
            return index
    return -1
