"""Pairs the tool calls and tool results of a trace (constitution 001).

A result belongs to the call with the same execution_id. Old producers send no execution_id: such a result is paired with the nearest open
call before it of the same tool, and the pair is marked as matched by name. A call and a result that both carry an execution_id are
never matched by name, since different ids say that they do not belong together. A call and a result with one execution_id that name
different tools are shown as such.
"""

from __future__ import annotations

from collections.abc import Iterable

from gavel.v1 import event_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ToolPair, ToolPairState


def tool_pairs(trace: Iterable[Envelope]) -> list[ToolPair]:
    """Return the pairs of a trace's events, which come in log order; sorted by the first event of each pair."""
    calls: list[Envelope] = []
    results: list[Envelope] = []
    for envelope in trace:
        match envelope.WhichOneof("payload"):
            case "tool_call":
                calls.append(envelope)
            case "tool_result":
                results.append(envelope)
    by_id = _match_by_execution_id(calls, results)
    by_name = _match_by_name(calls, results, by_id)
    return _list_pairs(calls, results, by_id, by_name)


# event_id of a result -> its call, and whether an earlier result had answered that call
_Matches = dict[str, tuple[Envelope, bool]]


def _match_by_execution_id(calls: list[Envelope], results: list[Envelope]) -> _Matches:
    """Match results to calls with the same execution_id, in order. A result is a duplicate once all such calls are answered."""
    calls_of: dict[str, list[Envelope]] = {}
    for call in calls:
        if call.tool_call.execution_id:
            calls_of.setdefault(call.tool_call.execution_id, []).append(call)
    answered: dict[str, int] = {}
    matches: _Matches = {}
    for result in results:
        same = calls_of.get(result.tool_result.execution_id)
        if same is None:
            continue
        position = answered.get(result.tool_result.execution_id, 0)
        answered[result.tool_result.execution_id] = position + 1
        matches[result.event_id] = (same[min(position, len(same) - 1)], position >= len(same))
    return matches


def _match_by_name(calls: list[Envelope], results: list[Envelope], by_id: _Matches) -> _Matches:
    """Match the remaining results to the nearest open call before them of the same tool, unless both carry an execution_id."""
    answered = {call.event_id for call, _ in by_id.values()}
    events = [call for call in calls if call.event_id not in answered]
    events.extend(result for result in results if result.event_id not in by_id)
    open_with_id: dict[str, list[Envelope]] = {}
    open_without_id: dict[str, list[Envelope]] = {}
    matches: _Matches = {}
    for event in sorted(events, key=lambda event: event.sequence_number):
        if event.HasField("tool_call"):
            call = event.tool_call
            (open_with_id if call.execution_id else open_without_id).setdefault(call.tool_name, []).append(event)
            continue
        result = event.tool_result
        candidates = [open_without_id.get(result.tool_name)]
        if not result.execution_id:
            candidates.append(open_with_id.get(result.tool_name))
        nearest = max(filter(None, candidates), key=lambda waiting: waiting[-1].sequence_number, default=None)
        if nearest is not None:
            matches[event.event_id] = (nearest.pop(), False)
    return matches


def _list_pairs(calls: list[Envelope], results: list[Envelope], by_id: _Matches, by_name: _Matches) -> list[ToolPair]:
    pairs: list[tuple[int, ToolPair]] = []
    answered: set[str] = set()
    for result in results:
        match = by_id.get(result.event_id) or by_name.get(result.event_id)
        if match is None:
            pairs.append((result.sequence_number, _pair(None, result, event_service_pb2.TOOL_PAIR_STATE_ORPHAN_RESULT)))
            continue
        call, repeated = match
        if repeated:
            pairs.append((result.sequence_number, _pair(call, result, event_service_pb2.TOOL_PAIR_STATE_DUPLICATE_RESULT)))
            continue
        answered.add(call.event_id)
        if result.event_id in by_name:
            state = event_service_pb2.TOOL_PAIR_STATE_PAIRED_BY_NAME
        elif call.tool_call.tool_name == result.tool_result.tool_name:
            state = event_service_pb2.TOOL_PAIR_STATE_PAIRED
        else:
            state = event_service_pb2.TOOL_PAIR_STATE_TOOL_MISMATCH
        pairs.append((call.sequence_number, _pair(call, result, state)))
    pairs.extend(
        (call.sequence_number, _pair(call, None, event_service_pb2.TOOL_PAIR_STATE_OPEN)) for call in calls if call.event_id not in answered
    )
    return [pair for _, pair in sorted(pairs, key=lambda item: item[0])]


def _pair(call: Envelope | None, result: Envelope | None, state: ToolPairState.ValueType) -> ToolPair:
    pair = ToolPair(state=state)
    if result is not None:
        pair.result_event_id = result.event_id
        pair.tool_name = result.tool_result.tool_name
        pair.execution_id = result.tool_result.execution_id
    if call is not None:
        pair.call_event_id = call.event_id
        if result is not None and result.tool_result.tool_name != call.tool_call.tool_name:
            pair.result_tool_name = result.tool_result.tool_name
        pair.tool_name = call.tool_call.tool_name
        pair.execution_id = call.tool_call.execution_id or pair.execution_id
    return pair
