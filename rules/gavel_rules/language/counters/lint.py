"""Warnings about the counters of a valid document.

They concern windows in seconds, thresholds between two numbers, values that no event has, keys that are not those of the counter, fields
that a report may lack, and a `retry_after` unlike its rule. Each function yields the warnings of one kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Final, NamedTuple

from gavel.v1.execution_pb2 import ExecutionStatus

from gavel_rules.events.kinds import PRODUCER_TYPE_NAMES
from gavel_rules.language.cel.checker import CheckedExpression, Environment, ScopedExpression
from gavel_rules.language.cel.name_analysis import NameAnalysis
from gavel_rules.language.cel.syntax_tree import Call, Constant, Identifier, ListLiteral, Node, Select, children, walk
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.cel.vocabulary import DYN, HISTORY, INT, Field, ValueType
from gavel_rules.language.counters.canonical_tree import canonical_tree
from gavel_rules.language.counters.counter import OUTCOMES, CompiledCounter, direct_variable
from gavel_rules.language.counters.linear_form import ZERO, LinearForm, is_exact_divisor, linear_form
from gavel_rules.language.counters.retry_after import FreesCall
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.document.model_errors import suggest_value
from gavel_rules.language.document.models import CounterPart
from gavel_rules.language.document.schema_types import literals_at
from gavel_rules.language.report_expressions import STATUS_PREFIX
from gavel_rules.reason_codes import RESERVED_CODES

WINDOW_IN_SECONDS: Final = "window-in-seconds"
THRESHOLD_TOO_EXACT: Final = "threshold-too-exact"
LIMIT_DIFFERS: Final = "limit-differs"
COUNTER_DIFFERS: Final = "counter-differs"
KEY_DIFFERS: Final = "key-differs"
NEVER_EQUALS: Final = "never-equals"
UNGUARDED_RESULT: Final = "unguarded-result"

CounterWarning = tuple[Path, str, str, str]  # path, code, message, suggestion

_COMPARISONS: Final = frozenset(["_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_"])
# The comparisons of order, each with the one that its sides satisfy when they are exchanged.
_MIRRORED: Final = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}
# The texts that a name of counted events may have, where they are not open.
_STATUSES: Final = tuple(name.removeprefix(STATUS_PREFIX) for name, number in ExecutionStatus.items() if number > 1)
_TEXTS: Final = {"producer.type": tuple(PRODUCER_TYPE_NAMES.values())[1:], "execution.status": _STATUSES}
_PARAMS: Final = "params."
_RESULT: Final = "execution.result."
_PRODUCER: Final = "producer"
# The roots of variables whose values may mean anything.
_OPEN_ROOTS: Final = ("params", "value")
_KNOWN_MAX: Final = 12  # values in a suggestion
_REASON_CODE: Final = "reason_code"
_WITH_KEY: Final = 3  # the parts of a call of `frees` of a counter with groups
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000
_DAY_S: Final = 86_400


def find_windows_in_seconds(counters: Mapping[str, CounterPart]) -> Iterator[CounterWarning]:
    """Yield a warning for each window that is probably meant in seconds.

    Such a window is odd in milliseconds and round in seconds (86400 ms is 86.4 s, 86400 s is a day), or it is below a second.
    """
    for name, counter in counters.items():
        window = counter.window_ms
        if window is None or window % _MINUTE_MS == 0:
            continue
        is_round_in_seconds = window % 60 == 0 and (window % _SECOND_MS != 0 or window % _DAY_S == 0)
        if window >= _SECOND_MS and not is_round_in_seconds:
            continue
        message = f"the window of {name} is {window / _SECOND_MS:g} s"
        yield ("counters", name, "window_ms"), WINDOW_IN_SECONDS, message, f"if {window} s are meant, write {window * _SECOND_MS}"


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
    """Yield a warning if `retry_after` waits for another number of the counter than that at which the rule stops refusing."""
    read = f"{HISTORY}.{call.counter}"
    key, (amount, limit) = call.parts[:-2], [linear_form(canonical_tree(environment, part.tree)) for part in call.parts[-2:]]
    target = Call(read, None, tuple([part.tree for part in key]))
    # There is room while the counter plus `excess` is at most zero.
    excess = amount.plus(limit, -1)
    is_whole = environment.scope[HISTORY].fields[call.counter].type.element is INT
    step = Decimal(1) if is_whole else Decimal(1).scaleb(-counters[call.counter].scale)
    bounds = list(_bounds(canonical_tree(environment, condition.tree), target))
    if not bounds or any(_is_chosen(term) for term in excess.terms):
        return
    if all(bound.refuses_below for bound in bounds):
        hint = "remove retry_after: nobody can foresee when the counter grows"
        yield path, LIMIT_DIFFERS, f"retry_after foresees when {read} falls, but the rule refuses while it is too small", hint
        return
    if any(bound.form is None for bound in bounds):
        return
    alike = [bound for bound in bounds if bound.form is not None and bound.form.terms == excess.terms and not bound.refuses_below]
    # A sufficient bound refuses alone, so the counter has to pass all of them.
    strictest = max((bound for bound in alike if bound.is_sufficient), key=lambda bound: bound.highest(step), default=None)
    is_too_early = strictest is not None and strictest.highest(step) - excess.constant >= step
    if any(bound.admits(excess, step) for bound in alike) and not is_too_early:
        return
    message = f"the rule stops refusing at another number of {read} than that which retry_after waits for"
    near = strictest or next(iter(alike), None)
    if near is None:
        hint = f"its amount is what the condition adds to {read}, its limit what it compares the sum with"
        yield path, LIMIT_DIFFERS, message, hint
        return
    difference = excess.constant - near.highest(step)
    by = f"raise it by {_plain(difference)}" if difference > 0 else f"lower it by {_plain(-difference)}"
    hint = f"with this amount, its limit is {_plain(limit.constant + difference)}" if not limit.terms else f"its limit: {by}"
    yield path, LIMIT_DIFFERS, message, hint


class _Bound(NamedTuple):
    """A comparison of a counter: on its lower side the counter plus `form` is at most zero, or below zero if `is_strict`."""

    form: LinearForm | None  # None: the comparison is not linear
    is_strict: bool
    refuses_below: bool  # it refuses on its lower side
    is_sufficient: bool  # it refuses above, whatever else holds

    def admits(self, excess: LinearForm, step: Decimal) -> bool:
        """Return whether a counter that is a multiple of `step` passes this bound at the number at which `excess` is zero."""
        left = excess.constant - self._constant
        return 0 < left <= step if self.is_strict else 0 <= left < step

    def highest(self, step: Decimal) -> Decimal:
        """Return the constant of the bound that is not strict and that the counter passes at the same number."""
        if not self.is_strict:
            return self._constant
        return ((self._constant / step).to_integral_value(ROUND_FLOOR) + 1) * step

    @property
    def _constant(self) -> Decimal:
        return Decimal(0) if self.form is None else self.form.constant


class _Comparison(NamedTuple):
    """A comparison in a condition."""

    call: Call
    is_refusal: bool | None  # whether the rule matches where it is true, or where it is false; None: it depends
    is_sufficient: bool  # the rule matches then, whatever else holds


def _find_comparisons(node: Node, is_refusal: bool | None = True, is_sufficient: bool = True) -> Iterator[_Comparison]:
    """Yield every comparison of order in a part of a condition. The flags are those of the part: see `_Comparison`."""
    match node:
        case Call(function, None, (_, _)) if function in _MIRRORED:
            yield _Comparison(node, is_refusal, is_sufficient)
        case Call("!_", None, (operand,)):
            yield from _find_comparisons(operand, None if is_refusal is None else not is_refusal, is_sufficient)
        case Call("_||_" | "_&&_" as function, None, (left, right)):
            # Of a negated conjunction each operand is enough.
            is_enough = is_sufficient and is_refusal is (function == "_||_")
            yield from _find_comparisons(left, is_refusal, is_enough)
            yield from _find_comparisons(right, is_refusal, is_enough)
        case _:
            for child in children(node):
                yield from _find_comparisons(child, None, is_sufficient=False)


def _bounds(tree: Node, target: Node) -> Iterator[_Bound]:
    """Yield the bound of each comparison of a counter in a condition."""
    for call, is_refusal, is_sufficient in _find_comparisons(tree):
        if target not in walk(call):
            continue
        left, right = call.arguments
        form = linear_form(left).plus(linear_form(right), -1)
        sign = form.terms.get(target)
        if sign is None or not is_exact_divisor(sign) or any(target in walk(term) for term in form.terms if term != target):
            yield _Bound(None, is_strict=False, refuses_below=False, is_sufficient=False)
            continue
        form = ZERO.plus(form, 1 / sign)
        function = call.function if sign > 0 else _MIRRORED[call.function]
        others = {term: one for term, one in form.terms.items() if term != target}
        # The rule refuses where the comparison is `is_refusal`, and `<` is true on the lower side.
        refuses_below = is_refusal is not None and is_refusal is (function in ("_<_", "_<=_"))
        is_enough = is_sufficient and is_refusal is not None and not refuses_below
        yield _Bound(LinearForm(form.constant, others), function in ("_<_", "_>=_"), refuses_below, is_enough)


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
    """Yield a warning if a counter is never read with a key that its groups may have: see `_differ`.

    `reads` are the keys with their environments, in actions whose events the counter counts. A key that is more than one value is not
    compared, and neither is a fact, which may hold any of them.
    """
    by = counter.expressions.by
    name = by.expression.tree.name if by is not None and isinstance(by.expression.tree, Identifier) else ""
    places = [(direct_variable(environment.tree(key), environment), environment) for key, environment in reads] if name else []
    if places and all(key and _differ(name, key) for key, _ in places):
        read, environment = min(places, key=lambda place: place[0])
        message = f"{HISTORY}.{counter.name} is counted by {name}, and every rule reads it with another key, such as {read}"
        other = f", or read {HISTORY}.{counter.name}({name})" if name in environment.types else f"; no rule can read {name}"
        yield (*path, "by"), KEY_DIFFERS, message, f"write `by: {read}`{other}"


def _differ(name: str, key: str) -> bool:
    """Return whether two variables surely mean different things.

    Params may be what any other variable is, except a producer: "who was credited today may not send" reads a counter of subjects for a
    param, but an agent that names a producer could name another one.
    """
    roots = {name.partition(".")[0], key.partition(".")[0]}
    return name != key and (roots.isdisjoint(_OPEN_ROOTS) or (_PRODUCER in roots and len(roots) > 1))


def find_unknown_values(
    path: Path, counter: CompiledCounter, schemas: Iterable[Mapping[str, object]], reason_codes: Iterable[str]
) -> Iterator[CounterWarning]:
    """Yield a warning for each comparison of a counter's expressions with a value that no counted event has.

    `schemas` are those of the params of the counted actions, `reason_codes` those of the document.
    """
    known: dict[str, tuple[object, ...]] = {**_TEXTS, _REASON_CODE: tuple(sorted({*reason_codes, *RESERVED_CODES}))}
    if counter.source in OUTCOMES:
        known["outcome"] = (OUTCOMES[counter.source],)
    params = list(schemas)
    where, by, amount, settle = counter.expressions
    for key, scoped in (("where", where), ("by", by), (counter.aggregate, amount), ("settle", settle)):
        if scoped is None:
            continue
        compared = list(_comparisons_with_constants(scoped.expression))
        for name, value, is_written in compared:
            values = known.get(name)
            # A constant or variable of the document may be meant for other actions too.
            if name.startswith(_PARAMS) and is_written:
                values = literals_at(params, name.removeprefix(_PARAMS))
            if values is None or value in values:
                continue
            if name == _REASON_CODE:
                # Other rule sets on the action, and older versions of this one, give codes that are not known here.
                near = suggest_value(str(value), [str(one) for one in values]) if value else ""
                if near and not any(f" {other}?" in near for _, other, _ in compared):
                    yield (*path, key), NEVER_EQUALS, f'no rule gives the {name} "{value}", which {counter.name} compares', near
                continue
            message = f"no event that {counter.name} counts has {name} {json.dumps(value, ensure_ascii=False)}"
            yield (*path, key), NEVER_EQUALS, message, _suggest_known(value, values)


def find_unguarded_results(path: Path, counter: CompiledCounter, part: CounterPart) -> Iterator[CounterWarning]:
    """Yield a warning for each expression of a counter that reads a field of a report's result without testing that it is there.

    One report without the field leaves the group, or all groups, without a number.
    """
    where, by, amount, settle = counter.expressions
    guard = where.expression.text if where is not None else ""
    for key, scoped in (("where", where), ("by", by), (counter.aggregate, amount), ("settle", settle)):
        if scoped is None or "execution" not in scoped.environment.scope:
            continue
        names = _unguarded_results(scoped, "" if key in ("where", "settle") else guard)
        if not names:
            continue
        tests = " && ".join(f"has({name})" for name in names)
        groups = "any group" if key in ("where", "by") else "its group"
        message = f"a report may lack {' and '.join(names)}, and {HISTORY}.{counter.name} then gives no number for {groups}"
        if key == "settle":
            written = scoped.expression.written.strip()
            then = f"({written})" if "?" in written else written
            hint = f"write {tests} ? {then} : {getattr(part, counter.aggregate)}"
        elif key == "where":
            hint = f"write {tests} && …"
        else:
            hint = f"write `where: {tests}`" if where is None else f"add {tests} to `where`"
        yield (*path, key), UNGUARDED_RESULT, message, hint


def _unguarded_results(scoped: ScopedExpression, guard: str) -> tuple[str, ...]:
    """Return the fields of a report's result that an expression reads, and neither the expression nor `guard` tests."""
    environment, expression = scoped
    execution = environment.scope["execution"]
    result = Field(ValueType("map", DYN))  # whose entries are optional
    scope = {**environment.scope, "execution": ValueType("scope", fields={**execution.fields, "result": result})}

    def unguarded(text: str) -> Mapping[str, None]:
        analysis = NameAnalysis(scope, _ignore, version=environment.version)
        analysis.walk(environment.parse(text))
        return analysis.unguarded

    known = unguarded(guard) if guard else {}
    # Comments end with their line.
    names = unguarded(f"({guard}\n) ? ({expression.text}\n) : null" if guard else expression.text)
    texts = (guard, expression.text) if guard else (expression.text,)
    tested = {name for text in texts for name in _tested_by_name(environment.parse(text))}
    return tuple(name for name in names if name.startswith(_RESULT) and name not in known and name not in tested)


