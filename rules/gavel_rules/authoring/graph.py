"""A rule set as a diagram: which facts its rules read, and in which order the rules of an action are asked.

Only names go into it, all of which a document holds to plain characters: nothing needs to be escaped, and no text of an author's
can become a part of the drawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gavel_rules.language.conditions import Condition, Environment, Expression
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet

_FACTS: Final = "facts."
_COLOURS: Final = {"approve": "#d9f2d9", "reject": "#f7d9d9", "review": "#fdf0cf"}


_BREAK: Final = r"\n"  # as Graphviz writes the end of a line


class Node(NamedTuple):
    """A box. `kind` is "action", "fact", "approve", "reject" or "review"; `lines` are its text."""

    name: str
    kind: str
    lines: tuple[str, ...]


class Edge(NamedTuple):
    """An arrow. `kind` is "reads", from a fact to what reads it, or "next", from a rule to the one that is asked if it does not match.

    What reads a fact is a rule's condition, or the subject of another fact.
    """

    origin: str
    target: str
    kind: str


class Graph(NamedTuple):
    """The diagram of one action."""

    action: Node
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def graphs(rule_set: CompiledRuleSet) -> tuple[Graph, ...]:
    """Return a diagram for each action of a rule set."""
    return tuple(_graph(f"a{number}", action) for number, action in enumerate(rule_set.actions.values()))


def mermaid(rule_set: CompiledRuleSet) -> str:
    """Return the diagrams in Mermaid's language, as documentation pages and forges draw it."""
    lines = ["flowchart LR"]
    for graph in graphs(rule_set):
        lines.append(f'  subgraph {graph.action.name}["{graph.action.lines[0]}"]')
        for node in graph.nodes:
            opening, closing = ("[(", ")]") if node.kind == "fact" else ("[", "]")
            lines.append(f'    {node.name}{opening}"{"<br>".join(node.lines)}"{closing}:::{node.kind}')
        lines.append("  end")
        lines.extend(f"  {edge.origin} {'-->' if edge.kind == 'reads' else '-. else .->'} {edge.target}" for edge in graph.edges)
    lines.extend(f"  classDef {kind} fill:{colour}" for kind, colour in _COLOURS.items())
    return "\n".join(lines)


def dot(rule_set: CompiledRuleSet) -> str:
    """Return the diagrams in Graphviz's language."""
    lines = [f'digraph "{rule_set.policy_id}" {{', "  rankdir=LR", '  node [shape=box, style=filled, fillcolor="#ffffff"]']
    for graph in graphs(rule_set):
        lines.append(f"  subgraph cluster_{graph.action.name} {{")
        lines.append(f'    label="{graph.action.lines[0]}"')
        for node in graph.nodes:
            look = "shape=cylinder" if node.kind == "fact" else f'fillcolor="{_COLOURS[node.kind]}"'
            lines.append(f'    {node.name} [label="{_BREAK.join(node.lines)}", {look}]')
        lines.append("  }")
        lines.extend(
            f"  {edge.origin} -> {edge.target}{'' if edge.kind == 'reads' else ' [style=dashed, label=else]'}" for edge in graph.edges
        )
    lines.append("}")
    return "\n".join(lines)


def described(rule_set: CompiledRuleSet) -> dict[str, object]:
    """Return what the diagrams show as plain data: for each action its facts in the order of their selection, and its rules in theirs."""
    return {
        "policy_id": rule_set.policy_id,
        "version": rule_set.version,
        "actions": [
            {
                "action": action.action_type,
                "facts": [
                    {"name": fact.name, "key": fact.key, "optional": fact.optional, "subject_reads": _taken(action, fact.name)}
                    for fact in action.facts
                ],
                "rules": [
                    {
                        "id": rule.id,
                        "priority": rule.priority,
                        "effect": rule.effect,
                        "reason_code": rule.reason_code,
                        "reads": _facts_read(condition, action.environment),
                    }
                    for rule, condition in zip(action.rules, action.conditions, strict=True)
                ],
            }
            for action in rule_set.actions.values()
        ],
    }


def _graph(prefix: str, action: CompiledAction) -> Graph:
    facts = {fact.name: f"{prefix}f{number}" for number, fact in enumerate(action.facts)}
    nodes = [Node(facts[fact.name], "fact", (f"{fact.name}?" if fact.optional else fact.name, fact.key)) for fact in action.facts]
    edges = [Edge(facts[need], facts[fact.name], "reads") for fact in action.facts for need in _taken(action, fact.name)]
    before = ""
    for number, (rule, condition) in enumerate(zip(action.rules, action.conditions, strict=True)):
        name = f"{prefix}r{number}"
        nodes.append(Node(name, rule.effect, (f"{rule.priority} {rule.id}", f"{rule.effect} {rule.reason_code}".strip())))
        edges.extend(Edge(facts[fact], name, "reads") for fact in _facts_read(condition, action.environment))
        if before:
            edges.append(Edge(before, name, "next"))
        before = name
    return Graph(Node(prefix, "action", (action.action_type,)), tuple(nodes), tuple(edges))


def _taken(action: CompiledAction, fact: str) -> list[str]:
    """Return the declared facts that the subject of a declared fact takes."""
    expression = action.subject_expressions.get(fact)
    return [] if expression is None else sorted(_facts(expression.names()))


def _facts_read(condition: Condition, environment: Environment) -> list[str]:
    return sorted(_facts(Expression(environment, condition).names()))


def _facts(names: Iterable[str]) -> Iterator[str]:
    return (name.removeprefix(_FACTS) for name in names if name.startswith(_FACTS))
