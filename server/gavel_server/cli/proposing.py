"""`gavel propose` and `gavel preflight`: a proposal from a document, and the decision it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server, connected

if TYPE_CHECKING:
    from gavel.v1.arbitration_service_pb2 import RuleExplanation, SubmitProposalResponse
    from gavel.v1.decision_pb2 import Decision, RetryHint
    from gavel.v1.envelope_pb2 import Envelope
    from gavel_client import SyncGavelClient

Document = Annotated[str, typer.Argument(metavar="FILE", help="An Envelope in protobuf JSON or YAML; - is standard input.")]


def propose(
    file: Document,
    wait_seconds: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0.1, help="How long to wait for the decision: a contest has to close first.")
    ] = 30.0,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Submit a proposal and print its decision. A refusal by policy is an answer: exit status 0."""
    from gavel.v1.decision_pb2 import OUTCOME_NEEDS_HUMAN_REVIEW

    from gavel_server.cli import documents, output

    envelope = documents.read_envelope(file)
    with connected(server, bus) as client:
        response = _submitted(client, envelope, wait_seconds)
    if as_json:
        output.print_json(response)
        return
    decided = response.decision
    rows = [("decision", f"{decided.decision.decision_id} (event {decided.sequence_number})")]
    if decided.decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        rows.append(("waits for", "a person; gavel reviews lists it"))
    print_decision(decided.decision, rows)


def _submitted(client: SyncGavelClient, envelope: Envelope, wait_seconds: float) -> SubmitProposalResponse:
    """Submit the proposal under an event_id that can be named, should no decision come in time."""
    import grpc
    from gavel_client import GavelError, new_event_id

    from gavel_server.cli.errors import CommandError

    envelope.event_id = envelope.event_id or new_event_id()
    try:
        return client.submit_proposal(envelope, timeout_ms=int(wait_seconds * 1000))
    except GavelError as error:
        if error.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise CommandError(
            f"no decision within {wait_seconds:g} s; if the proposal competes, that comes when its contest closes: propose the same "
            f"again with event_id {envelope.event_id} and a longer --wait, or look at `gavel status`"
        ) from error


def preflight(
    file: Document,
    explain: Annotated[bool, typer.Option("--explain", help="Show every rule of the action with its conditions' values.")] = False,
    rules: Annotated[str, typer.Option("--rules", metavar="FILE", help="A rule set that stands in for the active one of its name.")] = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the decision that a proposal would get now. Nothing is written or counted."""
    from gavel_server.cli import documents, output

    envelope = documents.read_envelope(file)
    rule_set_override = documents.read_rule_set(rules) if rules else ""
    with connected(server, bus, document=rules) as client:
        response = client.preflight(envelope, rule_set_override=rule_set_override, explain=explain)
    if as_json:
        output.print_json(response)
        return
    print_decision(response.decision, [("evaluated at", f"event {response.evaluated_at_sequence_number}; nothing was written")])
    if explain:
        print_explanations(list(response.explanations))


def print_decision(decision: Decision, rows: list[tuple[str, str]]) -> None:
    """Print a decision for people, `rows` before what it says of itself."""
    from gavel.v1.decision_pb2 import FactRequirementState
    from gavel_rules.events import GAVEL

    from gavel_server.cli import output
    from gavel_server.cli.describe import duration, moment, outcome_words, printable, short, struct_text
    from gavel_server.cli.meanings import MEANINGS

    rows.insert(0, ("outcome", " ".join(outcome_words(decision))))
    if decision.reason_code in MEANINGS:
        rows.insert(1, ("means", MEANINGS[decision.reason_code]))
    rows.append(("action", f"{decision.action_type} {struct_text(decision.params)}"))
    if decision.rule_id:
        rows.append(("rule", f"{decision.rule_id} of {decision.policy_id} version {decision.policy_version}"))
    elif decision.policy_id == GAVEL:
        rows.append(("decided by", f"Gavel itself, arbiter version {decision.policy_version}"))
    elif decision.policy_id:
        rows.append(("decided by", f"{decision.policy_id} version {decision.policy_version}"))
    if len(decision.active_rule_sets) > 1:
        rows.append(("asked", ", ".join(f"{one.policy_id} version {one.version}" for one in decision.active_rule_sets)))
    if decision.conflict_with_proposal_ids:
        rows.append(("conflicts with", ", ".join(decision.conflict_with_proposal_ids)))
    if decision.HasField("contest"):
        rows.append(("contest", contest_text(decision)))
    if decision.HasField("valid_until"):
        rows.append(("valid until", moment(decision.valid_until)))
    if decision.terminal:
        rows.append(("terminal", "no proposal of this trace for this action and subject can succeed as things stand"))
    elif decision.HasField("retry_hint"):
        rows.append(("retry", _retry(decision.retry_hint)))
    rows += [("warning", printable(f"{warning.code} {warning.message}")) for warning in decision.warnings]
    output.print_fields(rows)
    output.print_table(
        ("fact", "subject", "state", "tier", "at most old", "sources"),
        (
            (
                row.key,
                row.subject,
                short(FactRequirementState, row.state),
                str(int(row.required_trust_tier) or "any"),
                duration(row.max_age_ms) if row.max_age_ms else "any",
                ", ".join(row.sources) or "any",
            )
            for row in decision.retry_hint.fact_requirements
        ),
        title="What is lacking",
    )
    output.print_table(
        ("fact", "subject", "event", "tier", "fresh until"),
        (
            (fact.key, fact.subject, f"#{fact.sequence_number}", str(int(fact.trust_tier)), moment(fact.fresh_until))
            for fact in decision.pinned_facts
        ),
        title="Rests on",
    )


def _retry(hint: RetryHint) -> str:
    from gavel_server.cli.describe import duration

    if not hint.retryable:
        return "cannot help"
    if hint.retry_after_ms:
        return f"can help, in {duration(hint.retry_after_ms)} at the earliest"
    if hint.fact_requirements:
        return "can help, with what is lacking"
    return "another proposal can help, the same again cannot"


def contest_text(decision: Decision) -> str:
    """Say how a proposal fared in its contest, or until when it would compete."""
    from gavel_server.cli.describe import moment

    contest = decision.contest
    if not decision.decision_id:
        return f"it would compete until {moment(contest.closed_at)}, with a score of {contest.candidates[0].score:g}"
    place, own = next((place, one) for place, one in enumerate(contest.candidates, 1) if one.proposal_id == decision.proposal_id)
    how = own.reason_code or f"with a score of {own.score:g}"
    return f"place {place} of {len(contest.candidates)}, {how}; closed {moment(contest.closed_at)}"


def print_explanations(explanations: list[RuleExplanation]) -> None:
    """Print every rule with the parts of its condition and their values."""
    from gavel_server.cli import output
    from gavel_server.cli.describe import printable

    rows: list[tuple[str, str, str, str]] = []
    for rule in explanations:
        rows.append((f"{rule.policy_id} {rule.rule_id}", "yes" if rule.matched else "no", "", ""))
        rows += [("", "", printable(term.expression), printable(term.value)) for term in rule.terms]
    output.print_table(("rule", "matched", "condition", "value"), rows, title="Rules", empty="No rule was asked.")
