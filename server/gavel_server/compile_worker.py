"""The child process that compiles one rule set document and tries it out, so that no document can hang or crash a server.

Reads the document from standard input and writes a serialized ValidateRuleSetResponse to standard output. Before it reads, it
limits its own memory and processor time. A document that compiles is then run on generated cases, on both engines: what
would stop an engine stops it here. Exit status: 0 with an answer, EXIT_MEMORY without one when memory ran out; a death by
signal or any other status is for `compiler` to explain. Started by `compiler` alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gavel.v1.rule_set_service_pb2 import DocumentMessage, ValidateRuleSetResponse
from gavel_rules import ruleset
from gavel_rules.case import Case
from gavel_rules.limits import MESSAGE_BYTES_MAX
from gavel_rules.ruleset import CompiledAction, CompiledRuleSet, DocumentError, compile_rule_set

PROCESSOR_SECONDS_MAX: Final = 10
MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
CASES_PER_ACTION: Final = 16
# What the rest of the event that deploys a rule set takes at most of the largest envelope.
ENVELOPE_ROOM_BYTES: Final = 4 * 1024
EXIT_MEMORY: Final = 3

# Values to try where only the type is known.
_SAMPLES: Final[dict[str, Sequence[object]]] = {
    "string": ("", "a", "A-1", "EUR"),
    "number": (0.0, 1.5, -1.0, 1e6),
    "integer": (0, 1, -1, 1_000_000),
    "boolean": (True, False),
    "array": ([],),
    "object": ({},),
    "null": (None,),
}


def main() -> int:
    """Answer for the document on standard input."""
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS_MAX, PROCESSOR_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The answer has standard output to itself, whatever a library may print.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        report = report_on(sys.stdin.buffer.read().decode())
    except MemoryError:
        return EXIT_MEMORY
    with os.fdopen(answer, "wb") as output:
        output.write(report.SerializeToString())
    return 0


def report_on(document: str) -> ValidateRuleSetResponse:
    """Compile a document, try it out, and return what there is to say."""
    try:
        rule_set = compile_rule_set(document)
    except DocumentError as error:
        return ValidateRuleSetResponse(errors=map(_message, error.messages))
    faults = [*_size_faults(document, rule_set), *_engine_faults(rule_set)]
    return ValidateRuleSetResponse(
        valid=not faults, errors=faults, warnings=map(_message, rule_set.warnings), digest="" if faults else rule_set.digest
    )


def _message(message: ruleset.DocumentMessage) -> DocumentMessage:
    return DocumentMessage(
        line=message.line, column=message.column, code=message.code, message=message.message, suggestion=message.suggestion
    )


def _size_faults(document: str, rule_set: CompiledRuleSet) -> Iterator[DocumentMessage]:
    """Yield a mistake if the event that deploys the document, which holds it twice, would be too large for the log."""
    size_bytes = len(document.encode()) + len(rule_set.canonical_json.encode()) + ENVELOPE_ROOM_BYTES
    if size_bytes > MESSAGE_BYTES_MAX:
        yield DocumentMessage(
            line=1,
            column=1,
            code="too-large",
            message=f"the document and its canonical form take {size_bytes} bytes of an event; the limit is {MESSAGE_BYTES_MAX}",
            suggestion="split the rule set",
        )


def _engine_faults(rule_set: CompiledRuleSet) -> Iterator[DocumentMessage]:
    """Yield the actions on which the engines fail or disagree: a fault of Gavel's, found before it can decide anything."""
    actions = json.loads(rule_set.canonical_json)["actions"]
    for action_type, action in rule_set.actions.items():
        for case in _cases(action, actions[action_type]["params"]):
            verdict = action.evaluate(case, True)
            if verdict.disagreement is not None:
                yield DocumentMessage(
                    line=1,
                    column=1,
                    code="engine-disagreement",
                    message=f"the two rule engines disagree about {action_type} with params {json.dumps(case.params, sort_keys=True)}",
                    suggestion="this is a fault of Gavel's: report it with the document, and word the action's conditions otherwise",
                )
                break


def _cases(action: CompiledAction, schema: dict[str, Any]) -> Iterator[Case]:
    """Yield cases whose params fit the action's schema, with facts of their declared types; optional ones come and go."""
    for index in range(CASES_PER_ACTION):
        params = {
            name: value
            for position, (name, part) in enumerate(sorted(schema.get("properties", {}).items()))
            if name in schema.get("required", ()) or (index >> position % 4) & 1
            for value in [_sample(part, index + position)]
        }
        if action.violations(params):
            continue
        yield Case(
            params=action.typed_params(params),
            facts={
                fact.name: _sample({"type": fact.value_type}, index + position)
                for position, fact in enumerate(action.facts)
                if not fact.optional or (index >> position % 4) & 1
            },
            risk=index / CASES_PER_ACTION,
            cost=float(index),
            confidence=1.0 - index / CASES_PER_ACTION,
            priority=index,
            expected_outcome="",
            subject="order/1",
            producer_type="AGENT",
            producer_id="agent",
            producer_version="",
            evidence_count=len(action.facts),
            evidence_worst_trust=1 + index % 3,
            evidence_oldest_age_ms=index * 1000,
            consecutive_rejections=index % 4,
            now_ms=1_700_000_000_000 + index,
        )


def _sample(part: Any, index: int) -> object:
    """Return a value for a schema that says its values or its type; None for one that does not."""
    if not isinstance(part, dict):
        return None
    if "const" in part:
        return part["const"]
    values = part.get("enum") or part.get("examples") or _SAMPLES.get(str(part.get("type")), (None,))
    value: object = values[index % len(values)]
    if not isinstance(value, bool) and isinstance(value, int | float):
        least = part.get("minimum", part.get("exclusiveMinimum"))
        if isinstance(least, int | float) and value <= least:
            value = least + 1 + index
    return value


if __name__ == "__main__":
    sys.exit(main())
