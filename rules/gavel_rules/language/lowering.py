"""From a checked condition to what the Rete network can decide exactly.

A condition becomes a disjunction of conjunctions of atoms. An atom compares one slot, a typed value of the case under a name
of ours, with a literal or another slot. There is no negation in the network: every expression e is lowered to two positive
formulas, "e is true" and "e is false", in which a missing value makes an atom neither. What the network cannot say exactly
(regular expressions, order of strings, arithmetic, macros, time) becomes a guard: a boolean slot that CEL computes while
the case is projected. An erring guard leaves its slot empty, neither true nor false.

A guard is a piece of the author's own text, cut out by the places in the syntax tree, compiled again and compared with the
tree it came from; where that fails, or a formula grows too large, the whole condition is one guard. Both are always right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Final, NamedTuple

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.cel_syntax import Call, Constant, Identifier, ListLiteral, Node
from gavel_rules.language.conditions import Condition, Environment
from gavel_rules.language.reading import macros, presence_path
from gavel_rules.language.vocabulary import ValueType
from gavel_rules.values import INTEGER_MAX

CONJUNCTIONS_MAX: Final = 16
CONDITIONS_PER_CONJUNCTION_MAX: Final = 24  # of the engine's; a comparison of two slots takes two
LITERAL_LENGTH_MAX: Final = 4096

NUMBER: Final = "n"
TEXT: Final = "s"
FLAG: Final = "b"
PRESENCE: Final = "p"
GUARD: Final = "g"


class Slot(NamedTuple):
    """A value of the case that the network reads: a variable, the presence of a path, or a guard's text."""

    kind: str
    name: str


class Atom(NamedTuple):
    """One comparison: `operator` is "", "$neq", "$lt", "$lte", "$gt" or "$gte" ("" is equality); `right` JSON or a slot."""

    operator: str
    left: Slot
    right: str | Slot


Conjunction = tuple[Atom, ...]
Formula = tuple[Conjunction, ...]
Span = tuple[int, int]

_TRUE: Final[Formula] = ((),)
_FALSE: Final[Formula] = ()


class Guard(NamedTuple):
    """A boolean that CEL computes. `needs` are paths of optional values without which it is not asked."""

    source: str
    needs: tuple[str, ...]


class Lowered(NamedTuple):
    """A condition as the network has it, with the guards among its slots."""

    formula: Formula
    guards: tuple[Guard, ...]


class _TooLargeError(GavelRulesError):
    """The formula is over a limit, or a piece cannot stand alone: the condition becomes one guard."""


_COMPARISONS: Final = {"_==_": "", "_!=_": "$neq", "_<_": "$lt", "_<=_": "$lte", "_>_": "$gt", "_>=_": "$gte"}
_NEGATED: Final = {"": "$neq", "$neq": "", "$lt": "$gte", "$lte": "$gt", "$gt": "$lte", "$gte": "$lt"}
_MIRRORED: Final = {"": "", "$neq": "$neq", "$lt": "$gt", "$lte": "$gte", "$gt": "$lt", "$gte": "$lte"}
_OF_KIND: Final = {"int": NUMBER, "double": NUMBER, "string": TEXT, "bool": FLAG}
_OF_LITERAL: Final = {"int64": NUMBER, "double": NUMBER, "string": TEXT, "bool": FLAG}


def lower(condition: Condition, environment: Environment, wanted: bool = True) -> Lowered:
    """Return "the condition comes out as `wanted`", lowered as far as is exact."""
    whole = (0, len(condition.source))
    # CEL bounds the iterations of one evaluation: apart, two macros could pass where together they err.
    if macros(condition.tree) <= 1:
        work = _Lowering(condition, environment)
        try:
            formula = work.lower(condition.tree, whole, wanted)
            return Lowered(formula, tuple(work.guards))
        except _TooLargeError:
            pass
    guard = Guard(condition.source, ())
    return Lowered(_one("", Slot(GUARD, guard.source), _flag(wanted)), (guard,))


