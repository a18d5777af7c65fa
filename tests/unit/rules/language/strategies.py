"""Random conditions and cases over the vocabulary of `conftest`, for tests of everything that is compiled from one action's conditions.

The fuzz of the engines (`tests.fuzz`) draws vocabularies and writes the whole language. Here the names are fixed, so that tests can refer
to them.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

# Few values, so that they are often equal, and all values that the C engine is known to confuse.
INTEGERS = st.sampled_from([0, 1, -1, 2, 3, 9, 10, 100, 2**31, 2**53, -(2**53), 2**53 - 1])
DOUBLES = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 1.5, 2.0, 9.0, 100.0, 0.1, 0.30000000000000004, 1e-7, 1e16, 1e300, 5e-324, 2.0**31, 2.0**53, -(2.0**53)]
)
WORDS = ["", "1", "1.0", "9", "100", "true", "false", "null", "nil", "a", "A", "a b", "a!", "ä", "a\u0308", '"', "\\", "\n", "/", "😀", "§"]
TEXTS = st.sampled_from([*WORDS, "y" * 4000, "y" * 5000, "x" * 65535, "x" * 65536, "x" * 65535 + "y"])

NUMBERS = ["params.amount", "params.limit", "params.count", "params.quota", "facts.total", "facts.pieces", "facts.score"]
NUMBERS += ["proposal.risk", "proposal.cost", "proposal.priority", "evidence.count", "trace.consecutive_rejections"]
STRINGS = ["params.name", "params.note", "facts.status", "facts.owner", "proposal.expected_outcome", "subject", "subject.id", "producer.id"]
FLAGS = ["params.urgent", "facts.open", "facts.flag"]
OPTIONAL = ["params.limit", "params.quota", "params.note", "facts.score", "facts.owner", "facts.flag"]


def literal(value: object) -> str:
    """Return a CEL literal."""
    return json.dumps(value, ensure_ascii=False)


def short(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return only strings that fit into a condition."""
    return texts.filter(lambda text: len(text) < 4100)


number_terms = st.one_of(st.sampled_from(NUMBERS), INTEGERS.map(literal), DOUBLES.map(literal))
text_terms = st.one_of(st.sampled_from(STRINGS), short(TEXTS).map(literal))
orders = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
equalities = st.sampled_from(["==", "!="])

LEAVES = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(NUMBERS), orders, number_terms),
    st.builds("{} {} {}".format, number_terms, orders, st.sampled_from(NUMBERS)),
    st.builds("{} {} {}".format, st.sampled_from(STRINGS), equalities, text_terms),
    st.builds("{} {} {}".format, text_terms, equalities, st.sampled_from(STRINGS)),
    st.builds("{} {} {}".format, st.sampled_from(FLAGS), equalities, st.sampled_from([*FLAGS, "true", "false"])),
    st.sampled_from(FLAGS),
    st.sampled_from(["true", "false"]),
    st.builds("{} in [{}]".format, st.sampled_from(NUMBERS), st.lists(DOUBLES.map(literal), max_size=4).map(", ".join)),
    st.builds("{} in [{}]".format, st.sampled_from(STRINGS), st.lists(short(TEXTS).map(literal), max_size=4).map(", ".join)),
    st.sampled_from(OPTIONAL).map("has({})".format),
    # Guards: expressions that only CEL evaluates; some of them err.
    st.builds("double({}) * 2.0 > {}".format, st.sampled_from(NUMBERS), DOUBLES.map(literal)),
    st.builds("10 / {} > 2".format, st.sampled_from(["params.count", "facts.pieces", "params.quota"])),
    st.builds("{}.{}({})".format, st.sampled_from(STRINGS), st.sampled_from(["startsWith", "contains"]), short(TEXTS).map(literal)),
    st.builds("{} < {}".format, st.sampled_from(STRINGS), st.sampled_from(STRINGS)),
)


def guarded(leaf: str, style: int) -> str:
    """Return the leaf with has() for every optional value that it reads, in one of the forms that authors use."""
    for path in OPTIONAL:
        if path in leaf and not leaf.startswith("has("):
            leaf = [f"(has({path}) && {leaf})", f"({leaf} && has({path}))", f"(!has({path}) || {leaf})", f"(has({path}) ? {leaf} : false)"][
                style // 3
            ]
    return f"({leaf})"


ATOMS = st.builds(guarded, LEAVES, st.integers(0, 9))
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("{} && {}".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
    ),
    max_leaves=6,
).filter(lambda condition: len(condition) < 8000)


def optionally(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw the value, or None for an absent one."""
    return st.one_of(st.none(), values)


CASES = st.tuples(
    st.fixed_dictionaries(
        {
            "amount": DOUBLES,
            "limit": optionally(DOUBLES),
            "count": INTEGERS,
            "quota": optionally(INTEGERS),
            "name": TEXTS,
            "note": optionally(TEXTS),
            "urgent": st.booleans(),
        }
    ),
    st.fixed_dictionaries(
        {
            "status": TEXTS,
            "total": st.one_of(INTEGERS, DOUBLES),
            "pieces": st.one_of(INTEGERS, INTEGERS.map(float)),
            "open": st.booleans(),
            "score": optionally(DOUBLES),
            "owner": optionally(TEXTS),
            "flag": optionally(st.booleans()),
        }
    ),
    st.fixed_dictionaries({"risk": DOUBLES, "cost": DOUBLES, "priority": INTEGERS, "expected_outcome": TEXTS}),
)
