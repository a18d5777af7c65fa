"""What is probably not meant about counters: windows in seconds, thresholds between two numbers, and a `retry_after` unlike its rule.

Each yields (path, code, message, suggestion) for a warning about a valid document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.syntax_tree import Call, Constant, Node, walk
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.cel.vocabulary import HISTORY
from gavel_rules.language.counters.retry_after import FreesCall
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.document.models import CounterPart

WINDOW_IN_SECONDS: Final = "window-in-seconds"
THRESHOLD_TOO_EXACT: Final = "threshold-too-exact"
LIMIT_DIFFERS: Final = "limit-differs"
COUNTER_DIFFERS: Final = "counter-differs"

UnitWarning = tuple[Path, str, str, str]

_COMPARISONS: Final = frozenset(["_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_"])
_WITH_KEY: Final = 3  # the parts of a call of `frees` of a counter with groups
_MINUTE_MS: Final = 60_000
_DAY_S: Final = 86_400


def find_windows_in_seconds(counters: Mapping[str, CounterPart]) -> Iterator[UnitWarning]:
    """Yield a warning for each window that is odd in milliseconds and round in seconds: 86400 ms is 86.4 s, 86400 s is a day."""
    for name, counter in counters.items():
        window = counter.window_ms
        if window is None or window % _MINUTE_MS == 0 or window % 60 != 0 or (window % 1_000 == 0 and window % _DAY_S != 0):
            continue
        message = f"the window of {name} is {window / 1_000:g} s"
        yield ("counters", name, "window_ms"), WINDOW_IN_SECONDS, message, f"if {window} s are meant, write {window * 1_000}"


def find_exact_thresholds(
    path: Path, condition: CheckedExpression, environment: Environment, counters: Mapping[str, CounterPart]
) -> Iterator[UnitWarning]:
    """Yield a warning for each counter that a condition compares with a constant between two numbers that the counter can give."""
    names = {read.variable: read.counter for read in environment.counter_reads.all()}
    for node in walk(condition.tree):
        match node:
            case Call(function, None, (left, right)) if function in _COMPARISONS:
                for read, other in ((left, right), (right, left)):
                    for variable, type_ in find_variables(read, environment.types):
                        threshold = _number(other)
                        if variable not in names or threshold is None:
                            continue
                        name = names[variable]
                        step = Decimal(1) if type_.kind == "int" else Decimal(1).scaleb(-counters[name].scale)
                        if Decimal(repr(threshold)) % step != 0:
                            message = f"{HISTORY}.{name} is a multiple of {step:f}, so it never equals {threshold!r}"
                            yield path, THRESHOLD_TOO_EXACT, message, "round the threshold" + _or_raise_scale(type_.kind)


def find_other_limits(path: Path, condition: CheckedExpression, call: FreesCall) -> Iterator[UnitWarning]:
    """Yield a warning if the limit of `retry_after` is a constant that the rule's condition does not have."""
    limit = _number(call.parts[-1].tree)
    constants = {number for node in walk(condition.tree) if (number := _number(node)) is not None}
    if limit is not None and constants and limit not in constants:
        message = f"the limit of retry_after is {limit:g}, which the rule does not compare with"
        yield path, LIMIT_DIFFERS, message, "write the limit of the rule's condition"


def find_other_counters(path: Path, condition: CheckedExpression, environment: Environment, call: FreesCall) -> Iterator[UnitWarning]:
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


def _number(node: Node) -> float | None:
    """Return the value of a number that is written out; None for any other node."""
    if isinstance(node, Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    return None


def _or_raise_scale(kind: str) -> str:
    return ", or raise the counter's scale" if kind == "double" else ""