class _Lowering:
    def __init__(self, condition: Condition, environment: Environment) -> None:
        self._condition = condition
        self._environment = environment
        self.guards: dict[Guard, None] = {}

    def lower(self, node: Node, span: Span, wanted: bool) -> Formula:
        """Return the formula for "node comes out as `wanted`". `span` is the text that holds the node, perhaps in parentheses."""
        match node:
            case Constant(kind="bool", value=value):
                return _TRUE if value is wanted else _FALSE
            case Call("!_", None, (operand,)):
                return self.lower(operand, (node.offset + 1, span[1]), not wanted)
            case Call("_&&_" | "_||_", None, (left, right)):
                of_left = self.lower(left, (span[0], node.offset), wanted)
                of_right = self.lower(right, (node.offset + 2, span[1]), wanted)
                return _both(of_left, of_right) if (node.function == "_&&_") is wanted else _either(of_left, of_right)
            case Call("_?_:_", None, (condition, then, otherwise)):
                colon = _colon(self._condition.source, node.offset + 1, span[1])
                taken = _both(self.lower(condition, (span[0], node.offset), True), self.lower(then, (node.offset + 1, colon), wanted))
                passed = _both(self.lower(condition, (span[0], node.offset), False), self.lower(otherwise, (colon + 1, span[1]), wanted))
                return _either(taken, passed)
        formula = self._leaf(node, wanted)
        return formula if formula is not None else self._guard(node, span, wanted)

    def _leaf(self, node: Node, wanted: bool) -> Formula | None:
        path = presence_path(node)
        if path is not None:
            return _one("", Slot(PRESENCE, path), _flag(wanted))
        match node:
            case Identifier():
                slot = self._slot(node)
                return _one("", slot, _flag(wanted)) if slot is not None and slot.kind == FLAG else None
            case Call("@in", None, (member, ListLiteral(elements))):
                return self._membership(member, elements, wanted)
            case Call(function, None, (left, right)) if function in _COMPARISONS:
                operator = _COMPARISONS[function]
                return self._comparison(operator if wanted else _NEGATED[operator], left, right)
        return None

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

    def _membership(self, member: Node, elements: tuple[Node, ...], wanted: bool) -> Formula | None:
        slot = self._slot(member)
        if slot is None:
            return None
        literals: dict[str, None] = {}
        for element in elements:
            literal = _literal(element, slot.kind) if isinstance(element, Constant) else None
            if literal is None:
                return None
            literals[literal] = None
        if wanted:
            return tuple((Atom("", slot, literal),) for literal in literals) if len(literals) <= CONJUNCTIONS_MAX else None
        # "Not in an empty list" holds for every value that is there: nothing to compare it with, so CEL decides.
        return (tuple(Atom("$neq", slot, literal) for literal in literals),) if 0 < len(literals) <= CONJUNCTIONS_MAX else None

    def _slot(self, node: Node) -> Slot | None:
        if not isinstance(node, Identifier):
            return None
        kind = _OF_KIND.get(self._environment.types.get(node.name, _UNKNOWN).kind)
        return Slot(kind, node.name) if kind is not None else None

    def _guard(self, node: Node, span: Span, wanted: bool) -> Formula:
        low, high = own_span(self._condition.source, span)
        source = self._condition.source[low:high].strip()
        try:
            same = self._environment.tree(source) == node
        except RuntimeError:
            same = False
        if not same:
            raise _TooLargeError
        guard = Guard(source, self._environment.unguarded(self._condition.text[low:high].strip()))
        if any("[" in need for need in guard.needs):
            raise _TooLargeError  # whether an element of a list has something, only its condition as a whole can say
        self.guards[guard] = None
        return _one("", Slot(GUARD, source), _flag(wanted))


_UNKNOWN: Final = ValueType("dyn")


def _one(operator: str, left: Slot, right: str | Slot) -> Formula:
    return ((Atom(operator, left, right),),)


