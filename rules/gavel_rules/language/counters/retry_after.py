"""`retry_after` of a rule: when a counter will have room again, as `history.NAME.frees(key, amount, limit)`.

The arguments are separate expressions, which are evaluated after the rule has refused a proposal. The state then gives the time when enough
entries will have lapsed for the amount to fit under the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_FLOOR, Decimal
from typing import Final, NamedTuple

from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.library import Report, report_complaint
from gavel_rules.language.cel.syntax_tree import Call, Identifier, Node, Select
from gavel_rules.language.cel.tokens import closing_offset, tokens
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.cel.vocabulary import HISTORY
from gavel_rules.language.counters.canonical_tree import canonical_tree
from gavel_rules.language.counters.counter import COUNT, SUM, CompiledCounter
from gavel_rules.language.engines.case import Case, CaseReader
from gavel_rules.language.engines.cel import Program, condition_source
from gavel_rules.text import suggestion

_FREES: Final = "frees"
_FORM: Final = f"write it like {HISTORY}.refunded_today.{_FREES}(params.customer_id, params.amount, 1000.0)"


class FreesCall(NamedTuple):
    """A checked call: the counter's name, and the parts key (of a counter with groups), amount and limit."""

    counter: str
    parts: tuple[CheckedExpression, ...]


class Room(NamedTuple):
    """The room that a proposal needs: its group, and the most that it may hold, in whole numbers of the counter's smallest unit."""

    group: str
    most: int


class RetryAfter:
    """A `retry_after`, compiled."""

    def __init__(self, environment: Environment, checked: FreesCall, counter: CompiledCounter) -> None:
        self.counter: Final = counter
        trees = [part.tree for part in checked.parts]
        self._environment: Final = environment
        self._trees: Final = trees
        self._reader: Final = CaseReader(
            (variable for tree in trees for variable in find_variables(tree, environment.types)),
            [path for tree in trees for path in find_presence_tests(tree)],
        )
        self._program: Final = Program(environment, [condition_source(part.source) for part in checked.parts])

    def meaning(self, names: Mapping[str, str]) -> tuple[object, ...]:
        """Return a value that is equal for calls of the same meaning, whatever their layout. `names`: see `canonical_tree`."""
        name = self.counter.name
        return names.get(name, name), *(canonical_tree(self._environment, tree, names) for tree in self._trees)

    def room(self, case: Case) -> Room | None:
        """Return the room that a case needs; None if an expression fails or gives a number that is not finite."""
        answers = self._program.evaluate_all(self._reader.read(case))
        if answers is None:
            return None
        group = answers[0] if self.counter.has_groups else ""
        most = _difference(answers[-1], answers[-2], self.counter.scale)
        return Room(group, most) if isinstance(group, str) and most is not None else None


def check_retry_after(
    environment: Environment,
    text: str,
    counters: Mapping[str, CompiledCounter],
    check: Callable[[str, str], CheckedExpression | None],
    report: Report,
) -> FreesCall | None:
    """Return the checked call, or report its mistakes and return None.

    `check` takes an argument, after as many spaces as there are characters before it in the text, and the type that it must have.
    """
    try:
        tree = environment.parse(text)
    except RuntimeError as error:
        report_complaint((), text, str(error), report, reported=False)
        return None
    match tree:
        case Call("frees", Select(Identifier(root), name, False) as target, _) if root == HISTORY:
            pass
        case _:
            meant = counters.get(_counter_name(tree))
            report(0, "type-error", f"retry_after is not a call of {_FREES} of a counter", _FORM if meant is None else _form(meant))
            return None
    counter = counters.get(name)
    if counter is None and HISTORY in environment.scope and name in environment.scope[HISTORY].fields:
        return None  # its own mistakes are reported
    if counter is None:
        known = [f"{HISTORY}.{one}" for one in sorted(counters)]
        report(target.offset, "unknown-name", f"the rule set has no counter {name}", suggestion(f"{HISTORY}.{name}", known, 0))
        return None
    if counter.aggregate not in (COUNT, SUM):
        report(target.offset, "not-supported", f"{name} is neither a count nor a sum, so its room cannot be foreseen", "remove retry_after")
        return None
    types = ["STRING", "NUMBER", "NUMBER"] if counter.has_groups else ["NUMBER", "NUMBER"]
    places = _split(text, tree.offset)
    if len(places) != len(types):
        arguments = "a key, an amount and a limit" if counter.has_groups else "an amount and a limit, because the counter has no `by`"
        form = _form(counter) if counter.has_groups else f"add `by` to {name}, or {_form(counter)}"
        report(tree.offset, "type-error", f"{_FREES} takes {arguments}", form)
        return None
    # The spaces keep the places of mistakes right.
    parts = [check(" " * start + text[start:end], type_) for (start, end), type_ in zip(places, types, strict=True)]
    sound = tuple(part for part in parts if part is not None)
    return FreesCall(name, sound) if len(sound) == len(parts) else None


def _counter_name(tree: Node) -> str:
    """Return the name of the counter that another call is about: `NAME.frees(…)`, or `history.NAME(…)`; "" if there is none."""
    match tree:
        case Call("frees", Identifier(name)):
            return name
        case Call(name, Identifier(root)) if root == HISTORY:
            return name
    return ""


def _form(counter: CompiledCounter) -> str:
    """Return what to write for a counter."""
    by = counter.expressions.by
    key = "" if by is None else f"{by.expression.written.strip()}, "
    amount, limit = ("1", "5") if counter.aggregate == COUNT else ("params.amount", "1000.0")
    return f"write it like {HISTORY}.{counter.name}.{_FREES}({key}{amount}, {limit})"


def _split(text: str, opening: int) -> list[tuple[int, int]]:
    """Return the places of the arguments of the call whose parenthesis is at `opening`."""
    end = closing_offset(text, opening)
    places = []
    start = opening + 1
    depth = 0
    for token in tokens(text, opening + 1, end):
        depth += {"open": 1, "close": -1}.get(token.lastgroup or "", 0)
        if depth == 0 and token.group() == ",":
            places.append((start, token.start()))
            start = token.end()
    places.append((start, end))
    return places if text[opening + 1 : end].strip() else []


def _difference(limit: object, amount: object, scale: int) -> int | None:
    """Return a limit without an amount in the smallest unit, rounded down; None for other types and for values that are not finite."""
    if any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in (limit, amount)):
        return None
    try:
        return int(((Decimal(repr(limit)) - Decimal(repr(amount))) * Decimal(10) ** scale).to_integral_value(ROUND_FLOOR))
    except (ArithmeticError, ValueError):
        return None
