"""Diagrams of a rule set: which facts and counters its rules read, and in which order the rules of an action are evaluated.

They contain names and numbers only. A document restricts names to plain characters; other characters of group names are removed here.
Nothing needs to be escaped, and no text of an author becomes part of the drawing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gavel.v1.decision_pb2 import ReviewPolicy

from gavel_rules.language.cel.checker import CheckedExpression, ScopedExpression
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

_FACTS: Final = "facts."
_MERMAID_SHAPES: Final = {"fact": ("[(", ")]"), "counter": ("{{", "}}")}
_DOT_SHAPES: Final = {"fact": "cylinder", "counter": "hexagon"}
_COLOURS: Final = {"approve": "#d9f2d9", "reject": "#f7d9d9", "review": "#fdf0cf"}
# Characters of groups' names that stand for themselves in both languages.
_UNSAFE_CHARACTER: Final = re.compile(r"[^A-Za-z0-9._:/@+-]")
_BREAK: Final = r"\n"  # Graphviz's escape for the end of a line


class Node(NamedTuple):
    """A box with lines of text. `kind` is "action", "fact", "counter", "approve", "reject" or "review"."""

    name: str
    kind: str
    lines: tuple[str, ...]


class Edge(NamedTuple):
    """An arrow. `kind` is "reads", from a fact or counter to the rule or fact that reads it, or "next", from a rule to the rule below it.

    A rule reads a fact or a counter in its condition, a fact reads another one in its subject.
    """

    origin: str
    target: str
    kind: str


class Graph(NamedTuple):
    """The diagram of one action."""

    action: Node
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def build_graphs(rule_set: CompiledRuleSet) -> tuple[Graph, ...]:
    """Return the diagram of each action of a rule set."""
    return tuple(_graph(f"a{number}", rule_set, action) for number, action in enumerate(rule_set.actions.values()))


def render_mermaid(rule_set: CompiledRuleSet) -> str:
    """Return the diagrams in Mermaid's language, which documentation pages and forges draw."""
    lines = ["flowchart LR"]
    for graph in build_graphs(rule_set):
        lines.append(f'  subgraph {graph.action.name}["{"<br>".join(graph.action.lines)}"]')
        for node in graph.nodes:
            opening, closing = _MERMAID_SHAPES.get(node.kind, ("[", "]"))
            lines.append(f'    {node.name}{opening}"{"<br>".join(node.lines)}"{closing}:::{node.kind}')
        lines.append("  end")
        lines.extend(f"  {edge.origin} {'-->' if edge.kind == 'reads' else '-. else .->'} {edge.target}" for edge in graph.edges)
    lines.extend(f"  classDef {kind} fill:{colour}" for kind, colour in _COLOURS.items())
    return "\n".join(lines)


def render_dot(rule_set: CompiledRuleSet) -> str:
    """Return the diagrams in Graphviz's language."""
    lines = [f'digraph "{rule_set.policy_id}" {{', "  rankdir=LR", '  node [shape=box, style=filled, fillcolor="#ffffff"]']
    for graph in build_graphs(rule_set):
        lines.append(f"  subgraph cluster_{graph.action.name} {{")
        lines.append(f'    label="{_BREAK.join(graph.action.lines)}"')
        for node in graph.nodes:
            look = f"shape={_DOT_SHAPES[node.kind]}" if node.kind in _DOT_SHAPES else f'fillcolor="{_COLOURS[node.kind]}"'
            lines.append(f'    {node.name} [label="{_BREAK.join(node.lines)}", {look}]')
        lines.append("  }")
        lines.extend(
            f"  {edge.origin} -> {edge.target}{'' if edge.kind == 'reads' else ' [style=dashed, label=else]'}" for edge in graph.edges
        )
    lines.append("}")
    return "\n".join(lines)


def graph_data(rule_set: CompiledRuleSet) -> dict[str, object]:
    """Return the content of the diagrams as JSON data.

    For each action: its facts in the order of selection, the counters that its conditions read, and its rules by priority.
    """
    return {
        "policy_id": rule_set.policy_id,
        "version": rule_set.version,
        "actions": [
            {
                "action": action.action_type,
                "review": None if action.review_policy is None else _review_data(action.review_policy),
                "facts": [
                    {"name": fact.name, "key": fact.key, "optional": fact.optional, "subject_reads": _subject_facts(action, fact.name)}
                    for fact in action.facts
                ],
                "counters": [{"name": name, "of": of, "aggregate": aggregate} for name, of, aggregate in _counters(rule_set, action)],
                "rules": [
                    {
                        "id": rule.id,
                        "priority": rule.priority,
                        "effect": rule.effect,
                        "reason_code": rule.reason_code,
                        "review": _review_data(action.review_policies[rule.id]) if rule.id in action.review_policies else None,
                        "reads": _condition_facts(condition, action),
                        "counters": _condition_counters(condition, action),
                    }
                    for rule, condition in zip(action.rules, action.conditions, strict=True)
                ],
            }
            for action in rule_set.actions.values()
        ],
    }


