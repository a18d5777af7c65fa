"""Random expressions that nest everything: loops in bindings in loops, choices of mixed types, failures under && and ||, variables.

The grammar of `tests.fuzz.grammar` writes expressions together with their meaning, and so stays flat. These are only texts over one fixed
vocabulary; `tests.fuzz.interpreter` gives their meaning.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz.vocabulary import Draw

SHORT: Final = {"type": "string", "maxLength": 12}
ITEM: Final = {
    "type": "object",
    "required": ["name", "cpu", "tags"],
    "properties": {
        "name": SHORT,
        "cpu": SHORT,
        "size": {"type": "integer"},
        "tags": {"type": "array", "maxItems": 3, "items": SHORT},
    },
}
PARAMS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["amount", "ratio", "name", "tags", "items", "limits"],
    "properties": {
        "amount": {"type": "integer"},
        "ratio": {"type": "number"},
        "name": SHORT,
        "note": SHORT,
        "tags": {"type": "array", "maxItems": 3, "items": SHORT},
        "items": {"type": "array", "maxItems": 3, "items": ITEM},
        "limits": {"type": "object", "maxProperties": 3, "additionalProperties": {"type": "integer"}},
        "owner": {"type": "object", "required": ["id"], "properties": {"id": SHORT, "age": {"type": "integer"}}},
    },
}
FACTS: Final[dict[str, Any]] = {
    "total": {"key": "thing.total", "type": "integer", "max_age_ms": 60_000},
    "score": {"key": "thing.score", "type": "number", "max_age_ms": 60_000, "optional": True},
    "teams": {"key": "thing.teams", "max_age_ms": 60_000, "value": {"type": "array", "maxItems": 3, "items": SHORT}},
}
WORDS: Final = ("", "a", "b", "ab", "1", "2", "-3", "100m", "1Gi", "0.5", "10.0.0.1", "::1", "10.0.0.0/8", "a b")
KINDS: Final = ("bool", "int", "double", "text", "ints", "texts")
TIMES: Final = ("1970-01-01T00:00:00Z", "2023-11-14T22:13:20Z", "2024-02-29T23:59:59.999Z")
Locals = tuple[tuple[str, str], ...]  # names of macros' variables and bindings, with their kinds


class Writer:
    """Writes expressions. `variables` are the document's, with their kinds; an expression may use them."""

    def __init__(self, draw: Draw, variables: Locals = ()) -> None:
        self._draw = draw
        self._variables = variables
        self._count = 0

    def write(self, kind: str, depth: int, names: Locals = ()) -> str:
        """Return an expression of a kind that nests about `depth` levels."""
        known = [name for name, of in (*names, *names, *self._variables) if of == kind]
        if known and self._number(2) == 0:
            return self._pick(*known)
        if depth <= 0:
            return self._leaf(kind, names)
        match self._number(7):
            case 0 | 1:
                return self._choice(kind, depth, names)
            case 2 | 3:
                return self._binding(kind, depth, names)
        return str(getattr(self, f"_{kind}")(depth - 1, names))

    def _number(self, largest: int) -> int:
        return int(self._draw(st.integers(0, largest)))

    def _pick(self, *texts: str) -> str:
        return str(self._draw(st.sampled_from(texts)))

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _choice(self, kind: str, depth: int, names: Locals) -> str:
        return f"({self.write('bool', depth - 1, names)} ? {self.write(kind, depth - 1, names)} : {self.write(kind, depth - 1, names)})"

    def _binding(self, kind: str, depth: int, names: Locals) -> str:
        name, of = self._name(), self._pick(*KINDS)
        value = self.write(of, depth - 1, names)
        return f"cel.bind({name}, {value}, {self.write(kind, depth - 1, (*names, (name, of)))})"

    def _bool(self, depth: int, names: Locals) -> str:
        def of(kind: str) -> str:
            return self.write(kind, depth, names)

        match self._number(13):
            case 0 | 1 | 2:
                return f"({of('bool')} {self._pick('&&', '||')} {of('bool')})"
            case 3:
                return f"!({of('bool')})"
            case 4:
                kind = self._pick("int", "double")
                return f"({of(kind)} {self._pick('==', '!=', '<', '<=', '>', '>=')} {of(self._pick('int', 'double'))})"
            case 5:
                return f"({of('text')} {self._pick('==', '!=', '<')} {of('text')})"
            case 6:
                kind = self._pick("ints", "texts", "bool")
                return f"({of(kind)} {self._pick('==', '!=')} {of(kind)})"
            case 7:
                return f"({of('text')} in {of('texts')})"
            case 8:
                return f"{of('text')}.{self._pick('startsWith', 'endsWith', 'contains')}({of('text')})"
            case 9:
                return self._mixed(depth, names)
            case 10:
                return self._kubernetes(depth, names)
            case 11:
                return self._loop_over_map(depth, names)
        return self._test(depth, names)

    def _test(self, depth: int, names: Locals) -> str:
        """Write all, exists or exists_one over a list, with one name or two."""
        source, kind = self._list(depth, names)
        one, two = self._name(), self._name()
        if self._number(2):
            macro = self._pick("all", "exists", "exists_one")
            return f"{source}.{macro}({one}, {self.write('bool', depth, (*names, (one, kind)))})"
        macro = self._pick("all", "exists", "existsOne")
        return f"{source}.{macro}({one}, {two}, {self.write('bool', depth, (*names, (one, 'int'), (two, kind)))})"

    def _loop_over_map(self, depth: int, names: Locals) -> str:
        one, two = self._name(), self._name()
        inner = self.write("bool", depth, (*names, (one, "text"), (two, "int")))
        return f"params.limits.{self._pick('all', 'exists')}({one}, {two}, {inner})"

    def _mixed(self, depth: int, names: Locals) -> str:
        """Write a choice of values of two types, or null, compared with another value."""
        left, right = self.write("int", depth, names), self.write("text", depth, names)
        chosen = f"({self.write('bool', depth, names)} ? {left} : {self._pick(right, 'null')})"
        return f"({chosen} {self._pick('==', '!=')} {self._pick('null', self.write('int', 0, names), self.write('text', 0, names))})"

    def _kubernetes(self, depth: int, names: Locals) -> str:
        text, other = self.write("text", depth, names), self.write("text", 0, names)
        return self._pick(
            f"isQuantity({text})",
            f"quantity({text}).{self._pick('isLessThan', 'isGreaterThan')}(quantity({other}))",
            f'quantity({text}).add(quantity("100m")).isInteger()',
            "params.items.map(k, quantity(k.cpu)).sum().sign() > 0",
            f"isIP({text})",
            f"ip({text}).isLoopback()",
            f'cidr("10.0.0.0/8").containsIP({text})',
            f"isCIDR({text}) && cidr({text}).prefixLength() > 4",
        )

    def _list(self, depth: int, names: Locals) -> tuple[str, str]:
        """Return a list and the kind of its elements."""
        match self._number(3):
            case 0:
                return "params.items", "item"
            case 1:
                name = self._name()
                guard = self._pick(f"has({name}.size)", self.write("bool", depth - 1, (*names, (name, "item"))))
                return f"params.items.filter({name}, {guard})", "sized" if guard.startswith("has") else "item"
            case 2:
                return self.write("ints", depth - 1, names), "int"
        return self.write("texts", depth - 1, names), "text"

    def _int(self, depth: int, names: Locals) -> str:
        def of(kind: str) -> str:
            return self.write(kind, depth, names)

        match self._number(7):
            case 0 | 1:
                return f"({of('int')} {self._pick('+', '-', '*', '/', '%')} {of('int')})"
            case 2:
                return f"size({of(self._pick('text', 'ints', 'texts'))})"
            case 3:
                return f"{of('ints')}.{self._pick('sum', 'min', 'max')}()"
            case 4:
                return f"int({of('text')})"
            case 5:
                return f"{of('ints')}[{of('int')}]"
            case 6:
                return f"{of('text')}.{self._pick('indexOf', 'lastIndexOf')}({of('text')})"
        return f"now.{self._pick('getFullYear', 'getHours', 'getDayOfWeek', 'getDate')}({self._pick('', chr(34) + '+02:00' + chr(34))})"

    def _double(self, depth: int, names: Locals) -> str:
        match self._number(2):
            case 0:
                return f"double({self.write(self._pick('int', 'text'), depth, names)})"
            case 1:
                return f"[{self.write('double', depth, names)}, {self.write('double', depth, names)}].{self._pick('sum', 'min', 'max')}()"
        return f"({self.write('double', depth, names)} {self._pick('+', '-', '*')} {self.write('double', depth, names)})"

    def _text(self, depth: int, names: Locals) -> str:
        def of(kind: str) -> str:
            return self.write(kind, depth, names)

        match self._number(6):
            case 0:
                return f"({of('text')} + {of('text')})"
            case 1:
                return f"string({of('int')})"
            case 2:
                return f"{of('texts')}[{of('int')}]"
            case 3:
                return f"{of('texts')}.join({self._pick('', chr(34) + '-' + chr(34))})"
            case 4:
                return f'{of("text")}.replace("a", {self._pick(*WORDS_QUOTED)})'
            case 5:
                return f"{of('text')}.{self._pick('lowerAscii()', 'reverse()', 'charAt(0)', 'substring(1)', 'trim()')}"
        return f"{of('text')}.substring({of('int')})"

    def _ints(self, depth: int, names: Locals) -> str:
        return self._mapped("int", depth, names)

    def _texts(self, depth: int, names: Locals) -> str:
        if self._number(3) == 0:
            return f'{self.write("text", depth, names)}.split("a")'
        return self._mapped("text", depth, names)

    def _mapped(self, kind: str, depth: int, names: Locals) -> str:
        """Write a list of a kind: a literal, a concatenation, or the elements of another one, filtered or mapped."""
        match self._number(4):
            case 0:
                return f"[{', '.join(self.write(kind, depth, names) for _ in range(1 + self._number(2)))}]"
            case 1:
                return f"({self.write(kind + 's', depth, names)} + {self.write(kind + 's', depth - 1, names)})"
            case 2:
                name = self._name()
                condition = self.write("bool", depth, (*names, (name, kind)))
                return f"{self.write(kind + 's', depth - 1, names)}.filter({name}, {condition})"
        source, of = self._list(depth, names)
        one, two = self._name(), self._name()
        if self._number(1):
            return f"{source}.map({one}, {self.write(kind, depth, (*names, (one, of)))})"
        return f"{source}.transformList({one}, {two}, {self.write(kind, depth, (*names, (one, 'int'), (two, of)))})"

    def _leaf(self, kind: str, names: Locals) -> str:
        items = [(name, of) for name, of in names if of in ("item", "sized")]
        if items and self._number(1):
            name, of = self._draw(st.sampled_from(items))
            fields = _fields(name, is_sized=of == "sized").get(kind, ())
            if fields:
                return f"({self._pick(*fields)})"
        if kind == "int" and self._number(2) == 0:
            return str(self._number(5) - 1)
        if kind == "text" and self._number(2) == 0:
            return self._pick(*WORDS_QUOTED)
        return f"({self._pick(*LEAVES[kind])})"


