"""The clock that dates events: its anchor, its comparison with the log store, and its guards."""

from __future__ import annotations

from functools import partial

import pytest
from gavel_server.process.clock import (
    DELAY_MS_MAX,
    LAG_MS_MAX,
    SKEW_MS_MAX,
    STEP_MS_MAX,
    STEP_SECONDS,
    GuardedClock,
    elapsed_ms,
    is_timely,
    lag_problem,
)

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Host:
    """A host and its guarded clock, beside a log store. `wall_off_ms` and `store_off_ms` are off the time that has really passed."""

    def __init__(self) -> None:
        self.passed_ms = 0
        self.wall_off_ms = 0
        self.store_off_ms = 0
        self.clock = GuardedClock(lambda: self.true_ms + self.wall_off_ms, lambda: self.passed_ms)

    @property
    def true_ms(self) -> int:
        """The right time."""
        return NOW_MS + self.passed_ms

    @property
    def off_ms(self) -> int:
        """How far the guarded clock is ahead of the right time."""
        return self.clock.now_ms() - self.true_ms

    def compare(self, seconds: int = 0, answer_ms: int = 0) -> str:
        """Compare the clocks now and in each of the next seconds; return the last problem. `answer_ms`: how long the store takes."""
        for second in range(seconds + 1):
            if second:
                self.passed_ms += 1_000
            sent_ms = self.clock.now_ms()
            store_ms = self.true_ms + self.store_off_ms
            self.passed_ms += answer_ms
            self.clock.observe(store_ms, sent_ms, self.clock.now_ms())
        return self.clock.problem()


# The anchor


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, STEP_MS_MAX, -1_500])
def test_a_jump_of_the_wall_clock_changes_nothing(jump_ms: int) -> None:
    """While only the host's wall clock jumps, `now` follows the elapsed time, and events may be dated."""
    host = Host()
    assert "" == host.compare()
    host.wall_off_ms = jump_ms
    assert ("", 0) == (host.compare(4), host.off_ms)
    host.wall_off_ms = 0
    assert ("", 0) == (host.compare(), host.off_ms)


def test_a_small_correction_is_followed() -> None:
    """A wall clock that is set by less than the skew that is allowed, and agrees with the store's, is followed."""
    host = Host()
    host.wall_off_ms = 400
    assert ("", 400) == (host.compare(), host.off_ms)


def test_a_slow_answer_moves_no_anchor() -> None:
    """A store that answers after seconds does not prove that a wall clock is right which has jumped by as much."""
    host = Host()
    host.wall_off_ms = 3_000
    assert ("", 0) == (host.compare(answer_ms=4_000), host.off_ms)


def test_a_clock_that_stood_still() -> None:
    """After a pause of the machine that the elapsed time does not count, `now` is the wall clock if the store agrees."""
    host = Host()
    host.wall_off_ms = host.store_off_ms = STEP_MS_MAX
    assert ("", STEP_MS_MAX) == (host.compare(), host.off_ms)


@pytest.mark.parametrize("step_ms", [STEP_MS_MAX + 1, HOUR_MS, -HOUR_MS])
def test_a_large_step_of_both_clocks(step_ms: int) -> None:
    """A large step that host and store share dates no event until they have agreed on it for a minute, without writes meanwhile."""
    host = Host()
    assert "" == host.compare()
    host.wall_off_ms = host.store_off_ms = step_ms
    assert "off the log store's" in host.compare(STEP_SECONDS - 1)
    assert 0 == host.off_ms
    assert ("", step_ms) == (host.compare(1), host.off_ms)


def test_a_large_step_of_both_clocks_that_ends() -> None:
    """A large step that is taken back within a minute has dated no event; the next one waits its own minute."""
    host = Host()
    assert "" == host.compare()
    for _ in range(2):
        host.wall_off_ms = host.store_off_ms = HOUR_MS
        assert "off the log store's" in host.compare(STEP_SECONDS - 1)
        host.wall_off_ms = host.store_off_ms = 0
        assert ("", 0) == (host.compare(), host.off_ms)


def test_a_store_whose_clock_jumps() -> None:
    """While only the store's clock is wrong, nothing is written."""
    host = Host()
    host.store_off_ms = HOUR_MS
    assert "off the log store's" in host.compare(2 * STEP_SECONDS)
    host.store_off_ms = 0
    assert ("", 0) == (host.compare(), host.off_ms)


def test_a_wall_clock_that_was_wrong_at_the_start() -> None:
    """A server that started with a wrong wall clock writes once the host's clock is right."""
    host = Host()
    host.wall_off_ms = HOUR_MS
    host.clock = GuardedClock(lambda: host.true_ms + host.wall_off_ms, lambda: host.passed_ms)
    assert "off the log store's" in host.compare()
    host.wall_off_ms = 0
    assert ("", 0) == (host.compare(), host.off_ms)


def test_elapsed_time_never_decreases() -> None:
    """The readings of the elapsed time are in order."""
    readings = [elapsed_ms() for _ in range(100)]
    assert sorted(readings) == readings


# The guards


def clock() -> GuardedClock:
    """A clock that stands still."""
    return GuardedClock(lambda: NOW_MS, lambda: 0)


def test_clock_within_the_allowed_skew() -> None:
    """A clock within the allowed skew has no problem."""
    assert ("", NOW_MS) == (clock().problem(), clock().now_ms())


@pytest.mark.parametrize(
    ("store_ms", "sent_ms", "received_ms", "bad"),
    [
        pytest.param(1_000, 1_000, 1_000, False, id="equal"),
        pytest.param(5_000, 0, 10_000, False, id="between the two readings, however far apart"),
        pytest.param(0, SKEW_MS_MAX, SKEW_MS_MAX + 50, False, id="behind by the limit"),
        pytest.param(0, SKEW_MS_MAX + 1, SKEW_MS_MAX + 50, True, id="behind by more"),
        pytest.param(SKEW_MS_MAX + 50, 0, 50, False, id="ahead by the limit"),
        pytest.param(SKEW_MS_MAX + 51, 0, 50, True, id="ahead by more"),
    ],
)
def test_skew_is_measured_against_the_store(store_ms: int, sent_ms: int, received_ms: int, bad: bool) -> None:
    """Skew counts only as far as the two readings around the store's time prove it."""
    guarded = clock()
    guarded.observe(store_ms, sent_ms, received_ms)
    assert bad == ("Synchronize both" in guarded.problem())


def test_a_clock_recovers() -> None:
    """The latest observation counts."""
    guarded = clock()
    guarded.observe(10_000, 0, 0)
    assert guarded.problem()
    guarded.observe(0, 0, 0)
    assert "" == guarded.problem()


@pytest.mark.parametrize(("ahead_ms", "bad"), [(LAG_MS_MAX, False), (LAG_MS_MAX + 1, True), (-10_000_000, False)])
def test_a_clock_must_not_lag_behind_the_log(ahead_ms: int, bad: bool) -> None:
    """A clock more than five seconds behind the log's last event may not date events."""
    assert bad == bool(lag_problem(NOW_MS, NOW_MS + ahead_ms))


def test_a_timely_batch() -> None:
    """A batch is dated at most a second ahead of the store, and behind it by a second and the time on its way."""
    timely = partial(is_timely, store_ms=NOW_MS)
    behind_ms = SKEW_MS_MAX + DELAY_MS_MAX
    dates = (NOW_MS - behind_ms - 1, NOW_MS - behind_ms, NOW_MS, NOW_MS + SKEW_MS_MAX, NOW_MS + SKEW_MS_MAX + 1)
    assert [False, True, True, True, False] == [timely(date_ms) for date_ms in dates]
