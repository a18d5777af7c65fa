"""Repeated log lines are limited by kind and by event, and none is uncounted."""

from __future__ import annotations

import threading

from gavel_server.process.logging.limit import EVENT_LINES_MAX, KINDS_MAX, LogLimit


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        """Return the time."""
        return self.seconds


def refusal(reason: str = "QUEUE_FULL", problem: str = "full") -> dict[str, object]:
    """Return the fields of a line."""
    return {"event": "call.refused", "level": "info", "method": "M", "reason": reason, "problem": problem}


def test_one_line_a_second_of_a_kind() -> None:
    """Of lines of one kind the first is written at once; a second later the latest one, with the number of the others."""
    clock = Clock()
    limit = LogLimit(clock.now)
    assert [True, False, False] == [limit.admits("call.refused", refusal(problem=str(number))) for number in range(3)]
    assert limit.admits("call.refused", refusal("BUS_NOT_FOUND"))
    assert [] == limit.summaries()
    clock.seconds += 1
    expected = {"level": "info", "method": "M", "reason": "QUEUE_FULL", "problem": "2", "count": 2}
    assert [("call.refused", expected)] == limit.summaries()
    clock.seconds += 1
    assert [] == limit.summaries()
    assert limit.admits("call.refused", refusal())


def test_lines_of_one_event_are_limited() -> None:
    """Of one event, however many kinds it has, a number of lines is written a second; one line counts the others."""
    clock = Clock()
    limit = LogLimit(clock.now)
    admitted = sum(limit.admits("call.refused", refusal(f"REASON_{number}")) for number in range(50))
    assert EVENT_LINES_MAX == admitted
    assert limit.admits("redis.died", {"level": "error"})
    assert [("log.limited", {"limited": "call.refused", "count": 50 - EVENT_LINES_MAX})] == limit.summaries()


def test_every_line_is_counted() -> None:
    """Over many seconds and kinds, the lines that are written and their counts add up to the lines that were logged."""
    clock = Clock()
    limit = LogLimit(clock.now)
    written = counted = 0
    for second in range(30):
        for number in range(100):
            written += limit.admits("call.refused", refusal(f"REASON_{(second * number) % 23}"))
        clock.seconds += 0.6
        counted += sum(int(fields["count"]) for _, fields in limit.summaries())
    for _ in range(3):
        clock.seconds += 1
        counted += sum(int(fields["count"]) for _, fields in limit.summaries())
    assert 3000 == written + counted


def test_kinds_are_bounded() -> None:
    """Kinds that callers invent take bounded memory and do not silence other events for longer than they are repeated."""
    clock = Clock()
    limit = LogLimit(clock.now)
    for number in range(2 * KINDS_MAX):
        limit.admits(f"event.{number}", {"level": "info"})
    assert not limit.admits("redis.died", {"level": "error"})
    clock.seconds += 1
    limit.summaries()
    assert limit.admits("redis.died", {"level": "error"})


def test_summaries_hold_no_exception() -> None:
    """A line that is not written does not keep its exception alive."""
    clock = Clock()
    limit = LogLimit(clock.now)
    for _ in range(2):
        limit.admits("call.failed", {"level": "error", "where": "a.py:1", "exc_info": ValueError()})
    clock.seconds += 1
    assert [("call.failed", {"level": "error", "where": "a.py:1", "count": 1})] == limit.summaries()


def test_a_finalizer_logs_while_a_line_is_judged() -> None:
    """A garbage collection may end tasks, which log, while a line is judged in the same thread: that does not block."""
    collections = [True]

    def now() -> float:
        if collections and collections.pop():
            assert limit.admits("task.failed", refusal())
        return 100.0

    limit = LogLimit(now)
    thread = threading.Thread(target=limit.admits, args=("call.refused", refusal()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert [] == collections
