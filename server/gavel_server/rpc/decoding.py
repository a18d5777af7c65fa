"""Decoding of requests: the limits of the method hold before protobuf makes objects of the bytes.

Unknown fields, such as those of a later contract, are discarded at every depth: what is stored, compared and hashed is what this contract
knows (docs/contract.md).
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.turns import call_slice, take_turn
from gavel_server.intake.normalization import text_forms
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.limits import UNCOUNTED_BYTES_MAX, RequestLimit, request_limit
from gavel_server.rpc.wire import OWN_FIELDS_MAX, Layout, count_fields, count_items, layout_of, split_items

_Request = TypeVar("_Request", bound=Message)

# The field that holds the items of a batch.
_ITEMS: Final = "envelopes"
_NO_CHILDREN: Final = Layout()
# Batches up to this size are decoded and admitted at once, within about 5 ms. Larger ones let other tasks run in between. Not Final: tests
# change it, also in the compiled build.
BATCH_BYTES_AT_ONCE = 64 * 1024
# Items of a batch that are decoded or admitted before other tasks get a turn; fewer if a time slice ends first.
SLICE_ITEMS: Final = 64


class RequestDecoder(Generic[_Request]):
    """Decodes the requests of one method, and brings their ids and subjects into canonical form."""

    def __init__(self, method: str, request_class: type[_Request]) -> None:
        """`method` is "gavel.v1.EventService/GetEvent" or the like."""
        limit = request_limit(method)
        self._limit: Final[RequestLimit] = limit
        self._from_bytes: Final = request_class.FromString
        self._discard_unknown: Final = request_class.DiscardUnknownFields
        self._layout: Final = layout_of(cast(Descriptor, request_class.DESCRIPTOR))
        self._items_number: Final = request_class.DESCRIPTOR.fields_by_name[_ITEMS].number if limit.items_max else 0
        self._forms: Final = text_forms(cast(Descriptor, request_class.DESCRIPTOR))
        self._unchecked_bytes_max: Final = min(limit.bytes_max, UNCOUNTED_BYTES_MAX)

    def decode(self, data: bytes) -> _Request:
        """Return a request without unknown fields. Raises ServiceError INVALID_REQUEST."""
        if len(data) > self._unchecked_bytes_max:
            error = self.limit_error(data)
            if error is not None:
                raise error
        try:
            request = self._from_bytes(data)
        except DecodeError as error:
            raise _malformed_error(error) from error
        self._discard_unknown(request)
        for name, form in self._forms:
            text = getattr(request, name)
            # Reading a field of an unset oneof gives an empty text, and setting it would set the oneof.
            if text and form(text) != text:
                setattr(request, name, form(text))
        return request

    async def decode_in_turns(self, data: bytes, context: CallContext) -> _Request:
        """Return the request as `decode` does. Other tasks run between the items of a large batch. Raises ServiceError INVALID_REQUEST."""
        bytes_max, fields_max, items_max = self._limit
        if not items_max or not BATCH_BYTES_AT_ONCE < len(data) <= bytes_max:
            return self.decode(data)
        time_slice = call_slice(SLICE_ITEMS, context.caller)
        await take_turn(context.caller)
        try:
            if count_items(data, self._items_number, items_max) > items_max:
                raise invalid([(_ITEMS, f"has more than {items_max} items")])
            if count_fields(data, _NO_CHILDREN, OWN_FIELDS_MAX) > OWN_FIELDS_MAX:
                raise _too_many_own_fields()
            items, others = split_items(data, self._items_number)
            await time_slice.end()
            fields = len(items) + count_fields(others, self._layout, fields_max)
            layout = self._layout.children[self._items_number]
            for item in items:
                await time_slice.spend(1)
                fields += count_fields(item, layout, fields_max)
                if fields > fields_max:
                    raise _too_many_fields(fields_max)
            request = self.decode(others)
            envelopes = getattr(request, _ITEMS)
            for item in items:
                await time_slice.spend(1)
                envelope = envelopes.add()
                envelope.MergeFromString(item)
                envelope.DiscardUnknownFields()
        except (ValueError, DecodeError) as error:
            raise _malformed_error(error) from error
        return request

    def limit_error(self, data: bytes) -> ServiceError | None:
        """Return the error of a request that exceeds a limit of the method. Raises ServiceError if the bytes are not a message."""
        bytes_max, fields_max, items_max = self._limit
        if len(data) > bytes_max:
            return invalid([("request", f"is larger than {bytes_max} bytes")])
        try:
            if items_max and count_items(data, self._items_number, items_max) > items_max:
                return invalid([(_ITEMS, f"has more than {items_max} items")])
            if items_max and count_fields(data, _NO_CHILDREN, OWN_FIELDS_MAX) > OWN_FIELDS_MAX:
                return _too_many_own_fields()
            # A field takes two bytes or more.
            if len(data) > 2 * fields_max and count_fields(data, self._layout, fields_max) > fields_max:
                return _too_many_fields(fields_max)
        except ValueError as error:
            raise _malformed_error(error) from error
        return None


def _too_many_fields(fields_max: int) -> ServiceError:
    return invalid([("request", f"holds more than {fields_max} fields and list items")])


def _too_many_own_fields() -> ServiceError:
    """Return the error of a batch. Its items are counted in turns, and counting to their limit at once would take 25 ms."""
    return invalid([("request", f"has more than {OWN_FIELDS_MAX} fields of its own")])


def _malformed_error(error: Exception) -> ServiceError:
    return invalid([("request", f"is not a message of the contract: {error}")])
