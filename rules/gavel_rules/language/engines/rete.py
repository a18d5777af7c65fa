"""The Rete network, on durable-rules: a case in, the indexes of the matching rules out.

The C engine is exact within a narrow subset. Outside of it, it gives wrong answers, hangs or crashes. It therefore gets only documents and
rules that this module writes. The documents are flat, with generated field names (`n0`, `s1`, …), each field of one type. The rules are
single conjunctions of typed comparisons, with a test of `kind` first. Texts and numbers of authors and agents reach the engine only as
values of such fields. A disjunction becomes several rules of the engine.

The engine fails with more than 64 pending conditions. Rules are therefore grouped under conditions that always hold (`one >= -k`), and
the sum of branches on every path stays under a bound.

After an exception or an answer outside of the protocol a handle is dead: it is never used again, and the next case gets a new one. An
unexpected answer is never taken for "no rule matches".
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from gavel_rules.errors import GavelRulesError, NetworkFaultError
from gavel_rules.language.cel.vocabulary import PRESENCE_MAPS
from gavel_rules.language.engines.durable_rules import library as durable_rules_engine
from gavel_rules.language.engines.lowering import (
    FLAG,
    GUARD,
    LITERAL_LENGTH_MAX,
    NUMBER,
    TEXT,
    Atom,
    Conjunction,
    Formula,
    Slot,
    number_to_json,
    text_to_json,
)
from gavel_rules.values import INTEGER_MAX

CHAINS_MAX: Final = 1_000
SLOTS_MAX: Final = 200
HANDLE_FAILURES_MAX: Final = 16
FRACTION_CACHE_MAX: Final = 4_096

# The sum of branches on every path from the root stays below 60: 2 kinds, at most 17 supergroups, 12 groups in each, and 28 within a
# group. A conjunction has at most 24 conditions, and each further conjunction branches once more, so at least five fit into a group:
# 1,000 conjunctions need at most 200 groups, in at most 17 supergroups.
GROUPS_PER_SUPERGROUP: Final = 12
GROUP_BRANCHES_MAX: Final = 28
CHAINS_PER_GROUP_MAX: Final = 64  # the engine miscounts more than 255 rules that end on one condition

_HEAD: Final = '{"sid":"1","id":"c","kind":"case","one":1'
# Retracting needs `sid` and `id` alone: parsing the whole document again would take as long as matching it.
_ASSERTED: Final = '{"sid":"1","id":"c"}'
_WARM_UP: Final = '{"sid":"1","id":"c","kind":"warm","one":1}'
_SID: Final = "1"
_WARM_UP_RULE: Final = "__warm"
_OWN_FIELDS: Final = ("sid", "id", "$s", "$forward", "kind", "one")


class NetworkLimitError(GavelRulesError):
    """An action's rules pass a limit of the network, which the message names."""


class NetworkPlan(NamedTuple):
    """An action's network as data."""

    definition: str  # the engine's JSON
    slots: tuple[Slot, ...]
    rule_of: dict[str, int]  # the index of the action's rule, by the name of the engine's rule


def plan_network(formulas: Sequence[Formula]) -> NetworkPlan:
    """Return the network of an action's rules, given by falling priority. Raises NetworkLimitError."""
    chains = [(index, conjunction) for index, formula in enumerate(formulas) for conjunction in formula]
    if len(chains) > CHAINS_MAX:
        raise NetworkLimitError(f"its conditions have {len(chains)} alternatives in all; the limit is {CHAINS_MAX}")
    slots = tuple(dict.fromkeys(slot for _, conjunction in chains for slot in _slots_of(conjunction)))
    if len(slots) > SLOTS_MAX:
        raise NetworkLimitError(f"its conditions read {len(slots)} different values and sub-conditions; the limit is {SLOTS_MAX}")
    fields = {slot: f"{slot.kind}{number}" for number, slot in enumerate(slots)}
    _check_hashes(fields.values())
    groups = _groups([conjunction for _, conjunction in chains])
    rules = [f'"{_WARM_UP_RULE}":{{"pri":0,"all":[{{"m":{{"$and":[{{"kind":"warm"}}]}}}}]}}']
    rule_of: dict[str, int] = {}
    for number, ((index, conjunction), group) in enumerate(zip(chains, groups, strict=True)):
        name = f"r{number}"
        rule_of[name] = index
        conditions = [
            '{"kind":"case"}',
            *_group_conditions(group, groups[-1]),
            *(text for atom in conjunction for text in _conditions(atom, fields)),
        ]
        rules.append(f'"{name}":{{"pri":{number + 1},"all":[{{"m":{{"$and":[{",".join(conditions)}]}}}}]}}')
    return NetworkPlan(f"{{{','.join(rules)}}}", slots, rule_of)