def _tested_by_name(tree: Node) -> Iterator[str]:
    """Yield each field of a result that an expression tests as `"name" in execution.result`."""
    for node in walk(tree):
        match node:
            case Call("@in", None, (Constant("string", str(name)), Select(Identifier("execution"), "result"))):
                yield f"{_RESULT}{name}"


def _ignore(offset: int, code: str, message: str, hint: str) -> None:
    """Drop a report."""


def _comparisons_with_constants(expression: CheckedExpression) -> Iterator[tuple[str, str | float, bool]]:
    """Yield each (variable, text or number) that an expression compares, and whether the expression itself has the constant."""
    for node in walk(expression.tree):
        match node:
            case Call("_==_" | "_!=_", None, (Identifier(name), other)) | Call("_==_" | "_!=_", None, (other, Identifier(name))):
                compared = (other,)
            case Call("@in", None, (Identifier(name), ListLiteral(compared))):
                pass
            case _:
                continue
        for one in compared:
            if isinstance(one, Constant) and isinstance(one.value, str | int | float) and not isinstance(one.value, bool):
                yield name, one.value, not any(start <= one.offset < end for start, end, _ in expression.variables)


def _suggest_known(value: object, known: Sequence[object]) -> str:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in known]
    near = suggest_value(value, texts) if isinstance(value, str) else ""
    more = f" and {len(texts) - _KNOWN_MAX} more" if len(texts) > _KNOWN_MAX else ""
    return near or f"known: {', '.join(texts[:_KNOWN_MAX])}{more}"


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


def _exponent(number: Decimal) -> int:
    """Return the power of ten of the last digit of a number that is not zero; 0 for infinities, which no counter reaches."""
    exponent = number.normalize().as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0
