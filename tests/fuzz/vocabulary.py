"""Random typed vocabularies: a params schema and declared facts, and so the names that a condition may use.

Some names are chosen to collide: with the engines' own fields, with CEL's functions, and with each other in the C engine's 32-bit hash
(c1ceajyv and amount, with the same prefix). `cases` draws values of the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

NAMES: Final = (
    *("amount", "count", "name", "note", "urgent", "limit", "c1ceajyv", "atscahwx", "ckaoagwb", "kind", "one", "id", "sid", "n0", "s1"),
    *("g2", "has_", "size", "type", "int", "Params", "Facts", "facts", "params_", "result", "_", "A1", "x" * 64),
)
FIELDS: Final = ("city", "zip", "price", "units", "sku", "size")
KEYS: Final = ("a", "b", "env", "size")

NUMBERS: Final = (0, 1, -1, 2, 3, 9, 10, 100, 255, 2**31, 2**53, -(2**53), 2**53 - 1)
# The numbers that a document can hold: canonical JSON ends below 2^53.
SCHEMA_NUMBERS: Final = tuple(number for number in NUMBERS if abs(number) < 2**53)
DOUBLES: Final = (
    *(0.0, -0.0, 1.0, -1.0, 1.5, 2.0, 9.0, 100.0, 0.1, 0.1 + 0.2, 1e-7, 1.5e-7, 1e16, 1e300, 5e-324, 2.0**31, 2.0**53, -(2.0**53)),
    *(2.0**53 - 1, 0.30, 99.99, 1e22),
)
WORDS: Final = (
    *("", "1", "1.0", "9", "100", "true", "false", "null", "nil", "a", "A", "a b", "a!", "ab", "b", "ä", "a\u0308", '"', "'", "\\"),
    *("\n", "\t", "/", "//", "/* */", ")", "(", "&&", "😀", "§", "\x7f", "\u2028", "r0", "case", "[", "]}", "?", "EUR"),
)
# Lengths around the limits of a literal, a slot and the C engine's counters.
LONG_WORDS: Final = (*("y" * length for length in (4093, 4094, 4095, 4096, 5000)), "x" * 65_535, "x" * 65_536, "x" * 65_535 + "y")


@dataclass(frozen=True, slots=True)
class Type:
    """A type of value: "bool", "int", "double", "string", "list", "map" or "object", with its parts."""

    kind: str
    element: Type | None = None
    fields: tuple[tuple[str, Type, bool], ...] = ()  # name, type, required
    literals: tuple[Any, ...] = ()  # all values, if the schema lists them

    def schema(self) -> dict[str, Any]:
        """Return the type as JSON Schema."""
        if self.literals:
            return {"const": self.literals[0]} if len(self.literals) == 1 else {"enum": list(self.literals)}
        if self.kind == "list":
            assert self.element is not None
            return {"type": "array", "maxItems": 20, "items": self.element.schema()}
        if self.kind == "map":
            assert self.element is not None
            return {"type": "object", "maxProperties": 20, "additionalProperties": self.element.schema()}
        if self.kind == "object":
            required = [name for name, _, needed in self.fields if needed]
            return {"type": "object", "required": required, "properties": {name: of.schema() for name, of, _ in self.fields}}
        return {"type": {"bool": "boolean", "int": "integer", "double": "number", "string": "string"}[self.kind]}


BOOL, INT, DOUBLE, STRING = Type("bool"), Type("int"), Type("double"), Type("string")
SCALARS: Final = (BOOL, INT, DOUBLE, STRING)
FACT_TYPES: Final = {"bool": "boolean", "int": "integer", "double": "number", "string": "string"}


@dataclass(frozen=True, slots=True)
class Variable:
    """A dotted name with its type, and the paths along it that may be absent, shortest first."""

    name: str
    type: Type
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter, which gives an int or a double: a number for each text that is its key, or a single one."""

    name: str
    type: Type
    has_groups: bool