class CaseWriter:
    """Writes the cases of one network as flat JSON objects of its slots."""

    def __init__(self, slots: Sequence[Slot], guards: Sequence[str]) -> None:
        """`guards` are the texts of the guards, in the order of their answers."""
        self._numbers: list[tuple[str, str]] = []
        self._texts: list[tuple[str, str]] = []
        # Each with the JSON of its field for true and for false.
        self._flags: list[tuple[str, str, str]] = []
        self._presences: list[tuple[str, list[str], str, str]] = []
        self._guards: list[tuple[int, str, str]] = []
        for number, slot in enumerate(slots):
            field = f',"{slot.kind}{number}":'
            either = f"{field}true", f"{field}false"
            if slot.kind == NUMBER:
                self._numbers.append((slot.name, field))
            elif slot.kind == TEXT:
                self._texts.append((slot.name, field))
            elif slot.kind == FLAG:
                self._flags.append((slot.name, *either))
            elif slot.kind == GUARD:
                self._guards.append((guards.index(slot.name), *either))
            else:
                root, *steps = slot.name.split(".")
                self._presences.append((PRESENCE_MAPS[root], steps, *either))

    def write(self, values: dict[str, object], guards: list[object]) -> str:
        """Return the document of a case. An absent value, and a guard that is not a bool, leave their slots out.

        `CaseReader` has converted the values to their slots' types, so None means an absent value.
        """
        parts = [_HEAD]
        for name, field in self._numbers:
            value = values.get(name)
            if value is not None:
                parts.append(field)
                parts.append(_format_number(value))  # type: ignore[arg-type]
        for name, field in self._texts:
            value = values.get(name)
            if value is not None:
                text = text_to_json(value)  # type: ignore[arg-type]
                parts.append(field)
                parts.append(text if len(text) <= LITERAL_LENGTH_MAX else _digest(text))
        for name, if_true, if_false in self._flags:
            value = values.get(name)
            if value is not None:
                parts.append(if_true if value is True else if_false)
        for presence_map, steps, if_true, if_false in self._presences:
            parts.append(if_true if _is_present(values[presence_map], steps) else if_false)
        for index, if_true, if_false in self._guards:
            answer = guards[index]
            if isinstance(answer, bool):
                parts.append(if_true if answer else if_false)
        parts.append("}")
        return "".join(parts)


# Fractions as JSON. Estimates and prices repeat, and formatting one takes several times as long as a lookup.
_fractions: Final[dict[float, str]] = {}
_WHOLE_MAX: Final = float(INTEGER_MAX)


def _format_number(number: int | float) -> str:
    """Return a finite number as JSON. The engine compares by value, so a float without a fraction may be written as an integer."""
    if isinstance(number, int):
        return str(number)
    if -_WHOLE_MAX <= number <= _WHOLE_MAX:
        whole = int(number)
        if float(whole) == number:
            return str(whole)
    text = _fractions.get(number)
    if text is None:
        text = number_to_json(number)
        if len(_fractions) >= FRACTION_CACHE_MAX:  # >=: two threads may fill it at once
            _fractions.clear()
        _fractions[number] = text
    return text


def _is_present(present: object, steps: list[str]) -> bool:
    """Report whether a path is in a presence map of `CaseReader`."""
    for step in steps:
        if not isinstance(present, dict) or step not in present:
            return False
        present = present[step]
    return True


@mypyc_attr(native_class=False)  # native classes cannot be weakly referenced
class Network:
    """One network of the engine. Not safe for two threads at once."""

    def __init__(self, name: str, network_plan: NetworkPlan) -> None:
        self._name = name
        self._definition = network_plan.definition
        self._rule_of = network_plan.rule_of
        self._handle = 0
        self._failures = 0
        self._release: Callable[[], object] | None = None

    def match(self, document: str) -> list[int]:
        """Return the indexes of the matching rules, each once, ascending. Raises NetworkFaultError if the engine fails."""
        handle = self._handle or self.start()
        try:
            matched = _cycle(self._name, self._rule_of, handle, document)
        except BaseException as error:
            self._abandon()
            if isinstance(error, durable_rules_engine.error | MemoryError):
                raise NetworkFaultError(f"the Rete engine failed on {self._name}: {error}") from error
            raise
        return matched

    def start(self) -> int:
        """Return the handle, started and warmed up. Raises NetworkFaultError."""
        if self._handle:
            return self._handle
        if self._failures >= HANDLE_FAILURES_MAX:
            raise NetworkFaultError(f"the Rete engine on {self._name} has failed {self._failures} times; restart the process")
        try:
            handle: int = durable_rules_engine.create_ruleset(self._name, self._definition)
            # The first firing sets memory that the engine would otherwise free uninitialized when the state is deleted.
            code, state = durable_rules_engine.assert_fact(handle, _WARM_UP)
            fired = durable_rules_engine.start_action_for_state(handle, state) if code == 0 else None
            if fired is None or not fired[1].startswith(f'{{"{_WARM_UP_RULE}"'):
                raise NetworkFaultError(f"the Rete engine on {self._name} did not warm up")
            if durable_rules_engine.complete_and_start_action(handle, state) is not None:
                raise NetworkFaultError(f"the Rete engine on {self._name} fired too much while it warmed up")
            if durable_rules_engine.retract_fact(handle, _WARM_UP)[0] != 0:
                raise NetworkFaultError(f"the Rete engine on {self._name} kept its warm-up")
        except (durable_rules_engine.error, MemoryError) as error:
            self._failures += 1
            raise NetworkFaultError(f"the Rete engine cannot be started on {self._name}: {error}") from error
        except BaseException:
            self._failures += 1
            raise
        self._handle = handle
        finalizer = weakref.finalize(self, _delete, handle)
        finalizer.atexit = False
        self._release = finalizer.detach
        return handle

    def _abandon(self) -> None:
        """Give the handle up without deleting it: the engine may free uninitialized memory."""
        self._failures += 1
        self._handle = 0
        if self._release is not None:
            self._release()
            self._release = None


