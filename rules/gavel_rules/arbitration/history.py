"""Reads the counters of a rule set for a proposal: for its conditions, its score and the decision.

A proposal is refused if a counter gives no number, or has no room for a reservation: nothing unknown is permission.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.decision_pb2 import Decision

from gavel_rules.arbitration.retry_hint import advise_waiting, delay_retry
from gavel_rules.codec.counter_fragments import encode_key, encode_reading
from gavel_rules.language.counters.retry_after import RetryAfter
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.state.counters import NOT_COUNTING, Absence
from gavel_rules.state.state import State


class HistoryReading:
    """The reading of an action's counters: the numbers by variable, and what the decision says of them.

    `absences` says why counters give no number, or have no room for a reservation, by the counter's name.
    """

    def __init__(self) -> None:
        self.numbers: Final[dict[str, float]] = {}
        self.fragments: Final[list[bytes]] = []
        self.absences: Final[dict[str, Absence]] = {}

    def add_absence(self, counter: str, absence: Absence) -> None:
        """Add why a counter gives no number, or has no room. The cause that lasts longest is kept: first of all one without a known end."""
        known = self.absences.get(counter)
        if known is None or (known.until_ms and (not absence.until_ms or absence.until_ms > known.until_ms)):
            self.absences[counter] = absence


def read_history(state: State, action: CompiledAction, case: Case, now_ms: int, proposal_id: str) -> HistoryReading:
    """Read the counters of an action for the case of a proposal. The numbers do not include the proposal itself.

    A read whose key has no value is left out, like an absent fact.
    """
    reading = HistoryReading()
    places = action.counter_places
    if places:
        # Only a proposal that waits for its contest has been recorded, and counted.
        waiting = state.open_proposals.get(proposal_id) if state.open_proposals else None
        entry_id = str(waiting.sequence_number) if waiting is not None else ""
        counters, numbers, fragments = state.counters, reading.numbers, reading.fragments
        keys = action.counter_keys(case)
        encoded_keys = [b"" if key is None else encode_key(key) for key in keys]
        for place in places:
            key = keys[place.key]
            if key is None:
                continue
            table = counters.get(place.digest)
            counter_reading = table.read(key, now_ms, entry_id) if table is not None else None
            if counter_reading is None:
                reading.add_absence(place.counter, NOT_COUNTING if table is None else table.explain_absence(key, now_ms))
                continue
            numbers[place.variable] = counter_reading.value
            fragment = encode_reading(place.fragment, encoded_keys[place.key], counter_reading.value, counter_reading.frees_at_ms)
            if place.is_first or fragment not in fragments:  # two keys of a counter may be equal
                fragments.append(fragment)
    for counter in action.reserving_counters:
        table = state.counters.get(counter.digest)
        if table is None or not table.has_room_for_one(now_ms):
            reading.add_absence(counter.name, NOT_COUNTING if table is None else table.explain_lack_of_room(now_ms))
    return reading


def delay_for_counter(decision: Decision, state: State, retry: RetryAfter, case: Case, now_ms: int) -> None:
    """Set the retry hint of a refusal to the time when a counter will have room. If that cannot be foreseen, because executions have to
    end first, the hint says to wait without a time.
    """
    room = retry.room(case)
    table = state.counters.get(retry.counter.digest)
    if room is None or table is None:
        return
    frees_at_ms = table.frees_at_ms(room.group, now_ms, room.most)
    if frees_at_ms > now_ms:
        delay_retry(decision, frees_at_ms - now_ms)
    elif not frees_at_ms and room.most >= 0 and state.semantics.has_remedies:
        advise_waiting(decision)
