"""Queues and places that are fair between callers.

Room: a caller may use all free room. When there is none, a caller that uses less than an equal share displaces the newest items of the
caller that uses most. Shares are equal between addresses, and between the callers of an address.

Turns: deficit round robin (Shreedhar and Varghese 1995) over addresses, and over the callers of an address. A caller's turn takes
items worth QUANTUM units; an item counts as one unit and one more for each UNIT_BYTES. Within a caller the order is kept.

The cost of an operation does not depend on the number of callers, except for the search for the caller that uses most, which displaces
up to DISPLACED_MAX items. The module is compiled, and its classes are plain (docs/performance.md#plain-classes).
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from gavel_server.fairness.callers import address_of

QUANTUM: Final = 4
UNIT_BYTES: Final = 4 * 1024
# The size of an item that takes a whole turn.
TURN_BYTES: Final = (QUANTUM - 1) * UNIT_BYTES
DISPLACED_MAX: Final = 64

Item = TypeVar("Item")


class Usage:
    """The use of a limited resource by a caller, an address or all addresses: pieces, and their bytes. `parent` is the larger group."""

    def __init__(self, name: str, parent: Usage | None) -> None:
        self.name: Final = name
        self.parent: Final = parent
        self.parts: dict[str, Usage] = {}
        self.count = 0
        self.size_bytes = 0

    def amount(self, by_bytes: bool) -> int:
        """Return the bytes or the number of pieces."""
        return self.size_bytes if by_bytes else self.count

    def largest(self, by_bytes: bool) -> Usage:
        """Return the part that uses most."""
        largest: Usage | None = None
        for part in self.parts.values():
            if largest is None or part.amount(by_bytes) > largest.amount(by_bytes):
                largest = part
        assert largest is not None  # noqa: S101  # only asked while something is in use
        return largest


class Shares:
    """The usage of a limited resource, by address and caller."""

    def __init__(self) -> None:
        self.all = Usage("", None)

    def usage_of(self, caller: str) -> Usage:
        """Return a caller's usage. It is forgotten when it falls to zero."""
        name = address_of(caller)
        address = self.all.parts.get(name)
        if address is None:
            address = self.all.parts[name] = Usage(name, self.all)
        usage = address.parts.get(caller)
        if usage is None:
            usage = address.parts[caller] = Usage(caller, address)
        return usage

    def add(self, usage: Usage, size_bytes: int = 0) -> None:
        """Count a piece of a caller."""
        node: Usage | None = usage
        while node is not None:
            node.count += 1
            node.size_bytes += size_bytes
            node = node.parent

    def remove(self, usage: Usage, size_bytes: int = 0) -> None:
        """Remove a piece of a caller from the count."""
        node: Usage = usage
        while True:
            node.count -= 1
            node.size_bytes -= size_bytes
            parent = node.parent
            if parent is None:
                return
            if not node.count:
                del parent.parts[node.name]
            node = parent

    def largest_other(self, caller: str, by_bytes: bool = False) -> str | None:
        """Return the caller that gives way to `caller` if there is no room; None if `caller` uses its share or more."""
        everything = self.all
        name = address_of(caller)
        address = everything.parts.get(name)
        of_address = 0 if address is None else address.amount(by_bytes)
        if of_address * (len(everything.parts) + (address is None)) < everything.amount(by_bytes):
            address = everything.largest(by_bytes)
        elif address is None:
            return None
        else:
            usage = address.parts.get(caller)
            of_caller = 0 if usage is None else usage.amount(by_bytes)
            if of_caller * (len(address.parts) + (usage is None)) >= of_address:
                return None
        largest = address.largest(by_bytes).name
        return None if largest == caller else largest


class _WaitingAddress:
    """An address with callers that wait for their turn: their lines, in the order of turns."""

    def __init__(self) -> None:
        self.lines: deque[_Line] = deque()


class _Line:
    """A caller in a queue, and what it waits for, in order: items and their sizes."""

    def __init__(self, usage: Usage) -> None:
        self.usage: Final = usage
        self.deficit = 0  # units that it may still take in this turn
        self.items: deque[tuple[object, int]] = deque()


