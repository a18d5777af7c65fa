"""Open calls whose runtime has died (E_LOST).

A TOOL_CALL names the time until which its runtime may record the result. This module reads the calls and results of one producer from the
log, and closes the calls that are open after that time. Several runtimes of a producer may do so at once: a call gets one result
(`records`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from gavel.v1.common_pb2 import EVENT_CATEGORY_TOOL_CALL_EVENT, EVENT_CATEGORY_TOOL_RESULT_EVENT
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.rpc.backoff import is_transient, is_unopened_bus
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError, describe_error
from gavel_client.tools.records import ToolRecorder, result_event_id

# How far back a runtime looks for open calls: as long as a bus remembers the ids of results.
LOOKBACK_MS: Final = 7 * 24 * 3600 * 1000
INTERVAL_MS: Final = 5_000
_PAGE_SIZE: Final = 1000
_CATEGORIES: Final = (EVENT_CATEGORY_TOOL_CALL_EVENT, EVENT_CATEGORY_TOOL_RESULT_EVENT)

_logger = logging.getLogger(__name__)


class LostCalls:
    """The open calls of the recorder's producer, as the log has them."""

    def __init__(self, client: GavelClient, recorder: ToolRecorder) -> None:
        self._client: Final = client
        self._recorder: Final = recorder
        self._open: Final[dict[str, Envelope]] = {}  # by the event_id of the result
        self._position = 0  # the last sequence number read; 0: none

    async def run(self) -> None:
        """Close lost calls until cancelled. Logs errors and raises none: this is a background task, whose exceptions nobody sees."""
        while True:
            try:
                await self.close()
            except GavelError as error:
                _logger.warning("cannot close lost calls, will try again: %s", describe_error(error))
            except Exception:
                _logger.exception("cannot close lost calls, will try again")
            leases = [_lease_until_ms(call) - _now_ms() for call in self._open.values()]
            await asyncio.sleep(max(0.0, min([INTERVAL_MS, *leases])) / 1000 + 0.05)

    async def close(self) -> int:
        """Read on in the log and close the calls whose lease has lapsed; return how many. Raises GavelError."""
        try:
            await self._read()
        except GavelError as error:
            if not is_unopened_bus(error):
                raise
        lapsed = [(key, call) for key, call in self._open.items() if _lease_until_ms(call) <= _now_ms()]
        for key, call in lapsed:
            try:
                await self._recorder.record_lost(call)
            except GavelError as error:
                if is_transient(error):
                    raise
                # It can never be closed, e.g. because its trace is full, and must not keep others open.
                _logger.error("execution=%s stays open: %s", call.tool_call.execution_id, describe_error(error))
            else:
                _logger.info("tool=%s execution=%s was lost", call.tool_call.tool_name, call.tool_call.execution_id)
            self._open.pop(key, None)
        return len(lapsed)

    async def _read(self) -> None:
        """Read calls and results up to the head."""
        if not self._position:
            self._position = await self._first_position()
        head = (await self._client.get_status()).head_sequence_number
        page_token = ""
        while self._position < head:
            page = await self._client.list_events(
                categories=_CATEGORIES,
                from_sequence_number=self._position + 1,
                to_sequence_number=head,
                page_size=_PAGE_SIZE,
                page_token=page_token,
            )
            for event in page.envelopes:
                self._note(event)
            page_token = page.next_page_token
            if not page_token:
                self._position = head

    def _note(self, event: Envelope) -> None:
        producer = self._recorder.producer
        if (event.producer.type, event.producer.id) != (producer.type, producer.id):
            return
        if event.WhichOneof("payload") == "tool_result":
            self._open.pop(event.event_id, None)
        elif event.tool_call.HasField("lease_until"):
            self._open[result_event_id(event)] = event

    async def _first_position(self) -> int:
        """Return a sequence number before all events of the last LOOKBACK_MS, by bisection."""
        first, last = 1, (await self._client.get_status()).head_sequence_number
        oldest_ms = _now_ms() - LOOKBACK_MS
        while first < last:
            middle = (first + last) // 2
            try:
                event = (await self._client.get_event(sequence_number=middle)).envelope
            except GavelError as error:
                if error.reason != "EVENT_NOT_FOUND":
                    raise
                first = middle + 1  # it is no longer in the log
                continue
            if event.recorded_at.ToMilliseconds() < oldest_ms:
                first = middle + 1
            else:
                last = middle
        return max(first - 1, 0)


def _lease_until_ms(call: Envelope) -> int:
    return call.tool_call.lease_until.ToMilliseconds()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
