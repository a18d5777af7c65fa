"""The reads of counters by the expressions of an action, and their limits."""

from __future__ import annotations

import pytest
from cel_expr_python import cel
from gavel_rules.language.cel.counter_reads import KEYS_PER_COUNTER_MAX, READS_PER_ACTION_MAX, CounterReads, ReadPlace
from gavel_rules.language.document.models import COUNTERS_MAX


def add(reads: CounterReads, counter: str, key: str, kind: str = "int") -> bool:
    """Read a counter with a key; return whether the limits allow it."""
    text = f"history.{counter}({key})"
    return reads.add(text, ReadPlace(counter, 0, text.index("(")), kind) is not None


def test_a_counter_is_read_with_few_keys() -> None:
    """A counter is read with at most KEYS_PER_COUNTER_MAX keys; a key that is known may be read again."""
    reads = CounterReads()
    answers = [add(reads, "spent", f"'{number}'") for number in range(KEYS_PER_COUNTER_MAX + 1)]
    assert [True] * KEYS_PER_COUNTER_MAX + [False] == answers
    assert (True, True) == (add(reads, "spent", "'0'"), add(reads, "other", "'0'"))


def test_an_action_reads_counters_with_few_keys() -> None:
    """All counters together are read with at most READS_PER_ACTION_MAX keys."""
    reads = CounterReads()
    answers = [add(reads, f"c{counter}", f"'{key}'") for counter in range(COUNTERS_MAX) for key in range(KEYS_PER_COUNTER_MAX)]
    assert [True] * READS_PER_ACTION_MAX == answers[:READS_PER_ACTION_MAX]
    assert not any(answers[READS_PER_ACTION_MAX:])
    assert READS_PER_ACTION_MAX == len(reads.all())


def test_variables_fit_in_the_place_of_a_read() -> None:
    """Different reads have different variables, which are no longer than the shortest read, and are names to CEL."""
    reads = CounterReads()
    assert all(add(reads, f"c{number}", "") for number in range(READS_PER_ACTION_MAX))
    names = [read.variable for read in reads.all()]
    assert READS_PER_ACTION_MAX == len(set(names))
    assert max(map(len, names)) <= len("history.n()")
    environment = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.INT))
    values = dict(zip(names, range(READS_PER_ACTION_MAX), strict=True))
    assert [*values.values()] == environment.compile(f"[{','.join(names)}]").eval(data=values).plain_value()


def test_a_variable_depends_on_its_read_alone() -> None:
    """A read has the same variable after other reads, and another one if its counter gives another kind of number."""
    first, second, other = CounterReads(), CounterReads(), CounterReads()
    assert add(first, "spent", "subject")
    assert add(second, "calls", "")
    assert add(second, "spent", "subject")
    assert add(other, "spent", "subject", "double")
    ((of_first,), (_, of_second), (of_other,)) = (tuple(reads.all()) for reads in (first, second, other))
    assert of_first == of_second
    assert of_first.variable != of_other.variable


@pytest.mark.parametrize("comment", ["// a comment )\n", " // one\n // two ( \n ", "\n"])
def test_a_comment_is_no_key(comment: str) -> None:
    """A comment between the parentheses of a read is no key, and one beside a key leaves it a key."""
    text = f"history.calls({comment}) > 1"
    place = ReadPlace("calls", 0, text.index("("))
    found = CounterReads().add(text, place, "int")
    assert found is not None
    read, _ = found
    assert "" == read.key
    assert [read.variable, ">", "1"] == CounterReads.replace(text, place, read).split()
    text = f"history.spent({comment} subject)"
    found = CounterReads().add(text, ReadPlace("spent", 0, text.index("(")), "int")
    assert found is not None
    assert found[0].key.endswith("subject")
