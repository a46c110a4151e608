"""What is closed within a time."""

from __future__ import annotations

import threading

import pytest

from transport.process.supervision import close_within


def test_close_within_leaves_what_does_not_end() -> None:
    released = threading.Event()
    assert not close_within(0.01, released.wait)
    released.set()


def test_close_within_waits_for_what_ends() -> None:
    ended = threading.Event()
    assert close_within(10.0, ended.set)
    assert ended.is_set()


def test_close_within_hands_on_what_closing_raised() -> None:
    def fail() -> None:
        raise OSError("planted")

    with pytest.raises(OSError, match="planted"):
        close_within(10.0, fail)
