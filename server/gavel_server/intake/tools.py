"""Changes of the registry of tools, as requests ask for them: each becomes a FACT by `system`. Only their form is checked here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import jsonschema_rs
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider, ToolUnbound
from gavel_rules.commands import ChangeTools
from gavel_rules.events.ids import uuid_problem
from gavel_rules.limits import (
    TOOL_ALIASES_MAX,
    TOOL_CONTRACT_BYTES_MAX,
    TOOL_CONTRACTS_MAX,
    TOOL_EFFECTS_MAX,
    TOOL_REDACTIONS_MAX,
    VERSION_LENGTH_MAX,
)
from gavel_rules.text import clip
from gavel_rules.tools.contracts import schema_hash
from gavel_rules.values import struct_problems, struct_to_dict, text_problem
from google.protobuf.struct_pb2 import Struct

from gavel_server.errors import invalid
from gavel_server.intake.event_ids import new_event_id
from gavel_server.intake.formats import NAME
from gavel_server.intake.schema_work import work_problem

Violations = list[tuple[str, str]]
_NOT_A_NAME: Final = "is not 1 to 128 printable ASCII characters without spaces"
_PROBLEM_LENGTH_MAX: Final = 256
# The default compiles for tens of milliseconds, in which the server does nothing else; this takes at most one.
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(size_limit=256 * 1024)
# RFC 6901: "~" stands before 0 or 1 only.
_REDACTION: Final = re.compile(r"/(?:arguments|result)(?:/(?:[^/~]|~[01])*)*\Z")


def contract_registration(contract: ToolContract, event_id: str) -> ChangeTools:
    """Return the command that registers a contract, with its `schema_hash`. Raises ServiceError with every violation."""
    violations = _event_id_violations(event_id)
    _check_name(contract.name, "contract.name", violations)
    _check_version(contract.version, "contract.version", violations)
    _check_names(contract.aliases, TOOL_ALIASES_MAX, "contract.aliases", violations)
    if contract.name in contract.aliases:
        violations.append(("contract.aliases", "names the tool itself"))
    _check_names(contract.side_effects, TOOL_EFFECTS_MAX, "contract.side_effects", violations)
    if contract.default_provider:
        _check_name(contract.default_provider, "contract.default_provider", violations)
    _check_redactions(contract.redactions, violations)
    if contract.ByteSize() > TOOL_CONTRACT_BYTES_MAX:
        violations.append(("contract", f"is larger than {TOOL_CONTRACT_BYTES_MAX} bytes"))
    else:
        _check_schema(contract.argument_schema, "contract.argument_schema", violations)
        _check_schema(contract.result_schema, "contract.result_schema", violations)
    if violations:
        raise invalid(violations)
    registered = ToolContract()
    registered.CopyFrom(contract)
    registered.schema_hash = schema_hash(contract)
    if contract.schema_hash not in ("", registered.schema_hash):
        raise invalid([("contract.schema_hash", f"is not that of the schemas, {registered.schema_hash}")])
    return _change(event_id, Fact(tool_contract_registered=registered))


def provider_registration(provider: ToolProvider, event_id: str) -> ChangeTools:
    """Return the command that registers a provider. Raises ServiceError with every violation."""
    violations = _event_id_violations(event_id)
    _check_name(provider.provider_id, "provider.provider_id", violations)
    _check_version(provider.version, "provider.version", violations)
    _check_names(provider.tools, TOOL_CONTRACTS_MAX, "provider.tools", violations)
    if violations:
        raise invalid(violations)
    return _change(event_id, Fact(tool_provider_registered=provider))


def tool_binding(binding: ToolBinding, event_id: str) -> ChangeTools:
    """Return the command that binds a tool. Raises ServiceError with every violation."""
    violations = _event_id_violations(event_id)
    _check_name(binding.tool_name, "binding.tool_name", violations)
    _check_name(binding.provider_id, "binding.provider_id", violations)
    if binding.session_id:
        _check_name(binding.session_id, "binding.session_id", violations)
    if violations:
        raise invalid(violations)
    return _change(event_id, Fact(tool_bound=binding))


def tool_unbinding(tool_name: str, session_id: str, event_id: str) -> ChangeTools:
    """Return the command that ends a binding. Raises ServiceError with every violation."""
    violations = _event_id_violations(event_id)
    _check_name(tool_name, "tool_name", violations)
    if session_id:
        _check_name(session_id, "session_id", violations)
    if violations:
        raise invalid(violations)
    return _change(event_id, Fact(tool_unbound=ToolUnbound(tool_name=tool_name, session_id=session_id)))


def _change(event_id: str, fact: Fact) -> ChangeTools:
    return ChangeTools(Envelope(event_id=event_id or new_event_id(), fact=fact))


def _event_id_violations(event_id: str) -> Violations:
    problem = uuid_problem(event_id) if event_id else ""
    return [("event_id", problem)] if problem else []


def _check_name(name: str, path: str, violations: Violations) -> None:
    if not NAME.match(name):
        violations.append((path, _NOT_A_NAME))


def _check_version(version: str, path: str, violations: Violations) -> None:
    if not 1 <= len(version) <= VERSION_LENGTH_MAX:
        violations.append((path, f"is required: 1 to {VERSION_LENGTH_MAX} characters"))
    elif problem := text_problem(version):
        violations.append((path, problem))


def _check_names(names: Iterable[str], count_max: int, path: str, violations: Violations) -> None:
    all_names = list(names)
    if len(all_names) > count_max:
        violations.append((path, f"has more than {count_max} items"))
        return
    for index, name in enumerate(all_names):
        _check_name(name, f"{path}[{index}]", violations)
    if len(set(all_names)) < len(all_names):
        violations.append((path, "names something twice"))


def _check_redactions(pointers: Sequence[str], violations: Violations) -> None:
    if len(pointers) > TOOL_REDACTIONS_MAX:
        violations.append(("contract.redactions", f"has more than {TOOL_REDACTIONS_MAX} items"))
        return
    for index, pointer in enumerate(pointers):
        if not _REDACTION.match(pointer):
            violations.append((f"contract.redactions[{index}]", 'is not a JSON Pointer under /arguments or /result, e.g. "/result/token"'))
        elif problem := text_problem(pointer):
            violations.append((f"contract.redactions[{index}]", problem))


def _check_schema(schema: Struct, path: str, violations: Violations) -> None:
    """Check that a schema is JSON Schema 2020-12. A reference to another document is an error: nothing is read or fetched for a caller."""
    problems = struct_problems(schema, path)
    if problems:
        violations.extend(problems)
        return
    document = struct_to_dict(schema)
    problem = work_problem(document)
    if problem:
        violations.append((path, problem))
        return
    try:
        jsonschema_rs.Draft202012Validator(document, offline=True, pattern_options=_PATTERNS)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        violations.append((path, f"is not a JSON Schema 2020-12: {clip(str(error).splitlines()[0], _PROBLEM_LENGTH_MAX)}"))
