"""The tables of a state as parts of a StateSnapshot.

Rows are sorted, and entries that follow from others are left out, so equal states have equal bytes. The hash over all parts is therefore a
digest of the state (`state_sha256`), which a new arbiter version records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from gavel.internal.v1 import state_snapshot_pb2 as snapshot
from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel.v1.decision_pb2 import RejectionCounts
from google.protobuf.message import Message

from gavel_rules.state.counters import CounterEntry, CounterTable, EarlyEnd
from gavel_rules.state.packed_evidence import pack_evidence, pack_outliving_result
from gavel_rules.state.records import EndedDecision, Holder, LiveDecision, OpenContest, Review
from gavel_rules.state.store import Store
from gavel_rules.state.versions import TraceVersions

FORMAT_VERSION: Final = 5
# Rows of one part: a part has some hundred kilobytes. A part of a paged table has fewer: it is read for each of its rows.
ROWS_MAX: Final = 512
PAGED_ROWS_MAX: Final = 32
PAGED_TABLES: Final = ("evidence", "outliving_results")


def encode_position(store: Store, chain_hash: bytes, incarnation: str) -> bytes:
    """Return the first part: which state it is. `incarnation` is the event_id of the first event."""
    return _serialize(
        StateSnapshot(
            format_version=FORMAT_VERSION,
            bus=store.bus,
            sequence_number=store.head,
            chain_hash=chain_hash,
            arbiter_version=store.arbiter_version,
            incarnation=incarnation,
        )
    )


def encode_tables(store: Store) -> Iterator[bytes]:
    """Yield the parts with the tables. The state must hold nothing uncommitted, and not change meanwhile."""
    settings = StateSnapshot(
        recorded_at_ms=store.recorded_at_ms, cross_check=store.cross_check, idempotency_window_ms=store.idempotency_window_ms
    )
    acceptance = store.clock_acceptance
    if acceptance is not None:
        settings.clock_acceptance.recorded_at_ms, settings.clock_acceptance.clock_ms = acceptance
    yield _serialize(settings)
    for name, rows in _tables(store).items():
        # The compiled build makes lists of generator expressions.
        remaining = iter(rows)
        rows_max = PAGED_ROWS_MAX if name in PAGED_TABLES else ROWS_MAX
        while chunk := list(islice(remaining, rows_max)):
            part = StateSnapshot()
            getattr(part, name).extend(chunk)
            yield _serialize(part)
        if name == "grants_versions" and store.grants_in_force is not None:
            in_force = snapshot.GrantsInForce(
                version=store.grants_in_force.deployed.version, binds_anonymous=store.grants_in_force.binds_anonymous
            )
            yield _serialize(StateSnapshot(grants_in_force=in_force))


def state_sha256(store: Store) -> bytes:
    """Return the SHA-256 over the tables: the digest of the state in snapshots."""
    digest = hashlib.sha256()
    for part in encode_tables(store):
        digest.update(part)
    return digest.digest()


def _tables(store: Store) -> dict[str, Iterator[Message] | Iterator[bytes] | Iterator[str]]:
    """Return the rows of each table, by the field of StateSnapshot, in the order of the fields."""
    return {**_configuration(store), **_work(store), **_traces(store)}


def _configuration(store: Store) -> dict[str, Iterator[Message] | Iterator[bytes]]:
    tools = store.tools
    return {
        "rule_sets": (
            snapshot.DeployedRuleSet(
                policy_id=policy_id,
                version=version,
                digest=deployed.digest,
                action_types=deployed.action_types,
                document=deployed.document,
                canonical_json=deployed.canonical_json,
                sequence_number=deployed.sequence_number,
                recorded_at_ms=deployed.recorded_at_ms,
            )
            for (policy_id, version), deployed in sorted(store.rule_sets.items())
        ),
        "active_rule_sets": (
            snapshot.ActiveRuleSet(
                policy_id=policy_id,
                version=active.version,
                sequence_number=active.sequence_number,
                previous_version=active.previous_version,
            )
            for policy_id, active in sorted(store.active_rule_sets.items())
        ),
        "shadows": (
            snapshot.ShadowRuleSet(
                policy_id=policy_id,
                version=shadow.version,
                sequence_number=shadow.sequence_number,
                previous_version=shadow.previous_version,
                decisions=shadow.decisions,
                differences=shadow.differences,
            )
            for policy_id, shadow in sorted(store.shadows.items())
        ),
        "grants_versions": (snapshot.DeployedGrants(**deployed._asdict()) for _, deployed in sorted(store.grants_versions.items())),
        "tool_contracts": (snapshot.RegisteredContract(**one._asdict()) for _, one in sorted(tools.contracts.items())),
        "tool_aliases": _texts(tools.aliases),
        "tool_providers": (
            snapshot.RegisteredProvider(provider=one.provider, sequence_number=one.sequence_number)
            for _, one in sorted(tools.providers.items())
        ),
        "tool_bindings": (
            snapshot.BoundTool(
                session_id=session_id, tool_name=tool_name, provider_id=bound.provider_id, sequence_number=bound.sequence_number
            )
            for (session_id, tool_name), bound in sorted(tools.bindings.items())
        ),
    }


def _work(store: Store) -> dict[str, Iterator[Message] | Iterator[bytes]]:
    tables = store.contest_tables
    return {
        "evidence": _evidence(store),
        "open_proposals": (tables.open_proposals[event_id].stored.content for event_id in sorted(tables.open_proposals)),
        "open_proposals_by_subject": _keys_in_order(tables.open_proposals_by_subject),
        "open_proposals_by_trace": _text_tables(tables.open_proposals_by_trace),
        "contests": (_contest(tables.contests[name]) for name in sorted(tables.contests)),
        "decisions": (_live_decision(store.decisions[decision_id]) for decision_id in sorted(store.decisions)),
        "decisions_by_subject": _keys_in_order(store.decisions_by_subject),
        "conflict_keys": _texts(store.conflict_keys),
        "grants": _texts(store.grants),
        "ended_decisions": (_ended_decision(store.ended_decisions[decision_id]) for decision_id in sorted(store.ended_decisions)),
        "reviews": (_review(review) for review in sorted(store.reviews.values(), key=lambda review: review.sequence_number)),
    }


def _traces(store: Store) -> dict[str, Iterator[Message] | Iterator[bytes] | Iterator[str]]:
    return {
        "traces": _numbers(store.traces),
        "refused_traces": (
            snapshot.RefusedTrace(trace_id=trace_id, producer=producer, sequence_number=number)
            for _, (producer, number, trace_id) in sorted(store.refused_traces.by_trace.items())
        ),
        "refusals": (_refusals(store, trace_id) for trace_id in sorted(store.refusals)),
        "trace_reviews": _text_tables(store.trace_reviews),
        "closed_actions": (_closed_actions(store, trace_id) for trace_id in sorted(store.closed_actions)),
        "tool_calls": (_tool_calls(store, trace_id) for trace_id in sorted(store.tool_calls)),
        "tool_results": (_tool_results(store, trace_id) for trace_id in sorted(store.tool_result_tables.tool_results)),
        "readings": _text_tables(store.tool_result_tables.readings),
        "contradictions": _texts(store.tool_result_tables.contradictions),
        "timers": (snapshot.Timer(due_ms=due_ms, sequence_number=number, name=name) for due_ms, number, name in store.timers),
        "candidate_counts": _numbers(store.tool_result_tables.candidate_counts),
        "outliving_results": _outliving_results(store),
        "trace_versions": (_trace_versions(trace_id, store.trace_versions[trace_id]) for trace_id in sorted(store.trace_versions)),
        "answers": (snapshot.ModelAnswer(**store.answers[prompt_hash]._asdict()) for prompt_hash in sorted(store.answers)),
        "counters": (_counter(store.counters[digest]) for digest in sorted(store.counters)),
        "counter_entries": (
            _counter_entry(digest, entry_id, store.counters[digest].entries[entry_id])
            for digest in sorted(store.counters)
            for entry_id in sorted(store.counters[digest].entries)
        ),
    }


def _counter(table: CounterTable) -> snapshot.Counter:
    return snapshot.Counter(
        digest=table.counter.digest,
        policy_id=table.policy_id,
        version=table.version,
        opened_at=table.opened_at,
        flags=sorted(flag for flag, is_set in table.flags.items() if is_set),
        faults=(
            snapshot.CounterFault(group=group, until_ms=fault.until_ms, sequence_number=fault.sequence_number)
            for group, fault in sorted(table.faults.items())
        ),
        early_ends=(_early_end(entry_id, table.early_ends[entry_id]) for entry_id in sorted(table.early_ends)),
    )


def _early_end(entry_id: str, end: EarlyEnd) -> snapshot.EarlyEnd:
    return snapshot.EarlyEnd(
        entry_id=entry_id,
        settled=None if end.settled is None else _counter_entry("", entry_id, end.settled),
        since_ms=end.since_ms,
        reported_at=end.reported_at,
        is_released=end.is_released,
        undone_before=end.undone_before,
    )


def _counter_entry(digest: str, entry_id: str, entry: CounterEntry) -> snapshot.CounterEntry:
    row = snapshot.CounterEntry(
        digest=digest, entry_id=entry_id, group=entry.group, lapses_at_ms=entry.lapses_at_ms, sequence_number=entry.sequence_number
    )
    if isinstance(entry.value, str):
        row.text = entry.value
    else:
        row.amount = entry.value
    return row


def _serialize(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _texts(table: Mapping[str, str]) -> Iterator[snapshot.Text]:
    return (snapshot.Text(key=key, value=table[key]) for key in sorted(table))


def _numbers(table: Mapping[str, int]) -> Iterator[snapshot.Number]:
    return (snapshot.Number(key=key, value=table[key]) for key in sorted(table))


def _keys_in_order(table: Mapping[str, Mapping[str, int]]) -> Iterator[snapshot.Texts]:
    """Yield the keys of the dicts in a table, in the order of their numbers."""
    return (snapshot.Texts(key=key, values=sorted(table[key], key=table[key].__getitem__)) for key in sorted(table))


def _text_tables(table: Mapping[str, Mapping[str, str]]) -> Iterator[snapshot.TextTable]:
    return (snapshot.TextTable(key=key, rows=_texts(table[key])) for key in sorted(table))


def _evidence(store: Store) -> Iterator[snapshot.SubjectEvidence]:
    for subject, keys in store.paged_evidence.rows():
        yield snapshot.SubjectEvidence(subject=subject, evidence=keys if isinstance(keys, bytes) else pack_evidence(keys))


def _outliving_results(store: Store) -> Iterator[snapshot.OutlivingResult]:
    for event_id, result in store.tool_result_tables.outliving_results.rows():
        if isinstance(result, bytes):
            yield snapshot.OutlivingResult(event_id=event_id, readings=result)
        elif result.candidate_count:
            yield snapshot.OutlivingResult(event_id=event_id, readings=pack_outliving_result(result))


def _contest(contest: OpenContest) -> snapshot.OpenContest:
    return snapshot.OpenContest(**contest._asdict())


def _live_decision(live: LiveDecision) -> snapshot.LiveDecision:
    return snapshot.LiveDecision(
        decision_id=live.decision_id,
        sequence_number=live.sequence_number,
        decision=live.stored_decision.content,
        proposal=live.stored_proposal.content,
        conflict_key=live.conflict_key,
        phase=live.phase,
        last_sequence_number=live.last_sequence_number,
        timer_due_ms=live.timer_due_ms,
        attempt=live.attempt,
        starts=live.starts,
        is_running=live.is_running,
        execution_id=live.execution_id,
        executor_type=live.executor_type,
        executor_id=live.executor_id,
        executor_version=live.executor_version,
        holders=[_holder(holder) for holder in live.holders],
        unreported_attempts=live.unreported_attempts,
        lease_until_ms=live.lease_until_ms,
        status=live.status,
        status_event_id=live.status_event_id,
        status_sequence_number=live.status_sequence_number,
        awaited_facts=[snapshot.AwaitedFact(event_id=fact.event_id, execution=_serialize(fact.execution)) for fact in live.awaited_facts],
        review=live.review,
        grant=b"" if live.grant is None else _serialize(live.grant),
        grant_ids=live.grant_ids,
        is_revoked=live.is_revoked,
        compensation=live.compensation,
    )


def _holder(holder: Holder) -> snapshot.Holder:
    producer_type, producer_id, *caller = holder
    return snapshot.Holder(producer_type=int(producer_type), producer_id=str(producer_id), caller=[str(part) for part in caller])


def _ended_decision(ended: EndedDecision) -> snapshot.EndedDecision:
    return snapshot.EndedDecision(decision=_live_decision(ended.live), ended_at_ms=ended.ended_at_ms)


def _review(review: Review) -> snapshot.Review:
    return snapshot.Review(
        decision_id=review.decision_id,
        sequence_number=review.sequence_number,
        decision=_serialize(review.decision),
        approved_decision_id=review.approved_decision_id,
        proposal=_serialize(review.proposal),
        votes=[_serialize(vote) for vote in review.votes],
        is_escalated=review.is_escalated,
    )


def _refusals(store: Store, trace_id: str) -> snapshot.TraceRefusals:
    row = snapshot.TraceRefusals(trace_id=trace_id)
    for producer, refusals in sorted(store.refusals[trace_id].items()):
        rejections = refusals.rejections
        row.refusals.add(
            producer=producer,
            counts=RejectionCounts(evidence=rejections.evidence, policy=rejections.policy, conflict=rejections.conflict),
            fingerprint=refusals.fingerprint,
            sequence_number=refusals.sequence_number,
        )
    return row


def _closed_actions(store: Store, trace_id: str) -> snapshot.TraceClosedActions:
    row = snapshot.TraceClosedActions(trace_id=trace_id)
    for action, closed in sorted(store.closed_actions[trace_id].items()):
        row.actions.add(
            action=action,
            decision=closed.decision.content,
            decision_id=closed.decision_id,
            sequence_number=closed.sequence_number,
            by_person=closed.by_person,
        )
    return row


def _tool_calls(store: Store, trace_id: str) -> snapshot.TraceToolCalls:
    row = snapshot.TraceToolCalls(trace_id=trace_id)
    for execution_id, call in sorted(store.tool_calls[trace_id].items()):
        row.calls.add(execution_id=execution_id, **call._asdict())
    return row


def _trace_versions(trace_id: str, versions: TraceVersions) -> snapshot.TraceVersions:
    row = snapshot.TraceVersions(trace_id=trace_id, sequence_number=versions.sequence_number)
    for bound in versions.bound:
        row.bound.add(**bound._asdict())
    for mismatch in versions.mismatches:
        expected = snapshot.BoundVersion(**mismatch.bound._asdict())
        row.mismatches.add(bound=expected, version=mismatch.version, sequence_number=mismatch.sequence_number)
    for tool in versions.tools:
        row.tools.add(**tool._asdict())
    for answer in versions.answers:
        row.answers.add(**answer._asdict())
    return row


def _tool_results(store: Store, trace_id: str) -> snapshot.TraceToolResults:
    row = snapshot.TraceToolResults(trace_id=trace_id)
    for event_id, evidence in sorted(store.tool_result_tables.tool_results[trace_id].items()):
        row.results.add(event_id=event_id, **evidence._asdict())
    return row