def _graph(prefix: str, rule_set: CompiledRuleSet, action: CompiledAction) -> Graph:
    facts = {fact.name: f"{prefix}f{number}" for number, fact in enumerate(action.facts)}
    nodes = [Node(facts[fact.name], "fact", (f"{fact.name}?" if fact.optional else fact.name, fact.key)) for fact in action.facts]
    edges = [Edge(facts[need], facts[fact.name], "reads") for fact in action.facts for need in _subject_facts(action, fact.name)]
    counters: dict[str, str] = {}
    for number, (counter, of, aggregate) in enumerate(_counters(rule_set, action)):
        counters[counter] = f"{prefix}c{number}"
        nodes.append(Node(counters[counter], "counter", (counter, f"{aggregate} of {of}")))
    before = ""
    for number, (rule, condition) in enumerate(zip(action.rules, action.conditions, strict=True)):
        name = f"{prefix}r{number}"
        lines = (f"{rule.priority} {rule.id}", f"{rule.effect} {rule.reason_code}".strip())
        nodes.append(Node(name, rule.effect, (*lines, *_review_lines(action.review_policies.get(rule.id)))))
        edges.extend(Edge(facts[fact], name, "reads") for fact in _condition_facts(condition, action))
        edges.extend(Edge(counters[counter], name, "reads") for counter in _condition_counters(condition, action))
        if before:
            edges.append(Edge(before, name, "next"))
        before = name
    return Graph(Node(prefix, "action", (action.action_type, *_review_lines(action.review_policy))), tuple(nodes), tuple(edges))


def _review_lines(policy: ReviewPolicy | None) -> tuple[str, ...]:
    """Return who has to resolve reviews, in one line; none if nothing is declared."""
    if policy is None:
        return ()
    line = f"review by {policy.quorum}"
    if policy.groups:
        line += f" of {_plain(policy.groups)}"
    if policy.separation:
        line += ", not the proposer"
    if policy.escalate_after_ms:
        line += f", after {policy.escalate_after_ms} ms also {_plain(policy.escalate_to)}" if policy.escalate_to else ", escalated"
    return (line,)


def _review_data(policy: ReviewPolicy) -> dict[str, object]:
    return {
        "quorum": policy.quorum,
        "groups": list(policy.groups),
        "separation": policy.separation,
        "escalate_after_ms": policy.escalate_after_ms,
        "escalate_to": list(policy.escalate_to),
    }


def _plain(groups: Iterable[str]) -> str:
    """Return names of groups without characters that mean something in a drawing."""
    return " or ".join(_UNSAFE_CHARACTER.sub("_", group) for group in groups)


def _subject_facts(action: CompiledAction, fact: str) -> list[str]:
    """Return the declared facts that the subject of a declared fact reads."""
    expression = action.subject_expressions.get(fact)
    return [] if expression is None else sorted(_facts(expression.names()))


def _condition_facts(condition: CheckedExpression, action: CompiledAction) -> list[str]:
    """Return the facts that a condition reads, itself or in the keys of counters."""
    environment = action.environment
    names = ScopedExpression(environment, condition).names()
    keys = [environment.tree(read.key) for read in action.counter_reads if read.variable in names and read.key]
    names.update(name for key in keys for name, _ in find_variables(key, environment.types))
    return sorted(_facts(names))


def _counters(rule_set: CompiledRuleSet, action: CompiledAction) -> list[tuple[str, str, str]]:
    """Return the counters that the conditions of an action read: name, events that they count, and aggregate."""
    names = {name for condition in action.conditions for name in _condition_counters(condition, action)}
    return [(name, rule_set.counters[name].source, rule_set.counters[name].aggregate) for name in sorted(names)]


def _condition_counters(condition: CheckedExpression, action: CompiledAction) -> list[str]:
    names = ScopedExpression(action.environment, condition).names()
    return sorted({read.counter for read in action.counter_reads if read.variable in names})


def _facts(names: Iterable[str]) -> Iterator[str]:
    """Yield the facts that some paths are in, each once."""
    yield from dict.fromkeys(name.split(".")[1] for name in names if name.startswith(_FACTS))