def _both(left: Formula, right: Formula) -> Formula:
    if len(left) * len(right) > CONJUNCTIONS_MAX:
        raise _TooLargeError
    formula = tuple(dict.fromkeys(tuple(dict.fromkeys((*a, *b))) for a in left for b in right))
    if any(_length(conjunction) > CONDITIONS_PER_CONJUNCTION_MAX for conjunction in formula):
        raise _TooLargeError
    return formula


def _either(left: Formula, right: Formula) -> Formula:
    formula = tuple(dict.fromkeys((*left, *right)))
    if len(formula) > CONJUNCTIONS_MAX:
        raise _TooLargeError
    return () if not formula else _TRUE if () in formula else formula


def _length(conjunction: Conjunction) -> int:
    return sum(1 if isinstance(atom.right, str) else 2 for atom in conjunction)


def _flag(wanted: bool) -> str:
    return "true" if wanted else "false"


def _literal(constant: Constant, kind: str) -> str | None:
    """Return a literal as the network's JSON, None when it is of another kind or the network would not hold it exactly."""
    if _OF_LITERAL.get(constant.kind) != kind:
        return None
    value = constant.value
    if isinstance(value, bool):
        return _flag(value)
    if isinstance(value, str):
        text = text_json(value)
        return text if len(text) <= LITERAL_LENGTH_MAX else None
    if isinstance(value, int | float) and math.isfinite(value) and (isinstance(value, float) or abs(value) <= INTEGER_MAX):
        return number_json(value)
    return None


def number_json(number: int | float) -> str:
    """Return a finite number as JSON that the network's parser takes: an exponent needs a fraction before it. An integer has none."""
    text = repr(number)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return text


def text_json(text: str) -> str:
    """Return a string as JSON, ASCII only. Rules and cases use this one function: the network compares raw JSON text."""
    return encode_basestring_ascii(text)


_TOKEN: Final = re.compile(
    r"""(?P<text>[bB]?[rR][bB]?(?:'''[\s\S]*?'''|\"{3}[\s\S]*?\"{3}|'[^'\n]*'|"[^"\n]*")"""
    r"""|[bB]?(?:'''(?:\\[\s\S]|[^\\])*?'''|\"{3}(?:\\[\s\S]|[^\\])*?\"{3}|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))"""
    r"""|(?P<comment>//[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<word>\w+)|(?P<other>[\s\S])"""
)


def own_span(source: str, span: Span) -> Span:
    """Return the span of an operand without parentheses around it, be they its own or halves of others'."""
    low, high = span
    opened: list[re.Match[str]] = []
    for token in _tokens(source, low, high):
        if token.lastgroup == "open":
            opened.append(token)
        elif token.lastgroup == "close":
            if not opened:
                high = token.start()
                break
            opened.pop()
    if opened:
        low = opened[-1].end()
    return _unwrapped(source, low, high)


def _colon(source: str, low: int, high: int) -> int:
    """Return where the colon stands that belongs to the question mark just before `low`."""
    depth = 0
    for token in _tokens(source, low, high):
        depth += {"open": 1, "close": -1}.get(token.lastgroup or "", 0)
        if depth == 0 and token.group() == ":":
            return token.start()  # CEL wants another choice before the colon in parentheses
    return high


def _unwrapped(source: str, low: int, high: int) -> Span:
    """Return a span without the pairs of parentheses that hold all of it."""
    tokens = [token for token in _tokens(source, low, high) if token.lastgroup != "comment" and not token.group().isspace()]
    first, last = 0, len(tokens) - 1
    while first < last and tokens[first].group() == "(" and _partner(tokens, first) == last:
        low, high = tokens[first].end(), tokens[last].start()
        first, last = first + 1, last - 1
    return low, high


def _partner(tokens: Sequence[re.Match[str]], opening: int) -> int:
    """Return the index of the token that closes an opening one; -1 where none does."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += {"open": 1, "close": -1}.get(tokens[index].lastgroup or "", 0)
        if depth == 0:
            return index
    return -1


def _tokens(source: str, low: int, high: int) -> Iterator[re.Match[str]]:
    at = low
    while at < high:
        token = _TOKEN.match(source, at, high)
        if token is None:
            return
        yield token
        at = token.end()
