"""Warnings about counters: windows in seconds, thresholds between two numbers, values that no event has, keys that are
not those of the counter, and a `retry_after` unlike its rule.

Each yields (path, code, message, suggestion) for a warning about a valid document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_FLOOR, Decimal
from typing import Final, NamedTuple

from gavel.v1.execution_pb2 import ExecutionStatus

from gavel_rules.events.kinds import PRODUCER_TYPE_NAMES
from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.syntax_tree import Call, Constant, Identifier, ListLiteral, Node, walk
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.cel.vocabulary import HISTORY, INT
from gavel_rules.language.counters.canonical_tree import canonical_tree
from gavel_rules.language.counters.counter import OUTCOMES, CompiledCounter, direct_variable
from gavel_rules.language.counters.linear_form import ZERO, LinearForm, is_exact_divisor, linear_form
from gavel_rules.language.counters.retry_after import FreesCall
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.document.models import CounterPart
from gavel_rules.language.report_expressions import STATUS_PREFIX
from gavel_rules.reason_codes import RESERVED_CODES
from gavel_rules.text import DID_YOU_MEAN, suggestion

WINDOW_IN_SECONDS: Final = "window-in-seconds"
THRESHOLD_TOO_EXACT: Final = "threshold-too-exact"
LIMIT_DIFFERS: Final = "limit-differs"
COUNTER_DIFFERS: Final = "counter-differs"
KEY_DIFFERS: Final = "key-differs"
NEVER_EQUALS: Final = "never-equals"

CounterWarning = tuple[Path, str, str, str]

_COMPARISONS: Final = frozenset(["_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_"])
# The comparisons of which one side is greater, and each with its sides exchanged.
_MIRRORED: Final = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}
# The texts that a name of counted events may have, where they are not open.
_STATUSES: Final = tuple(name.removeprefix(STATUS_PREFIX) for name, number in ExecutionStatus.items() if number > 1)
_TEXTS: Final = {"producer.type": tuple(PRODUCER_TYPE_NAMES.values())[1:], "execution.status": _STATUSES}
_PRODUCER: Final = "producer."
_REASON_CODE: Final = "reason_code"
_WITH_KEY: Final = 3  # the parts of a call of `frees` of a counter with groups
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000
_DAY_S: Final = 86_400


def find_windows_in_seconds(counters: Mapping[str, CounterPart]) -> Iterator[CounterWarning]:
    """Yield a warning for each window that is odd in milliseconds and round in seconds: 86400 ms is 86.4 s, 86400 s is a day. A window
    below a second is odd.
    """
    for name, counter in counters.items():
        window = counter.window_ms
        if window is None or window % _MINUTE_MS == 0:
            continue
        is_round_in_seconds = window % 60 == 0 and (window % 1_000 != 0 or window % _DAY_S == 0)
        if window >= _SECOND_MS and not is_round_in_seconds:
            continue
        message = f"the window of {name} is {window / 1_000:g} s"
        yield ("counters", name, "window_ms"), WINDOW_IN_SECONDS, message, f"if {window} s are meant, write {window * 1_000}"


def find_exact_thresholds(
    path: Path, condition: CheckedExpression, environment: Environment, counters: Mapping[str, CounterPart]
) -> Iterator[CounterWarning]:
    """Yield a warning for each counter that a condition compares with a constant between two numbers that the counter can give."""
    names = {read.variable: read.counter for read in environment.counter_reads.all()}
    for node in walk(condition.tree):
        match node:
            case Call(function, None, (left, right)) if function in _COMPARISONS:
                form = linear_form(left).plus(linear_form(right), -1)
                if len(form.terms) != 1:
                    continue
                ((term, coefficient),) = form.terms.items()
                if not (isinstance(term, Identifier) and term.name in names and abs(coefficient) == 1):
                    continue
                name, threshold = names[term.name], -form.constant * coefficient
                is_whole = environment.types[term.name].kind == "int"
                scale = 0 if is_whole else counters[name].scale
                if -_exponent(threshold) > scale:
                    message = f"{HISTORY}.{name} is a multiple of {Decimal(1).scaleb(-scale):f}, so it never equals {_plain(threshold)}"
                    hint = "round the threshold" if is_whole else "round the threshold, or raise the counter's scale"
                    yield path, THRESHOLD_TOO_EXACT, message, hint


def find_other_limits(
    path: Path, condition: CheckedExpression, environment: Environment, counters: Mapping[str, CounterPart], call: FreesCall
) -> Iterator[CounterWarning]:
    """Yield a warning if `retry_after` foresees room at another number of the counter than that at which the condition changes."""
    read = f"{HISTORY}.{call.counter}"
    key, (amount, limit) = call.parts[:-2], [linear_form(canonical_tree(environment, part.tree)) for part in call.parts[-2:]]
    target = Call(read, None, tuple([part.tree for part in key]))
    # There is room while the counter plus `asked` is at most zero.
    asked = amount.plus(limit, -1)
    is_whole = environment.scope[HISTORY].fields[call.counter].type.element is INT
    step = Decimal(1) if is_whole else Decimal(1).scaleb(-counters[call.counter].scale)
    bounds = list(_bounds(canonical_tree(environment, condition.tree), target))
    if (
        not bounds
        or None in bounds
        or any(_is_chosen(term) for term in asked.terms)
        or any(bound.admits(asked, step) for bound in bounds if bound is not None)
    ):
        return
    message = f"retry_after does not foresee when the condition of the rule changes with {read}"
    near = next((bound for bound in bounds if bound is not None and bound.form.terms == asked.terms), None)
    if near is None:
        hint = f"its amount is what the condition adds to {read}, its limit what it compares the sum with"
        yield path, LIMIT_DIFFERS, message, hint
        return
    difference = asked.constant - near.highest(step)
    by = f"raise it by {_plain(difference)}" if difference > 0 else f"lower it by {_plain(-difference)}"
    hint = f"with this amount, its limit is {_plain(limit.constant + difference)}" if not limit.terms else f"its limit: {by}"
    yield path, LIMIT_DIFFERS, message, hint


class _Bound(NamedTuple):
    """A comparison of a counter: on its lower side the counter plus `form` is at most zero, or below zero if `is_strict`."""

    form: LinearForm
    is_strict: bool

    def admits(self, asked: LinearForm, step: Decimal) -> bool:
        """Return whether the counter, a multiple of `step`, passes this bound and the other one at the same number."""
        left = asked.constant - self.form.constant
        return asked.terms == self.form.terms and (0 < left <= step if self.is_strict else 0 <= left < step)

    def highest(self, step: Decimal) -> Decimal:
        """Return the constant of a bound that is not strict and changes at the same number."""
        if not self.is_strict:
            return self.form.constant
        return ((self.form.constant / step).to_integral_value(ROUND_FLOOR) + 1) * step


def _bounds(tree: Node, target: Node) -> Iterator[_Bound | None]:
    """Yield the bound of each comparison of a counter; None if it is not a linear one."""
    for node in walk(tree):
        match node:
            case Call(function, None, (left, right)) if function in _MIRRORED:
                form = linear_form(left).plus(linear_form(right), -1)
                sign = form.terms.get(target)
                if target not in walk(node):
                    continue
                if sign is None or not is_exact_divisor(sign) or any(target in walk(term) for term in form.terms if term != target):
                    yield None
                    continue
                form = ZERO.plus(form, 1 / sign)
                function = function if sign > 0 else _MIRRORED[function]
                others = {term: one for term, one in form.terms.items() if term != target}
                yield _Bound(LinearForm(form.constant, others), function in ("_<_", "_>=_"))


def _is_chosen(term: Node) -> bool:
    """Return whether a term is chosen by a condition, which is not analysed."""
    return any(isinstance(node, Call) and node.function == "_?_:_" for node in walk(term))


def find_other_counters(path: Path, condition: CheckedExpression, environment: Environment, call: FreesCall) -> Iterator[CounterWarning]:
    """Yield a warning if `retry_after` asks for room in a counter that the rule's condition does not read, or reads with another key."""
    variables = {variable for variable, _ in find_variables(condition.tree, environment.types)}
    reads = [read for read in environment.counter_reads.all() if read.variable in variables]
    keys = [read.key for read in reads if read.counter == call.counter]
    key = call.parts[0]
    if reads and not keys:
        named = ", ".join(f"{HISTORY}.{name}" for name in sorted({read.counter for read in reads}))
        message = f"retry_after asks for room in {HISTORY}.{call.counter}, which the rule does not read"
        yield path, COUNTER_DIFFERS, message, f"the rule reads {named}"
    elif keys and len(call.parts) == _WITH_KEY and key.tree not in [environment.tree(one) for one in keys]:
        message = f"retry_after asks for room in {HISTORY}.{call.counter}({key.text.strip()}), which the rule does not read"
        yield path, COUNTER_DIFFERS, message, f"the rule reads {HISTORY}.{call.counter}({keys[0]})"


