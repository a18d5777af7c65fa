"""The drift of a whole log: what its events recorded, compared with the state at its end. It does not affect the verdict of a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.drift_pb2 import Drift
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.arbitration.drift import mismatch_drift, model_drifts, rule_set_drifts, schema_drifts
from gavel_rules.state.state import State
from gavel_rules.state.versions import ModelAnswer, ToolSchemas, VersionMismatch, answer_of, schemas_of

DRIFTS_MAX: Final = 100
# Different records of one kind. Further ones are not looked at.
RECORDS_MAX: Final = 10_000


class DriftReport:
    """Collects what events record of versions. Note every event in order, then ask for the drifts."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._tools: dict[tuple[Any, ...], ToolSchemas] = {}
        self._answers: dict[tuple[Any, ...], ModelAnswer] = {}
        self._mismatches: dict[tuple[Any, ...], VersionMismatch] = {}
        self._decisions: dict[tuple[Any, ...], tuple[int, Decision]] = {}

    def note(self, event: Envelope, state: State) -> None:
        """Note an event. `state` is that of the bus after it."""
        payload = str(event.WhichOneof("payload"))
        number = event.sequence_number
        schemas = schemas_of(event, payload)
        if schemas is not None:
            self._add(self._tools, ("tool", *schemas[:4]), schemas)
        answer = answer_of(event, payload)
        if answer is not None:
            self._add(self._answers, ("answer", *answer[:5]), answer)
        if payload != "decision":
            versions = state.trace_versions.get(event.trace_id) if event.HasField("version_binding") else None
            for mismatch in versions.find_mismatches(event.version_binding, number) if versions is not None else ():
                self._add(self._mismatches, ("version", *mismatch.bound[:2], mismatch.version), mismatch)
        elif not event.decision.previous_decision_id and not event.decision.compensates_decision_id:
            decision = event.decision
            consulted = tuple([(reference.policy_id, reference.version) for reference in decision.active_rule_sets])
            few = Decision(action_type=decision.action_type, active_rule_sets=decision.active_rule_sets)
            self._add(self._decisions, ("decision", decision.action_type, consulted), (number, few))

    @property
    def content(self) -> tuple[dict[tuple[Any, ...], Any], ...]:
        """The noted drift as plain values, for `merge`."""
        return dict(self._counts), self._tools, self._answers, self._mismatches, self._decisions

    def merge(self, content: tuple[dict[tuple[Any, ...], Any], ...]) -> None:
        """Add the notes of another report on the events that follow."""
        counts, *tables = content
        own: tuple[dict[tuple[Any, ...], Any], ...] = (self._tools, self._answers, self._mismatches, self._decisions)
        for table, further in zip(own, tables, strict=True):
            for key, record in further.items():
                self._add(table, key, record)
                if key in table:
                    self._counts[key] += counts[key] - 1

    def drifts(self, state: State) -> list[Drift]:
        """Return the drifts, compared with a state, with the number of events that have each; at most DRIFTS_MAX."""
        drifts: list[Drift] = []
        for key, tool in self._tools.items():
            drifts += self._counted(key, schema_drifts(state, [tool]))
        for key, answer in self._answers.items():
            drifts += self._counted(key, model_drifts(state, [answer]))
        for key, mismatch in self._mismatches.items():
            drifts += self._counted(key, [mismatch_drift(mismatch)])
        for key, (number, decision) in self._decisions.items():
            drifts += self._counted(key, rule_set_drifts(state, decision, number))
        return drifts[:DRIFTS_MAX]

    def _add(self, table: dict[tuple[Any, ...], Any], key: tuple[Any, ...], record: object) -> None:
        if key not in table:
            if len(table) >= RECORDS_MAX:
                return
            table[key] = record
        self._counts[key] += 1

    def _counted(self, key: tuple[Any, ...], drifts: Iterable[Drift]) -> list[Drift]:
        counted = list(drifts)
        for drift in counted:
            drift.count = self._counts[key]
        return counted
