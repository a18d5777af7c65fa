"""A counter of a rule set, compiled: what it reads of one event.

A counter is a pure function of events: whether an event counts, in which group, with which amount, and until when. `gavel_rules.state`
keeps the entries. Amounts of money are added as whole numbers of the counter's smallest unit (`scale` decimal places), never as floats,
whose sum would depend on their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Final, NamedTuple

from gavel_rules.errors import CaseError
from gavel_rules.language.cel.checker import Environment, ScopedExpression
from gavel_rules.language.cel.syntax_tree import Identifier, Node
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.cel.vocabulary import ValueType
from gavel_rules.language.cel.zones import Zone
from gavel_rules.language.document.models import CounterPart
from gavel_rules.language.document.params_schema import ParamsSchema
from gavel_rules.language.engines.case import Case, CaseReader, Proposer, bare_case, convert
from gavel_rules.language.engines.cel import Program, condition_source

# The greatest whole number that a group may reach, in its smallest unit: a double holds it exactly.
TOTAL_MAX: Final = 2**53
GROUP_LENGTH_MAX: Final = 256
# The time at which an entry lapses that counts until its decision ends.
NEVER_MS: Final = 2**62
# Longer than every unit of a calendar: the longest is a month in which the clocks are set back.
LONGEST_UNIT_MS: Final = 32 * 86_400_000
_FIFTEEN_DIGITS: Final = 10**15

# The events that a counter may count: its `of`.
APPROVALS: Final = "approvals"
REJECTIONS: Final = "rejections"
PROPOSALS: Final = "proposals"
EXECUTIONS: Final = "executions"
FACTS: Final = "facts"
OBSERVATIONS: Final = "observations"
VALUE_SOURCES: Final = (FACTS, OBSERVATIONS)
# The outcome of the decisions of a source, as expressions read it.
OUTCOMES: Final = {APPROVALS: "APPROVED", REJECTIONS: "REJECTED"}

COUNT: Final = "count"
SUM: Final = "sum"
DISTINCT: Final = "distinct"
LAST: Final = "last"
MIN: Final = "min"
MAX: Final = "max"
# The keys of a counter that say what is added up; without one, events are counted.
AGGREGATES: Final = (SUM, DISTINCT, MIN, MAX, LAST)

_MINUTE_MS: Final = 60_000
_CASE_ROOTS: Final = ("params", "subject", "producer")
_SCALAR_KINDS: Final = ("string", "int", "double", "bool")


class CountedEvent:
    """An event as a counter's expressions read it, and its amounts once they are known."""

    def __init__(
        self,
        action_type: str,  # "" for facts and observations
        params: dict[str, object],
        subject: str,
        producer_type: str,
        producer_id: str,
        producer_version: str,
        variables: Mapping[str, object],  # trace.id, value, outcome, reason_code and execution, by variable
        *,
        as_declared: bool = True,  # see Semantics.reads_as_declared
    ) -> None:
        self.action_type: Final = action_type
        self.params: Final = params
        self.subject: Final = subject
        self.producer_type: Final = producer_type
        self.producer_id: Final = producer_id
        self.producer_version: Final = producer_version
        self.variables: Final = variables
        self.as_declared: Final = as_declared
        self._case: Case | None = None
        self._schema: ParamsSchema | None = None  # of `_case`
        # By `CompiledCounter.measure`, for counters that differ only in their windows and limits. _NOT_COUNTED: the event does not count.
        self.amounts: Final[dict[str, Amount | CounterError]] = {}

    def case(self, schema: ParamsSchema | None) -> Case:
        """Return the event as a case. `schema` is that of its action, None without one."""
        if self._case is None or self._schema is not schema:
            params = self.params if schema is None else schema.typed(self.params)
            proposer = Proposer(self.producer_type, self.producer_id, self.producer_version, ())
            self._case, self._schema = bare_case(params, {}, self.subject, proposer), schema
        return self._case


class Amount:
    """The amount with which an event counts in a group: docs/performance.md#plain-classes."""

    def __init__(self, group: str, value: int | str) -> None:
        self.group: Final = group
        self.value: Final[int | str] = value  # 1, a whole number of the counter's smallest unit, or a text


_NOT_COUNTED: Final = Amount("", 0)


class CounterError(CaseError):
    """An event cannot be counted: an expression of the counter fails, or its value does not fit into a group.

    `group` is the group that lacks the event; None: it may be any.
    """

    def __init__(self, message: str, group: str | None = None) -> None:
        super().__init__(message)
        self.group: Final = group


