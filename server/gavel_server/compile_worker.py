"""The child process that compiles one rule set document and tries it out, so that no document can hang or crash a server.

Reads the document from standard input and writes a serialized ValidateRuleSetResponse to standard output. Before it reads, it
limits its own memory and processor time. A document that compiles is then run on made cases, on both engines: what would stop
an engine stops it here. The cases are those that tell its rules apart (`gavel_rules.authoring.cases`); how many there are, and what it may
take to find them, is bounded for the whole document. With ANALYSED as its argument it also looks at how the rules stand to each
other, for authors; a deployment does not wait for that.

Exit status: 0 with an answer, EXIT_MEMORY without one when memory ran out; a death by signal or any other status is for
`compiler` to explain. Started by `compiler` alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Final

from gavel.v1.rule_set_service_pb2 import DocumentMessage, ValidateRuleSetResponse
from gavel_rules.authoring.analysis import analyse
from gavel_rules.authoring.cases import CaseMaker, generated_cases, makers
from gavel_rules.errors import CaseError, NetworkFaultError
from gavel_rules.language import ruleset
from gavel_rules.language.case import Case
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet, DocumentError, compile_rule_set
from gavel_rules.limits import MESSAGE_BYTES_MAX

ANALYSED: Final = "analysed"
PROCESSOR_SECONDS_MAX: Final = 10
MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
# Of one document: how many cases are put to the engines, and what it may take to find them, in steps of about half a microsecond.
CASES_MAX: Final = 1_000
CASES_MIN: Final = 8  # of one action, however many there are
CASES_WORK_MAX: Final = 2_000_000
ANALYSIS_WORK_MAX: Final = 2_000_000
# What the rest of the event that deploys a rule set takes at most of the largest envelope.
ENVELOPE_ROOM_BYTES: Final = 4 * 1024
EXIT_MEMORY: Final = 3


def main() -> int:
    """Answer for the document on standard input."""
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS_MAX, PROCESSOR_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The answer has standard output to itself, whatever a library may print.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        report = report_on(sys.stdin.buffer.read().decode(), analysed=ANALYSED in sys.argv[1:])
    except MemoryError:
        return EXIT_MEMORY
    with os.fdopen(answer, "wb") as output:
        output.write(report.SerializeToString())
    return 0


def report_on(document: str, analysed: bool) -> ValidateRuleSetResponse:
    """Compile a document, try it out, and return what there is to say; with `analysed`, also of how its rules stand to each other."""
    try:
        rule_set = compile_rule_set(document)
    except DocumentError as error:
        return ValidateRuleSetResponse(errors=map(_message, error.messages))
    faults = [*_size_faults(document, rule_set), *_engine_faults(rule_set)]
    warnings = rule_set.warnings
    if analysed and not faults:
        warnings = tuple(sorted((*warnings, *analyse(rule_set, ANALYSIS_WORK_MAX))))
    return ValidateRuleSetResponse(
        valid=not faults, errors=faults, warnings=map(_message, warnings), digest="" if faults else rule_set.digest
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
    """Yield the actions on which an engine fails, or the two disagree: a fault of Gavel's, found before it can decide anything."""
    cases_max = max(CASES_MIN, CASES_MAX // len(rule_set.actions))
    for maker in makers(rule_set, CASES_WORK_MAX):
        fault = _found_with(maker, cases_max)
        if fault:
            yield DocumentMessage(
                line=1,
                column=1,
                code="engine-disagreement",
                message=fault,
                suggestion="this is a fault of Gavel's: report it with the document, and word the action's conditions otherwise",
            )


def _found_with(maker: CaseMaker, cases_max: int) -> str:
    """Return what goes wrong with the engines on an action's made cases; "" when nothing does."""
    action = maker.action
    try:
        action.start()
    except NetworkFaultError as error:
        return f"an engine fails ({error}) when started on {action.action_type}"
    for made in generated_cases(action, cases_max, maker):
        fault = _fault(action, made.case)
        if fault:
            return f"{fault} about {action.action_type} with params {json.dumps(made.params, sort_keys=True)}"
    return ""


def _fault(action: CompiledAction, case: Case) -> str:
    """Return what goes wrong when both engines are asked, together and each alone; "" when nothing does."""
    try:
        verdicts = {action.evaluate(case, True), action.evaluate(case, False), action.evaluate_reference(case)}
    except (NetworkFaultError, CaseError) as error:
        return f"an engine fails ({error}) when asked"
    return "the two rule engines disagree" if len(verdicts) > 1 or any(verdict.disagreement for verdict in verdicts) else ""


if __name__ == "__main__":
    sys.exit(main())