def _cycle(name: str, rule_of: dict[str, int], handle: int, document: str) -> list[int]:
    """Return the indexes of the rules that match a document. After NetworkFaultError or an error of the engine the handle is dead."""
    engine = durable_rules_engine  # docs/performance.md#module-constants
    asserted: tuple[int, int] = engine.assert_fact(handle, document)
    code, state = asserted
    matched: list[int] = []
    if code == 0:
        started = engine.start_action_for_state(handle, state)
        if started is None:
            raise NetworkFaultError(f"the Rete engine on {name} reported a match, but not which rule")
        message: str | None = started[1]
        left = len(rule_of)
        while message is not None:
            if left == 0:
                raise NetworkFaultError(f"the Rete engine on {name} fired more rules than it has")
            left -= 1
            matched.append(rule_of[message[2 : message.find('"', 2)]])
            message = engine.complete_and_start_action(handle, state)
    elif code != 1:
        raise NetworkFaultError(f"the Rete engine on {name} answered {code} to a case")
    code = engine.retract_fact(handle, _ASSERTED)[0]
    if code != 0:
        raise NetworkFaultError(f"the Rete engine on {name} kept a case: {code}")
    return matched if len(matched) < 2 else sorted(set(matched))


def _delete(handle: int) -> None:
    durable_rules_engine.delete_state(handle, _SID)
    durable_rules_engine.delete_ruleset(handle)


def _slots_of(conjunction: Conjunction) -> list[Slot]:
    return [slot for atom in conjunction for slot in (atom.left, atom.right) if isinstance(slot, Slot)]


def _conditions(atom: Atom, fields: Mapping[Slot, str]) -> tuple[str, ...]:
    """Return an atom as the engine's conditions, one key per object."""
    left = fields[atom.left]
    if isinstance(atom.right, Slot):
        right = fields[atom.right]
        # Without the first condition, the engine would read a missing right operand uninitialized.
        return (f'{{"$ex":{{"{right}":1}}}}', f'{{"{atom.operator or "$eq"}":{{"{left}":{{"$m":"{right}"}}}}}}')
    if atom.operator:
        return (f'{{"{atom.operator}":{{"{left}":{atom.right}}}}}',)
    return (f'{{"{left}":{atom.right}}}',)


def _groups(conjunctions: Sequence[Conjunction]) -> list[int]:
    """Return the group of each conjunction: consecutive ones share a group within its limits."""
    groups: list[int] = []
    group = 0
    size = 0
    trie: dict[object, object] = {}
    for conjunction in conjunctions:
        _insert(trie, conjunction)
        size += 1
        if size > CHAINS_PER_GROUP_MAX or _branches(trie) > GROUP_BRANCHES_MAX:
            group += 1
            size = 1
            trie = {}
            _insert(trie, conjunction)
        groups.append(group)
    return groups


def _insert(trie: dict[object, object], conjunction: Conjunction) -> None:
    node = trie
    for atom in conjunction:
        for step in (atom,) if isinstance(atom.right, str) else (("$ex", atom.right), atom):
            below = node.setdefault(step, {})
            assert isinstance(below, dict)  # noqa: S101  # only dicts are put in
            node = below


def _branches(trie: object) -> int:
    """Return the greatest sum of child counts on any path."""
    if not isinstance(trie, dict) or not trie:
        return 0
    return len(trie) + max(_branches(below) for below in trie.values())


def _group_conditions(group: int, last_group: int) -> list[str]:
    """Return the conditions above a group, which always hold."""
    if last_group == 0:
        return []
    if last_group < GROUPS_PER_SUPERGROUP:
        return [f'{{"$gte":{{"one":{-group}}}}}']
    return [f'{{"$gte":{{"one":{-(group // GROUPS_PER_SUPERGROUP)}}}}}', f'{{"$gte":{{"one":{-group}}}}}']


def _check_hashes(fields: Sequence[str] | object) -> None:
    """Refuse fields with equal hashes: the engine knows a field only by 32 bits. Generated names are not expected to collide."""
    names = [*_OWN_FIELDS, *fields]  # type: ignore[misc]
    if len({_fnv1a(name) for name in names}) != len(names):
        raise NetworkLimitError("two field names have the same hash")


def _fnv1a(text: str) -> int:
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def _digest(text: str) -> str:
    """Return the JSON that stands for a string longer than any literal: equal for equal strings only.

    Strings are otherwise written in ASCII, so the § distinguishes it from all of them.
    """
    return f'"§{hashlib.sha256(text.encode()).hexdigest()}"'