class _Expression:
    """One expression over counted events."""

    def __init__(self, scoped: ScopedExpression) -> None:
        environment, expression = scoped
        variables = dict(find_variables(expression.tree, environment.types))
        self._reader = CaseReader(
            [(name, type_) for name, type_ in variables.items() if name.partition(".")[0] in _CASE_ROOTS],
            find_presence_tests(expression.tree),
        )
        self._others = [name for name in sorted(variables) if name.partition(".")[0] not in _CASE_ROOTS]
        self._integers = frozenset([name for name in self._others if variables[name].kind == "int"])
        # Most keys and amounts are one value of the case, which needs no evaluation: that takes 10 µs and more. A param needs no case.
        self._variable: Final = direct_variable(expression.tree, environment)
        root, _, param = self._variable.partition(".")
        self._param: Final = param if root == "params" and "." not in param else ""
        self._kind: Final = environment.types[self._variable].kind if self._param else ""
        self._program = Program(environment, [condition_source(expression.source)])

    def evaluate(self, event: CountedEvent, schema: ParamsSchema | None) -> object:
        """Return the value for an event, whose params have a schema or none; None if the expression fails."""
        try:
            if self._param:
                value = event.params.get(self._param)
                typed = value if schema is None else schema.typed_param(self._param, value)
                return None if typed is None else convert(typed, self._kind, self._variable)
            values = self._reader.read(event.case(schema))
            if self._variable:
                return values.get(self._variable)
            variables = event.variables
            for name in self._others:
                if name in variables:
                    other = variables[name]
                    # Numbers of events are floats; CEL takes none for an int.
                    values[name] = convert(other, "int", name) if event.as_declared and name in self._integers else other
        except CaseError:
            return None  # params of another version of the schema, or a fact of another type than the document declares
        answers = self._program.evaluate_all(values)
        return None if answers is None else answers[0]


def direct_variable(tree: Node, environment: Environment) -> str:
    """Return the variable whose value an expression is, if it is just one of a case's params, subject or producer; "" otherwise."""
    if isinstance(tree, Identifier) and tree.name.partition(".")[0] in _CASE_ROOTS:
        type_ = environment.types.get(tree.name)
        return tree.name if type_ is not None and type_.kind in _SCALAR_KINDS else ""
    return ""


class CounterExpressions(NamedTuple):
    """The checked expressions of a counter; None for a key that its document does not have."""

    where: ScopedExpression | None
    by: ScopedExpression | None
    amount: ScopedExpression | None
    settle: ScopedExpression | None


class CompiledCounter:
    """A counter, compiled. Counters with equal digests count alike, whichever rule set declares them."""

    def __init__(
        self,
        name: str,
        digest: str,
        measure: str,
        part: CounterPart,
        expressions: CounterExpressions,
        schemas: Mapping[str, ParamsSchema],  # of the actions whose events it counts
        value_type: ValueType,  # of what `history.NAME` gives
        zone: Zone | None,  # by which the units of its calendar begin
    ) -> None:
        self.name: Final = name
        self.digest: Final = digest
        self.measure: Final = measure  # digest of all that determines group and amount of an event
        self.source: Final = part.of
        self.actions: Final = frozenset(schemas)
        self.fact_keys: Final = frozenset(part.fact or ())
        self.aggregate: Final = aggregate_of(part)
        self.is_additive: Final = self.aggregate in (COUNT, SUM)
        self.is_whole: Final = value_type.kind == "int"
        self.scale: Final = 0 if self.is_whole else part.scale
        self._units: Final[int] = 10**self.scale  # smallest units in 1
        self.window_ms: Final = part.window_ms or 0
        self.is_reserved: Final = part.keep == "reserved"
        self.has_groups: Final = part.by is not None
        self.groups_max: Final = part.groups_max
        self.entries_max: Final = part.entries_max
        self.distinct_max: Final = part.distinct_max
        self._schemas: Final = dict(schemas)
        self._calendar_unit: Final = part.calendar.unit if part.calendar is not None else ""
        self._zone: Final = zone
        self.expressions: Final = expressions
        self._where: Final = _compile(expressions.where)
        self._by: Final = _compile(expressions.by)
        self._amount: Final = _compile(expressions.amount)
        self._settle: Final = _compile(expressions.settle)

    def amount_of(self, event: CountedEvent) -> Amount | None:
        """Return the group and the amount of an event, None if it does not count. Raises CounterError.

        A group whose key is longer than GROUP_LENGTH_MAX has no entries, and nothing can be read from it.
        """
        amount = event.amounts.get(self.measure)
        if amount is None:
            try:
                amount = self._measure(event)
            except CounterError as error:
                amount = error
            event.amounts[self.measure] = amount
        if isinstance(amount, CounterError):
            raise amount
        return None if amount is _NOT_COUNTED else amount

    def _measure(self, event: CountedEvent) -> Amount:
        schema = self._schemas.get(event.action_type)
        if self._where is not None:
            counts = self._where.evaluate(event, schema)
            if not isinstance(counts, bool):
                raise CounterError(f"`where` of counter {self.name} fails for the event")
            if not counts:
                return _NOT_COUNTED
        group: object = "" if self._by is None else self._by.evaluate(event, schema)
        if not isinstance(group, str):
            raise CounterError(f"`by` of counter {self.name} gives no text")
        if len(group) > GROUP_LENGTH_MAX:
            return _NOT_COUNTED
        return Amount(group, 1 if self._amount is None else self._scaled(self._amount.evaluate(event, schema), group))

    def params_match(self, event: CountedEvent) -> bool:
        """Return whether the params of an event match the schema of its action, which the counter's expressions rely on."""
        schema = self._schemas.get(event.action_type)
        return schema is None or not schema.violations(event.params)

    def settled_amount(self, event: CountedEvent, approved: int | str) -> int | str:
        """Return the amount of a reserved approval after its report. Raises CounterError."""
        return approved if self._settle is None else self._scaled(self._settle.evaluate(event, self._schemas.get(event.action_type)), None)

    def lapses_at_ms(self, recorded_at_ms: int) -> int:
        """Return the time from which an event recorded at `recorded_at_ms` no longer counts. Raises CounterError outside of its zone."""
        if not self._calendar_unit:
            return recorded_at_ms + self.window_ms
        end_ms = _unit_end_ms(recorded_at_ms, self._calendar_unit, self._zone)
        if end_ms is None:
            raise CounterError(f"the zone of counter {self.name} has no offset for the end of the {self._calendar_unit}")
        return end_ms

    def fault_until_ms(self, recorded_at_ms: int) -> int:
        """Return the time until which the counter gives no number if it lacks an event recorded at `recorded_at_ms`."""
        try:
            return self.lapses_at_ms(recorded_at_ms)
        except CounterError:
            return recorded_at_ms + LONGEST_UNIT_MS

    def from_units(self, value: int) -> float | int:
        """Return a whole number of the smallest unit as expressions read it."""
        return value if self.is_whole else value / self._units

    def _scaled(self, value: object, group: str | None) -> int | str:
        if self.aggregate == DISTINCT:
            if isinstance(value, str) and len(value) <= GROUP_LENGTH_MAX:
                return value
        elif isinstance(value, int) and not isinstance(value, bool):
            if abs(value) * self._units <= TOTAL_MAX:
                return value * self._units
        elif isinstance(value, float) and abs(value) * self._units <= TOTAL_MAX:
            return to_units(value, self._units)
        raise CounterError(f"`{self.aggregate}` of counter {self.name} gives a value that cannot be counted", group)