def find_other_keys(path: Path, counter: CompiledCounter, reads: Iterable[tuple[str, Environment]]) -> Iterator[CounterWarning]:
    """Yield a warning if a counter of what each producer does is never read for a producer, or the other way round.

    `reads` are the keys with their environments, in actions whose events the counter counts. A key that is more than one value is not
    compared. Subject and params may be two roles of one thing: "who was credited today may not send".
    """
    by = counter.expressions.by
    name = "" if by is None else direct_variable(by.expression.tree, by.environment)
    keys = {direct_variable(environment.tree(key), environment) for key, environment in reads} if name else set()
    if keys and "" not in keys and all(name.startswith(_PRODUCER) != key.startswith(_PRODUCER) for key in keys):
        read = sorted(keys)[0]
        message = f"{HISTORY}.{counter.name} is counted by {name}, and every rule reads it with another key, such as {read}"
        yield (*path, "by"), KEY_DIFFERS, message, f"write `by: {read}`, or read {HISTORY}.{counter.name}({name})"


def find_unknown_texts(path: Path, counter: CompiledCounter, reason_codes: Iterable[str]) -> Iterator[CounterWarning]:
    """Yield a warning for each comparison of `where` with a text that no counted event has. `reason_codes` are those of the document."""
    where = counter.expressions.where
    if where is None:
        return
    texts = {**_TEXTS, _REASON_CODE: tuple({*reason_codes, *RESERVED_CODES})}
    if counter.source in OUTCOMES:
        texts["outcome"] = (OUTCOMES[counter.source],)
    for node in walk(where.expression.tree):
        match node:
            case Call("_==_" | "_!=_", None, (Identifier(name), other)) | Call("_==_" | "_!=_", None, (other, Identifier(name))):
                compared = (other,)
            case Call("@in", None, (Identifier(name), ListLiteral(compared))):
                pass
            case _:
                continue
        for one in compared:
            if name in texts and isinstance(one, Constant) and isinstance(one.value, str) and one.value not in texts[name]:
                message = f'no event that {counter.name} counts has {name} "{one.value}"'
                hint = suggestion(one.value, sorted(texts[name]), 0)
                # Another rule set on the action may give a reason code that is unlike all known ones.
                if name != _REASON_CODE or (one.value and hint.startswith(DID_YOU_MEAN)):
                    yield (*path, "where"), NEVER_EQUALS, message, hint


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


def _exponent(number: Decimal) -> int:
    """Return the power of ten of the last digit of a number that is not zero; 0 for infinities, which no counter reaches."""
    exponent = number.normalize().as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0
