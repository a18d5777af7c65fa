"""The documents that `gavel mcp scaffold` writes: a rule set, its tests and the configuration of the proxy, from lists of tools.

The hints of the servers choose the first version of each rule, and a person the next. A tool that its server calls read-only is witnessed.
Calls of a tool are approved if its server says that it destroys nothing and reaches nothing outside. Every other tool needs a person.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gavel_client.mcp.configuration import ServerSettings
    from gavel_client.mcp.upstreams.definitions import ToolDefinition

REASON_CODE: Final = "TOOL_NEEDS_A_PERSON"
DAY_MS: Final = 24 * 60 * 60 * 1000
# Arguments that name what a call is about, the most telling first, and the type of subject that they give.
_SUBJECT_ARGUMENTS: Final = (
    ("repo_path", "repository"),
    ("path", "file"),
    ("file_path", "file"),
    ("destination", "file"),
    ("uri", "resource"),
    ("url", "resource"),
    ("id", "item"),
    ("name", "item"),
)
_ANY: Final = {"type": "object"}


@dataclass(frozen=True)
class Scaffold:
    """The three documents. `rules` and `tests` are empty if every tool only reads."""

    rules: str
    tests: str
    configuration: str


def write_documents(
    servers: Sequence[tuple[str, ServerSettings, Sequence[ToolDefinition]]], agent: str, rules_name: str, rule_set: str
) -> Scaffold:
    """Return the documents for servers and their tools. `rules_name` is the name of the rule set's file, `rule_set` its own."""
    definitions = [definition for _, _, listed in servers for definition in listed]
    effects = [definition for definition in definitions if not definition.is_read_only]
    configuration = _configuration(servers, agent)
    if not effects:
        return Scaffold("", "", configuration)
    rules, samples = _rules(effects, rule_set)
    return Scaffold(rules, _tests(effects, samples, rules_name), configuration)