def to_units(value: float, units: int) -> int:
    """Return a number as a whole number of the smallest unit, of which 1 has `units`: a power of ten.

    The number is its shortest decimal text: 0.1 is one tenth. It is rounded up, so that a budget is never overrun by a fraction.
    """
    nearest = int(value * units + (0.5 if value >= 0.0 else -0.5))
    # Only one decimal of at most 15 digits is nearest to a double. If the double is that of `nearest`, its shortest text is it too.
    if -_FIFTEEN_DIGITS < nearest < _FIFTEEN_DIGITS and nearest / units == value:
        return nearest
    return int((Decimal(repr(value)) * units).to_integral_value(ROUND_CEILING))


def aggregate_of(part: CounterPart) -> str:
    """Return the aggregate of a counter: "count", or one of AGGREGATES."""
    return next((key for key in AGGREGATES if getattr(part, key, None) is not None), COUNT)


def _compile(scoped: ScopedExpression | None) -> _Expression | None:
    return None if scoped is None else _Expression(scoped)


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # local times have no zone
_MILLISECOND: Final = timedelta(milliseconds=1)


def _unit_end_ms(at_ms: int, unit: str, zone: Zone | None) -> int | None:
    """Return the end of the unit of the calendar that a time is in; None outside of the zone. Without a zone, units are those of UTC."""
    offset = 0 if zone is None else zone.offset_minutes(at_ms)
    if offset is None:
        return None
    local_end_ms: int = (_unit_end(_EPOCH + timedelta(milliseconds=at_ms, minutes=offset), unit) - _EPOCH) // _MILLISECOND
    end_ms = local_end_ms - offset * _MINUTE_MS
    if zone is None:
        return end_ms
    offset_then = zone.offset_minutes(end_ms)
    if offset_then is None:
        return None
    changed_end_ms = local_end_ms - offset_then * _MINUTE_MS
    offset_at_end = zone.offset_minutes(changed_end_ms)
    if offset_at_end is None:
        return None
    # If the clocks skip the end, the unit ends at their change.
    return changed_end_ms if offset_at_end == offset_then else end_ms


def _unit_end(local: datetime, unit: str) -> datetime:
    """Return the end of the unit of the calendar that a local time is in."""
    if unit == "hour":
        return local.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    day = local.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "day":
        return day + timedelta(days=1)
    if unit == "week":
        return day + timedelta(days=7 - day.weekday())
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1)
