"""Random cases for a vocabulary, close to the literals of its conditions: each threshold from both sides, by the smallest step.

A seeded `random.Random` draws them instead of hypothesis: a document gets a hundred cases, and a failing one is reported whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final, NamedTuple

from gavel_rules.language.engines.case import Case
from gavel_rules.values import INTEGER_MAX

from tests.fuzz.grammar.times import TIMES
from tests.fuzz.meanings import EPOCH, HISTORY
from tests.fuzz.vocabulary import DOUBLE, DOUBLES, KEYS, LONG_WORDS, NUMBERS, SUBJECTS_MAX, WORDS, Counter, Type, Vocabulary

# Keys that no schema names. The C engine would mistake some of them for fields that a rule reads.
STRANGE: Final[Mapping[str, Any]] = {
    "$forward": 1.0,
    "sid": "9",
    "$s": 1.0,
    "params.amount": 1.0,
    "proposal.c1ceajyv": 1.0,
    "proposal.ckaoagwb": 1.0,
    "proposal.atscahwx": "delivered",
    "b0": True,
}


STATUSES: Final = ("SUCCESS", "FAILED", "PARTIAL", "TIMEOUT", "ABORTED")


class Sample(NamedTuple):
    """A case as it comes off the wire (`case.params` are not typed yet), and the value of every name in it.

    `values` has the names of the report of an execution too. `case` has nothing from counters yet.
    """

    case: Case
    values: Mapping[str, Any]


class Sampler:
    """Draws cases that come close to some literals."""

    def __init__(self, vocabulary: Vocabulary, literals: Collection[int | float | str], random: Random) -> None:
        self._vocabulary = vocabulary
        self._random = random
        numbers = sorted(float(of) for of in literals if not isinstance(of, str))
        # Values near the literals come more often than those that confuse engines in general.
        self._ints = [*NUMBERS, *(step for of in numbers for step in _ints_near(of) * 3)]
        self._doubles = [*DOUBLES, *(step for of in numbers for step in _doubles_near(of) * 3)]
        # Admission refuses integers beyond 2^53 in params and facts; a proposal's own estimates may be any double.
        self._admitted = [of for of in self._doubles if abs(of) <= INTEGER_MAX]
        words = sorted(of for of in literals if isinstance(of, str))
        self._words = [*WORDS, *words * 6, *(text for of in words for text in (f"{of}a", of[:-1], f"b{of}"))]
        declared = {name for name, _, _ in vocabulary.params.fields}
        self._strange = {name: value for name, value in STRANGE.items() if name not in declared}
        self._times = [datetime.fromisoformat(of) for of in (*TIMES, *(of for of in words if of in TIMES))]

    def samples(self, count: int) -> Iterator[Sample]:
        """Yield `count` cases."""
        for _ in range(count):
            yield self._sample()

    def _sample(self) -> Sample:
        pick = self._random.choice
        params = self._value(self._vocabulary.params)
        drawn = {name: self._value(type_) for name, type_, required in self._vocabulary.facts if required or self._random.random() < 0.6}
        many = {name: drawn.get(name, [])[:SUBJECTS_MAX] for name in self._vocabulary.many}
        facts = {**drawn, **many}
        now = pick(self._times) + timedelta(milliseconds=pick([0, -1, 1, 999, self._random.randrange(10**9)]))
        subject = f"{pick(self._words).replace('/', '')}/{pick(self._words)}"
        case = Case(
            params=self._wire(params),
            facts={name: self._wire(value) for name, value in facts.items()},
            risk=pick(self._doubles),
            cost=pick(self._doubles),
            confidence=pick(self._doubles),
            priority=pick(self._ints),
            expected_outcome=pick(self._words),
            subject=subject,
            producer_type=pick(self._words),
            producer_id=pick(self._words),
            producer_version=pick(self._words),
            producer_groups=tuple(sorted({pick(self._words) for _ in range(pick((0, 1, 3)))})),
            evidence_count=pick(self._ints),
            evidence_worst_trust=pick(self._ints),
            evidence_oldest_age_ms=pick(self._ints),
            consecutive_rejections=pick(self._ints),
            now_ms=(now - EPOCH) // timedelta(milliseconds=1),
        )
        if self._random.random() < 0.3:
            case.params.update(self._strange)
        return Sample(case, {**_values(case, params, facts), **self._report(), HISTORY: self._numbers()})

    def _report(self) -> dict[str, Any]:
        """Return what derivations read of the report of an execution and of its decision."""
        pick = self._random.choice
        drawn = {"amount": pick(self._admitted), "note": pick(self._words), "done": pick((True, False))}
        result = {name: value for name, value in drawn.items() if self._random.random() < 0.7}
        texts = ("execution_id", "reason_code", "error.code", "error.message")
        of_decision = ("decision_id", "proposal_id", "action_type", "policy_id", "rule_id", "conflict_key")
        values = {
            "execution.status": pick(STATUSES),
            "execution.attempt": pick((1, 2, 9, 100)),
            "execution.completed_steps": [pick(self._words) for _ in range(pick((0, 1, 3)))],
            "execution.result": result,
            "decision.policy_version": pick((1, 2, 9, 2**31)),
            **{f"execution.{name}": pick(self._words) for name in texts},
            **{f"decision.{name}": pick(self._words) for name in of_decision},
        }
        _flatten("execution.result", result, values)
        return values

    def _numbers(self) -> Callable[[Counter, str], int | float]:
        """Return what the counters give: the same number for the same key."""
        seed = self._random.random()

        def give(counter: Counter, key: str) -> int | float:
            numbers = self._admitted if counter.type is DOUBLE else self._ints
            return Random(f"{seed} {counter.name} {key}").choice(numbers)

        return give

    def _value(self, type_: Type) -> Any:
        pick = self._random.choice
        if type_.literals:
            return pick(type_.literals)
        match type_.kind:
            case "bool":
                return pick((True, False))
            case "int":
                return pick(self._ints)
            case "double":
                return pick(self._admitted)
            case "string":
                return pick(LONG_WORDS) if self._random.random() < 0.02 else pick(self._words)
            case "list":
                assert type_.element is not None
                return [self._value(type_.element) for _ in range(pick((0, 1, 2, 3)))]
            case "map":
                assert type_.element is not None
                return {key: self._value(type_.element) for key in KEYS if self._random.random() < 0.5}
        return {name: self._value(of) for name, of, required in type_.fields if required or self._random.random() < 0.6}

    def _wire(self, value: Any) -> Any:
        """Return a value as JSON may carry it: half of the integers as floats."""
        if isinstance(value, dict):
            return {name: self._wire(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._wire(item) for item in value]
        if isinstance(value, int) and not isinstance(value, bool) and self._random.random() < 0.5:
            return float(value)
        return value


def _doubles_near(number: float) -> list[float]:
    return [number, number, math.nextafter(number, math.inf), math.nextafter(number, -math.inf)]


def _ints_near(number: float) -> list[int]:
    return [near for step in (-1, 0, 0, 1) if -INTEGER_MAX <= (near := int(number) + step) <= INTEGER_MAX] if abs(number) < 1e17 else []


def _values(case: Case, params: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    values = {
        "proposal.risk": case.risk,
        "proposal.cost": case.cost,
        "proposal.confidence": case.confidence,
        "proposal.priority": case.priority,
        "proposal.expected_outcome": case.expected_outcome,
        "subject": case.subject,
        "subject.type": case.subject.partition("/")[0],
        "subject.id": case.subject.partition("/")[2],
        "producer.type": case.producer_type,
        "producer.id": case.producer_id,
        "producer.version": case.producer_version,
        "producer.groups": list(case.producer_groups),
        "evidence.count": case.evidence_count,
        "evidence.worst_trust": case.evidence_worst_trust,
        "evidence.oldest_age_ms": case.evidence_oldest_age_ms,
        "trace.consecutive_rejections": case.consecutive_rejections,
        "now": EPOCH + timedelta(milliseconds=case.now_ms),
    }
    _flatten("params", params, values)
    _flatten("facts", facts, values)
    return values


def _flatten(prefix: str, value: Mapping[str, Any], values: dict[str, Any]) -> None:
    for name, item in value.items():
        values[f"{prefix}.{name}"] = item
        if isinstance(item, dict):
            _flatten(f"{prefix}.{name}", item, values)