def _rules(effects: Sequence[ToolDefinition], rule_set: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the rule set, and sample params of each action."""
    schemas = {definition.name: _params_schema(definition) for definition in effects}
    samples = _samples(_rule_set_text(effects, schemas, rule_set))
    # A schema without a sample could not be tested. The contract of the tool still checks the arguments.
    schemas = {name: schema if name in samples else _ANY for name, schema in schemas.items()}
    return _rule_set_text(effects, schemas, rule_set), {name: samples.get(name, {}) for name in schemas}


def _rule_set_text(effects: Sequence[ToolDefinition], schemas: Mapping[str, Any], rule_set: str) -> str:
    lines = [
        "gavel: v1",
        f"rule_set: {rule_set}",
        "version: 1",
        "description: Calls of MCP tools with effects. Written by `gavel mcp scaffold` from the hints of the servers; edit it.",
        "actions:",
    ]
    for definition in effects:
        lines += [
            f"  {definition.name}:",
            f"    params: {_flow(schemas[definition.name])}",
            "    facts:",
            "      # What the server lists. A changed tool needs a new proposal.",
            f"      definition: {{key: {definition.name}.digest, type: string, min_trust: 2, max_age_ms: {DAY_MS}, "
            f"sources: [{_listing(definition)}]}}",
            "    # An approved call may be made within an hour.",
            "    decision_ttl_ms: 3600000",
        ]
    lines.append("rules:")
    lines += [f"  - {_rule(definition)}" for definition in effects]
    return "\n".join(lines) + "\n"


def _rule(definition: ToolDefinition) -> str:
    start = f"id: {_rule_id(definition)}, action: {definition.name}, priority: 100, when: 'facts.definition != \"\"'"
    return f"{{{start}, effect: approve}}" if definition.is_additive else f"{{{start}, effect: review, reason_code: {REASON_CODE}}}"


def _rule_id(definition: ToolDefinition) -> str:
    return f"{definition.name}-{'adds' if definition.is_additive else 'needs-a-person'}"


def _tests(effects: Sequence[ToolDefinition], samples: Mapping[str, dict[str, Any]], rules_name: str) -> str:
    lines = ["gavel: v1", f"tests: {rules_name}", "cases:"]
    for definition in effects:
        outcome = "APPROVED" if definition.is_additive else "NEEDS_HUMAN_REVIEW"
        inputs = [f"    action: {definition.name}", f"    params: {_flow(samples[definition.name])}"]
        lines += [
            f"  - name: {definition.name} {'is approved' if definition.is_additive else 'needs a person'}",
            *inputs,
            f"    facts: {{definition: {definition.digest}}}",
            f"    expect: {{outcome: {outcome}, rule_id: {_rule_id(definition)}}}",
            f"  - name: {definition.name} is refused while nobody has seen its definition",
            *inputs,
            # Evidence of something else, so that the proposal cites something.
            f"    facts: {{other: {{key: {definition.server}.other, value: 1}}}}",
            "    expect: {outcome: REJECTED, reason_code: NEED_MORE_FACTS}",
        ]
    return "\n".join(lines) + "\n"


def _configuration(servers: Sequence[tuple[str, ServerSettings, Sequence[ToolDefinition]]], agent: str) -> str:
    lines = [
        "# The configuration of `gavel mcp proxy`. Tools that are not named here are calls with effects.",
        f"agent: {{id: {json.dumps(agent)}}}",
        "servers:",
    ]
    for name, settings, definitions in servers:
        lines.append(f"  {name}:")
        lines.append(f"    command: {_flow(settings.command)}" if settings.command else f"    url: {json.dumps(settings.url)}")
        if settings.env:
            lines.append(f"    env: {{{', '.join(f'{variable}: {{from_env: {variable}}}' for variable in settings.env)}}}")
        if definitions:
            lines.append("    tools:")
        for definition in definitions:
            mode = "read" if definition.is_read_only else "propose"
            lines += [f"      {json.dumps(definition.tool.name)}:", f"        mode: {mode}", f"        digest: {definition.digest}"]
            subject = _subject(definition)
            if subject:
                lines.append(f"        subject: '{subject}'")
    return "\n".join(lines) + "\n"


def _subject(definition: ToolDefinition) -> str:
    """Return an expression for the subject of a call, from a required text that names it; "" if there is none."""
    schema = definition.tool.input_schema
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return ""
    for name, kind in _SUBJECT_ARGUMENTS:
        part = properties.get(name)
        if name in required and isinstance(part, dict) and part.get("type") == "string":
            return f'"{kind}/" + arguments.{name}'
    return ""


def _params_schema(definition: ToolDefinition) -> dict[str, Any]:
    """Return the schema of a tool's arguments as a params schema; `_ANY` if the rule language does not have it."""
    schema: Any = _without_drafts(definition.tool.input_schema)
    return schema if isinstance(schema, dict) and _compiles(schema) else dict(_ANY)


def _without_drafts(schema: Any) -> Any:
    """Return a schema without the keywords that name its draft and its parts for people."""
    if isinstance(schema, dict):
        return {key: _without_drafts(value) for key, value in schema.items() if key not in ("$schema", "$id") and not _is_title(key, value)}
    return [_without_drafts(item) for item in schema] if isinstance(schema, list) else schema


def _is_title(key: str, value: Any) -> bool:
    return key == "title" and isinstance(value, str)


def _compiles(schema: dict[str, Any]) -> bool:
    from gavel_rules.language.document.params_schema import compile_schema

    problems: list[object] = []
    compiled = compile_schema(schema, lambda *problem: problems.append(problem))
    return compiled is not None and not problems


def _samples(rules: str) -> dict[str, dict[str, Any]]:
    """Return params of each action that fit its schema, by action type."""
    from gavel_rules.authoring.samples.cases import case_generators
    from gavel_rules.language.rule_set import compile_rule_set

    samples: dict[str, dict[str, Any]] = {}
    for generator in case_generators(compile_rule_set(rules)):
        if generator.base is not None:
            samples[generator.action.action_type] = dict(generator.base.params)
    return samples


def _listing(definition: ToolDefinition) -> str:
    from gavel_client.mcp.upstreams.definitions import listing_name

    return listing_name(definition.server)


def _flow(value: object) -> str:
    """Return a value as JSON, which is YAML on one line. Characters that a terminal obeys, or that are invisible, are escaped."""
    return "".join(one if one.isprintable() else _escaped(one) for one in json.dumps(value, ensure_ascii=False))


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
