"""Transitions of versions: what the events of each trace name, and the last answer of a model to each prompt.

Both tables have a size limit and no other. A forgotten row can only hide a warning of drift.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.limits import PROMPTS_MAX, VERSIONED_TRACES_MAX
from gavel_rules.state.store import Store
from gavel_rules.state.versions import PAYLOADS_WITH_VERSIONS, TraceVersions, answer_of

# Bound once: docs/performance.md#module-constants.
_has_field: Final = Envelope.HasField


def note_versions(store: Store, event: RecordedEvent) -> None:
    """Note the versions that an event names, in its trace, and the answer of a model that it records."""
    envelope, payload = event.envelope, event.payload
    if payload not in PAYLOADS_WITH_VERSIONS and (payload == "decision" or not _has_field(envelope, "version_binding")):
        return
    old = store.trace_versions.get(event.trace_id)
    before = TraceVersions(event.sequence_number) if old is None else old
    after = before.with_event(envelope, payload)
    if after is not before:
        store.put(store.trace_versions, event.trace_id, after)
        if old is None and len(store.trace_versions) > VERSIONED_TRACES_MAX:
            numbers = {trace_id: one.sequence_number for trace_id, one in store.trace_versions.items()}
            store.drop_oldest(store.trace_versions, numbers, VERSIONED_TRACES_MAX // 4)
    answer = answer_of(envelope, payload)
    if answer is not None and answer.prompt_hash:
        store.put(store.answers, answer.prompt_hash, answer)
        if len(store.answers) > PROMPTS_MAX:
            numbers = {prompt_hash: one.sequence_number for prompt_hash, one in store.answers.items()}
            store.drop_oldest(store.answers, numbers, PROMPTS_MAX // 4)