def _fields(name: str, *, is_sized: bool) -> dict[str, tuple[str, ...]]:
    """Return what expressions may read of an item, by kind."""
    return {
        "int": (f"{name}.size",) if is_sized else (f"(has({name}.size) ? {name}.size : -1)", f"size({name}.tags)"),
        "text": (f"{name}.name", f"{name}.cpu"),
        "texts": (f"{name}.tags",),
        "bool": (f"has({name}.size)", f'"a" in {name}.tags', f"(has({name}.size) && {name}.size > 1)"),
    }


WORDS_QUOTED: Final = tuple(f'"{word}"' for word in WORDS)
LEAVES: Final = {
    "bool": (
        *("true", "false", "has(params.note)", "has(facts.score) && facts.score > 0.5", '!has(params.note) || params.note == "a"'),
        *("has(params.owner) && has(params.owner.age) && params.owner.age > 1", '"a" in params.limits', "10 / params.amount > 3"),
        *(f'now > timestamp("{TIMES[1]}")', f'now - timestamp("{TIMES[0]}") > duration("36h")', 'params.name.matches("^[ab]+$")'),
        *("type(params.amount) == int", "producer.id == params.name", 'subject.type == "thing"'),
    ),
    "int": ("params.amount", "facts.total", 'params.limits["a"]', "size(params.items)", "params.items.map(i, size(i.tags)).sum()"),
    "double": ("params.ratio", "1.5", "0.1", "(has(facts.score) ? facts.score : 0.25)", "double(params.amount)"),
    "text": (
        "params.name",
        '(has(params.note) ? params.note : "")',
        '(has(params.owner) ? params.owner.id : "b")',
        "producer.id",
        "subject.id",
    ),
    "ints": ("[1, 2, 3]", "[params.amount]", "[]", "params.tags.map(t, size(t))", "params.items.filter(i, has(i.size)).map(i, i.size)"),
    "texts": ("params.tags", "facts.teams", '["a", "1"]', "params.items.map(i, i.name)", 'params.name.split("a")'),
}


