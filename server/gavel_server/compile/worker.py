"""The child process that compiles and tests one rule set document. A document can neither hang nor crash the server.

The process limits its own memory and processor time. It reads the document from standard input and writes a serialized
ValidateRuleSetResponse to standard output. It runs a valid document on generated cases with both engines, because a document that
breaks an engine must break it here. The cases distinguish the rules; their number, and the work to find them, are bounded for each
document. With the argument ANALYSED the process also analyses how the rules relate, for authors; a deployment does not need that.

Exit status: 0 with an answer, EXIT_MEMORY if memory ran out. `compiler`, the only caller, explains signals and other statuses.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Final

from gavel.v1.rule_set_service_pb2 import DocumentMessage, ValidateRuleSetResponse
from gavel_rules.authoring.decision_cost import COSTLY, find_costly_actions
from gavel_rules.authoring.lint import lint_rule_set
from gavel_rules.authoring.samples.cases import CaseGenerator, case_generators, generate_cases
from gavel_rules.errors import CaseError, NetworkFaultError
from gavel_rules.language import rule_set
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet, DocumentError, compile_rule_set
from gavel_rules.limits import MESSAGE_BYTES_MAX

from gavel_server.process.children import be_killed_first, lower_priority

ANALYSED: Final = "with_analysis"
PROCESSOR_SECONDS_MAX: Final = 10
MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
# Bounds for one document: the cases for the engines, and the work to find them, in steps of about half a microsecond.
CASES_MAX: Final = 1_000
CASES_MIN: Final = 8  # per action, even if there are many
CASES_WORK_MAX: Final = 2_000_000
ANALYSIS_WORK_MAX: Final = 2_000_000
# Room in the largest envelope for the other fields of the event that deploys a rule set.
ENVELOPE_ROOM_BYTES: Final = 4 * 1024
EXIT_MEMORY: Final = 3
# Decisions go first.
_NICENESS: Final = 5


def main() -> int:
    """Report on the document on standard input; return the exit status."""
    lower_priority(_NICENESS)
    be_killed_first()
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS_MAX, PROCESSOR_SECONDS_MAX + 1))  # SIGXCPU first
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Keep standard output for the answer, whatever a library prints.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        report = report_on(sys.stdin.buffer.read().decode(), with_analysis=ANALYSED in sys.argv[1:])
    except MemoryError:
        return EXIT_MEMORY
    with os.fdopen(answer, "wb") as output:
        output.write(report.SerializeToString())
    return 0


def report_on(document: str, with_analysis: bool) -> ValidateRuleSetResponse:
    """Compile a document, run it on generated cases, and return all errors and warnings; `with_analysis` adds those of the analysis."""
    try:
        rule_set = compile_rule_set(document)
    except DocumentError as error:
        return ValidateRuleSetResponse(errors=map(_message, error.messages))
    faults = [*_size_faults(document, rule_set), *_cost_faults(document, rule_set), *_engine_faults(rule_set)]
    warnings = rule_set.warnings
    if with_analysis and not faults:
        warnings = tuple(sorted((*warnings, *lint_rule_set(rule_set, ANALYSIS_WORK_MAX))))
    return ValidateRuleSetResponse(
        valid=not faults, errors=faults, warnings=map(_message, warnings), digest="" if faults else rule_set.digest
    )


def _message(message: rule_set.DocumentMessage) -> DocumentMessage:
    return DocumentMessage(
        line=message.line, column=message.column, code=message.code, message=message.message, suggestion=message.suggestion
    )


def _size_faults(document: str, rule_set: CompiledRuleSet) -> Iterator[DocumentMessage]:
    """Yield an error if the event that deploys the document, which holds it twice, would be too large for the log."""
    size_bytes = len(document.encode()) + len(rule_set.canonical_json.encode()) + ENVELOPE_ROOM_BYTES
    if size_bytes > MESSAGE_BYTES_MAX:
        yield DocumentMessage(
            line=1,
            column=1,
            code="too-large",
            message=f"the document and its canonical form take {size_bytes} bytes of an event; the limit is {MESSAGE_BYTES_MAX}",
            suggestion="split the rule set",
        )


def _cost_faults(document: str, rule_set: CompiledRuleSet) -> Iterator[DocumentMessage]:
    """Yield an error for each action whose decisions would hold up the server."""
    source = Source(document, Messages())
    for path, message, suggestion in find_costly_actions(rule_set):
        line, column = source.locate(path)
        yield DocumentMessage(line=line, column=column, code=COSTLY, message=message, suggestion=suggestion)


def _engine_faults(rule_set: CompiledRuleSet) -> Iterator[DocumentMessage]:
    """Yield an error for each action on which an engine fails or the engines disagree: a bug in Gavel, found before it can decide."""
    cases_max = max(CASES_MIN, CASES_MAX // len(rule_set.actions))
    for generator in case_generators(rule_set, CASES_WORK_MAX):
        fault = _case_fault(generator, cases_max)
        if fault:
            yield DocumentMessage(
                line=1,
                column=1,
                code="engine-disagreement",
                message=fault,
                suggestion="this is a bug in Gavel: report it with the document, and write the action's conditions differently",
            )


def _case_fault(generator: CaseGenerator, cases_max: int) -> str:
    """Return how an engine fails, or the engines disagree, on the generated cases of an action; "" if neither happens."""
    action = generator.action
    try:
        action.start()
    except NetworkFaultError as error:
        return f"an engine fails ({error}) when it starts for {action.action_type}"
    for sample in generate_cases(action, cases_max, generator):
        fault = _fault(action, sample.case)
        if fault:
            return f"{fault} on a case of {action.action_type} with params {json.dumps(sample.params, sort_keys=True)}"
    return ""


def _fault(action: CompiledAction, case: Case) -> str:
    """Return how the engines fail on a case, run together and each alone; "" if they agree."""
    try:
        verdicts = {action.evaluate(case, True), action.evaluate(case, False), action.evaluate_reference(case)}
    except (NetworkFaultError, CaseError) as error:
        return f"an engine fails ({error})"
    return "the two rule engines disagree" if len(verdicts) > 1 or any(verdict.disagreement for verdict in verdicts) else ""


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # The kernel frees the process at once. The interpreter would take its modules apart first, which costs a quarter of the whole run.
    os._exit(status)