class FairQueue(Generic[Item]):
    """A queue of at most `items_max` items; it takes no more once it holds more than `bytes_max` bytes."""

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self.items_max = items_max
        self.bytes_max = bytes_max
        self._shares = Shares()
        self._lines: dict[str, _Line] = {}  # of the callers that have items
        self._addresses: dict[str, _WaitingAddress] = {}  # of the lines that wait for their turn
        self._ring: deque[_WaitingAddress] = deque()
        self._waiting_lines = 0

    @property
    def count(self) -> int:
        """The number of items."""
        return self._shares.all.count

    @property
    def size_bytes(self) -> int:
        """The bytes of the items."""
        return self._shares.all.size_bytes

    def make_room(self, caller: str) -> list[Item] | None:
        """Make room for an item of a caller; return the items displaced for it, which leave the queue. None if there is no room."""
        everything = self._shares.all
        is_full = everything.count >= self.items_max
        if not is_full and everything.size_bytes <= self.bytes_max:
            return []
        largest = self._shares.largest_other(caller, by_bytes=not is_full)
        if largest is None:
            return None
        line = self._lines[largest]
        displaced: list[Item] = []
        # Several at once, so that a search serves several newcomers; at most half of the line.
        for _ in range(min(DISPLACED_MAX, 1 + self.items_max // 100, (len(line.items) + 1) // 2)):
            item, size_bytes = line.items.pop()
            self._discount(line, size_bytes)
            displaced.append(item)  # type: ignore[arg-type]  # only items are added
        if not line.items:
            self._leave(line)
        return displaced

    def add(self, caller: str, item: Item, size_bytes: int) -> None:
        """Append an item, whether there is room or not."""
        line = self._count(caller, size_bytes)
        line.items.append((item, size_bytes))
        if len(line.items) == 1:
            self._enter(line)

    def put_back(self, caller: str, item: Item, size_bytes: int) -> None:
        """Return an item to the front of its caller's items. If the caller has no others, its turn is the next one."""
        line = self._count(caller, size_bytes)
        line.items.appendleft((item, size_bytes))
        if len(line.items) == 1:
            self._enter(line, at_front=True)

    def remove(self, caller: str, item: Item) -> None:
        """Remove an item that was added, if it still waits. Goes through all items of the caller: for short queues."""
        line = self._lines.get(caller)
        if line is None:
            return
        for entry in line.items:
            if entry[0] is item:
                line.items.remove(entry)
                self._discount(line, entry[1])
                if not line.items:
                    self._leave(line)
                return

    def take(self) -> Item:
        """Remove the next item. Raises IndexError if the queue is empty."""
        line = self._next_line()
        item, size_bytes = line.items.popleft()
        line.deficit = max(0, line.deficit - _cost(size_bytes))  # a lone caller takes more than its turn
        if not line.items:
            self._leave(line)
        self._discount(line, size_bytes)
        return item  # type: ignore[return-value]  # only items are added

    def _next_line(self) -> _Line:
        """Return the line whose turn it is."""
        while True:
            waiting = self._ring[0]
            line = waiting.lines[0]
            if self._waiting_lines == 1 or line.deficit >= _cost(line.items[0][1]):
                return line
            waiting.lines.rotate(-1)
            self._ring.rotate(-1)
            self._begin_turn()

    def _begin_turn(self) -> None:
        self._ring[0].lines[0].deficit += QUANTUM

    def _enter(self, line: _Line, at_front: bool = False) -> None:
        """Let a line that was empty wait for its turn: the last one, or the first one of its address."""
        address = address_of(line.usage.name)
        waiting = self._addresses.get(address)
        if waiting is None:
            waiting = self._addresses[address] = _WaitingAddress()
            if at_front:
                self._ring.appendleft(waiting)
            else:
                self._ring.append(waiting)
        if at_front:
            waiting.lines.appendleft(line)
        else:
            waiting.lines.append(line)
        self._waiting_lines += 1
        has_turn = self._ring[0] is waiting and waiting.lines[0] is line
        line.deficit = QUANTUM if has_turn else 0

    def _leave(self, line: _Line) -> None:
        """Let an empty line wait no longer. If it had its turn, the next one begins."""
        address = address_of(line.usage.name)
        waiting = self._addresses[address]
        had_turn = self._ring[0] is waiting and waiting.lines[0] is line
        waiting.lines.remove(line)
        self._waiting_lines -= 1
        if not waiting.lines:
            del self._addresses[address]
            self._ring.remove(waiting)
        elif had_turn:
            self._ring.rotate(-1)
        if had_turn and self._ring:
            self._begin_turn()

    def _count(self, caller: str, size_bytes: int) -> _Line:
        line = self._lines.get(caller)
        if line is None:
            line = self._lines[caller] = _Line(self._shares.usage_of(caller))
        self._shares.add(line.usage, size_bytes)
        return line

    def _discount(self, line: _Line, size_bytes: int) -> None:
        self._shares.remove(line.usage, size_bytes)
        if not line.usage.count:
            del self._lines[line.usage.name]


def _cost(size_bytes: int) -> int:
    return 1 + size_bytes // UNIT_BYTES