@st.composite
def documents(draw: Draw) -> tuple[dict[str, str], list[str]]:
    """Draw variables, each of which may use those before it, and conditions that use them."""
    variables: dict[str, str] = {}
    kinds: Locals = ()
    for number in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(KINDS))
        variables[f"shared{number}"] = Writer(draw, kinds).write(kind, 2)
        kinds = (*kinds, (f"shared{number}", kind))
    return variables, [Writer(draw, kinds).write("bool", 3) for _ in range(draw(st.integers(1, 3)))]


_words = st.sampled_from(WORDS)
_numbers = st.sampled_from((0, 1, 2, 3, -1, 5, 2**53 - 1))
_tags = st.lists(_words, max_size=3)
_items = st.fixed_dictionaries({"name": _words, "cpu": _words, "tags": _tags}, optional={"size": _numbers})
params_values: Final = st.fixed_dictionaries(
    {
        "amount": _numbers,
        "ratio": st.sampled_from((0.0, 0.5, -1.5, 1e300)),
        "name": _words,
        "tags": _tags,
        "items": st.lists(_items, max_size=3),
        "limits": st.dictionaries(st.sampled_from(("a", "b", "c")), _numbers, max_size=3),
    },
    optional={"note": _words, "owner": st.fixed_dictionaries({"id": _words}, optional={"age": _numbers})},
)
facts_values: Final = st.fixed_dictionaries({"total": _numbers, "teams": _tags}, optional={"score": st.sampled_from((0.0, 0.5, 0.75))})