SUBJECTS_MAX: Final = 2  # of a fact of many subjects
COUNTERS: Final = (
    Counter("calls", INT, has_groups=False),
    Counter("calls_of", INT, has_groups=True),
    Counter("spent", DOUBLE, has_groups=False),
    Counter("spent_by", DOUBLE, has_groups=True),
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The declarations of a document. `many` are the facts of many subjects, of which rules see a list of values."""

    params: Type
    facts: tuple[tuple[str, Type, bool], ...]  # name, type of what rules see, required
    many: frozenset[str] = frozenset()

    def variables(self) -> Iterator[Variable]:
        """Yield every name that a condition may use, except for `now` and the counters."""
        yield from self.params_variables()
        yield from self.facts_variables(len(self.facts))
        for name in ("risk", "cost", "confidence"):
            yield Variable(f"proposal.{name}", DOUBLE)
        for name in (
            "proposal.priority",
            "evidence.count",
            "evidence.worst_trust",
            "evidence.oldest_age_ms",
            "trace.consecutive_rejections",
        ):
            yield Variable(name, INT)
        yield Variable("proposal.expected_outcome", STRING)
        yield from proposer_variables()

    def params_variables(self) -> Iterator[Variable]:
        """Yield the names of the params."""
        for name, type_, required in self.params.fields:
            yield from _variables(f"params.{name}", type_, () if required else (f"params.{name}",))

    def facts_variables(self, count: int) -> Iterator[Variable]:
        """Yield the names of the first `count` facts."""
        for name, type_, required in self.facts[:count]:
            yield from _variables(f"facts.{name}", type_, () if required or name in self.many else (f"facts.{name}",))

    def action(self) -> dict[str, Any]:
        """Return the vocabulary as an action of a rule set document, without the subjects of its facts."""
        facts = {
            name: {
                "key": f"thing.f{number}",
                **_fact_values(type_.element if name in self.many and type_.element is not None else type_),
                "max_age_ms": 60_000,
                "optional": not required,
            }
            for number, (name, type_, required) in enumerate(self.facts)
        }
        return {"params": self.params.schema(), "facts": facts}


def subject_variables() -> Iterator[Variable]:
    """Yield the names of the proposal's subject."""
    for name in ("subject", "subject.type", "subject.id"):
        yield Variable(name, STRING)


def proposer_variables() -> Iterator[Variable]:
    """Yield the names of the proposal's subject and of who proposes."""
    yield from subject_variables()
    for name in ("producer.type", "producer.id", "producer.version"):
        yield Variable(name, STRING)
    yield Variable("producer.groups", Type("list", element=STRING))


def counter_declarations(action: str) -> dict[str, Any]:
    """Return the counters as a document declares them. Cases give each some number, so what it counts does not matter here."""
    counted = {"of": "approvals", "action": action, "window_ms": 60_000}
    return {
        counter.name: {
            **counted,
            **({"by": "subject"} if counter.has_groups else {}),
            **({"sum": "double(size(subject.id))"} if counter.type is DOUBLE else {}),
        }
        for counter in COUNTERS
    }


def _fact_values(type_: Type) -> dict[str, Any]:
    """Return the keys of a declared fact that describe its values: a type, or a schema of values with structure."""
    return {"type": FACT_TYPES[type_.kind]} if type_ in SCALARS else {"value": type_.schema()}


def _variables(name: str, type_: Type, reads: tuple[str, ...]) -> Iterator[Variable]:
    yield Variable(name, type_, reads)
    for field, of_field, required in type_.fields:
        path = f"{name}.{field}"
        yield from _variables(path, of_field, reads if required else (*reads, path))


@st.composite
def vocabularies(draw: Draw) -> Vocabulary:
    """Draw a vocabulary with a few params and facts."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7, unique=True))
    params = tuple((name, draw(types()), draw(st.booleans())) for name in names)
    fact_names = draw(st.lists(st.sampled_from(NAMES), max_size=5, unique=True))
    many = frozenset(name for name in fact_names if draw(st.integers(0, 5)) == 0)
    facts = tuple((name, draw(_many() if name in many else types()), draw(st.booleans())) for name in fact_names)
    return Vocabulary(Type("object", fields=params), facts, many)


def _many() -> st.SearchStrategy[Type]:
    """Draw the type of what rules see of a fact of many subjects."""
    return (st.sampled_from(SCALARS) | objects(0)).map(lambda element: Type("list", element=element))


@st.composite
def types(draw: Draw) -> Type:
    """Draw the type of a param. Most are scalars, which the network compares."""
    match draw(st.integers(0, 15)):
        case 0:
            return Type("string", literals=tuple(draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True))))
        case 1:
            return Type("int", literals=tuple(draw(st.lists(st.sampled_from(SCHEMA_NUMBERS), min_size=1, max_size=4, unique=True))))
        case 2:
            return Type("list", element=draw(st.sampled_from([STRING, DOUBLE, INT, BOOL])))
        case 3:
            return Type("list", element=draw(objects(0)))
        case 4:
            return Type("map", element=draw(st.sampled_from([STRING, DOUBLE, INT])))
        case 5:
            return draw(objects(1))  # type: ignore[no-any-return]
    return draw(st.sampled_from(SCALARS))  # type: ignore[no-any-return]


@st.composite
def objects(draw: Draw, deeper: int) -> Type:
    """Draw an object type with typed fields, nested up to `deeper` more levels."""
    names = draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True))
    return Type("object", fields=tuple((name, draw(_field_types(deeper)), draw(st.booleans())) for name in names))


def _field_types(deeper: int) -> st.SearchStrategy[Type]:
    scalars: st.SearchStrategy[Type] = st.sampled_from(SCALARS)
    return scalars | objects(deeper - 1) if deeper else scalars
