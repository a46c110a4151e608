"""What the Leader concludes about outages from the log alone."""

from __future__ import annotations

import math

import pytest

from aggregator.leader.window_closing import RESEND_S, SILENCE_SLACK_S, LogWatch
from edge_agent.sending.outbox import _LONGEST_PAUSE_MS
from transport.kafka.kafka_frame import KafkaSettings

WINDOW_S = 60
QUIET_S = WINDOW_S + SILENCE_SLACK_S


@pytest.fixture
def watch() -> LogWatch:
    """A log that served until second 100."""
    made = LogWatch()
    made.tick(0, 0)
    made.note_appended([100], 100, WINDOW_S)
    return made


def test_resend_time_covers_an_agents_longest_pause_and_two_time_outs() -> None:
    timeout_s = KafkaSettings(("127.0.0.1:9092",)).timeout_s
    assert _LONGEST_PAUSE_MS / 1000 + 2 * timeout_s <= RESEND_S


def test_log_that_serves_holds_nothing(watch: LogWatch) -> None:
    watch.tick(101, 0)
    assert watch.resent_s == -math.inf


def test_records_left_to_read_hold_every_window(watch: LogWatch) -> None:
    watch.tick(101, 3)
    assert watch.resent_s == math.inf
    watch.tick(102, 0)
    assert watch.resent_s == -math.inf


def test_log_that_was_away_holds_windows_until_hosts_sent_again(watch: LogWatch) -> None:
    watch.tick(101, None)
    assert watch.resent_s == math.inf
    watch.tick(150, 7)
    assert watch.resent_s == math.inf
    watch.tick(151, 0)
    assert watch.resent_s == 151 + RESEND_S


def test_leader_that_comes_back_holds_as_after_an_outage() -> None:
    watch = LogWatch(resumed=True)
    watch.tick(500, None)
    assert watch.resent_s == math.inf
    watch.tick(501, 0)
    assert watch.resent_s == 501 + RESEND_S


def test_clock_that_is_set_back_holds_nothing_for_as_long_as_it_was_ahead() -> None:
    watch = LogWatch(resumed=True)
    watch.tick(11_300, 0)
    watch.tick(500, 0)
    assert watch.resent_s == 500 + RESEND_S


def test_first_leader_of_a_fleet_holds_nothing() -> None:
    watch = LogWatch()
    watch.tick(500, None)
    watch.tick(501, 0)
    assert watch.resent_s == -math.inf


def test_silence_longer_than_a_window_is_an_outage(watch: LogWatch) -> None:
    """A broker that answers and gives nothing: no error tells of it."""
    watch.tick(100 + QUIET_S, 0)
    assert not watch.silent(100 + QUIET_S, WINDOW_S)
    now_s = 101 + QUIET_S
    watch.tick(now_s, 0)
    assert watch.silent(now_s, WINDOW_S)
    watch.note_appended([now_s], now_s, WINDOW_S)
    assert watch.resent_s == now_s + RESEND_S


def test_gap_in_the_log_tells_of_an_outage_that_the_leader_did_not_see() -> None:
    watch = LogWatch(resumed=True)
    watch.tick(1000, 2)
    watch.note_appended([100, 100 + QUIET_S, 900, 901], 1000, WINDOW_S)
    watch.tick(1001, 0)
    assert watch.resent_s == 1001 + RESEND_S
    fresh = LogWatch()
    fresh.note_appended([100, 900], 905, WINDOW_S)
    fresh.tick(906, 0)
    assert fresh.resent_s == 900 + RESEND_S


def test_clock_of_the_log_that_is_wrong_holds_no_longer_than_a_moment() -> None:
    watch = LogWatch()
    watch.note_appended([100, 10_000_000], 500, WINDOW_S)
    watch.tick(501, 0)
    assert watch.resent_s == 500 + RESEND_S


def test_hosts_that_return_hold_windows_open_for_the_others(watch: LogWatch) -> None:
    watch.tick(101, 0)
    for number in range(9):
        watch.came_late(bytes([number]) * 16, 1000, 200, WINDOW_S)
    assert watch.resent_s == -math.inf
    watch.came_late(b"\xff" * 16, 1000, 200, WINDOW_S)
    assert watch.resent_s == 200 + RESEND_S


def test_one_host_cannot_hold_a_fleet_open(watch: LogWatch) -> None:
    watch.tick(101, 0)
    for _ in range(100):
        watch.came_late(b"\xee" * 16, 1000, 200, WINDOW_S)
    assert watch.resent_s == -math.inf


def test_hosts_that_are_late_now_and_then_hold_nothing(watch: LogWatch) -> None:
    """As in the demo, whose network delays: 0.5 % of the hosts are late with each window."""
    watch.tick(101, 0)
    for window in range(400):
        for number in range(5):
            host = (window * 5 + number) % 1000
            watch.came_late(host.to_bytes(16, "big"), 1000, 200 + window * WINDOW_S, WINDOW_S)
    assert watch.resent_s == -math.inf


def test_few_hosts_hold_no_small_fleet_open(watch: LogWatch) -> None:
    watch.tick(101, 0)
    for number in range(2):
        watch.came_late(bytes([number]) * 16, 40, 200, WINDOW_S)
    assert watch.resent_s == -math.inf
    watch.came_late(b"\xff" * 16, 40, 200, WINDOW_S)
    assert watch.resent_s == 200 + RESEND_S


def test_hosts_that_are_late_for_ever_hold_releases_up_once(watch: LogWatch) -> None:
    watch.tick(101, 0)
    for window in range(100):
        for number in range(50):
            watch.came_late(bytes([number]) * 16, 1000, 200 + window * WINDOW_S, WINDOW_S)
    assert watch.resent_s == 200 + RESEND_S
