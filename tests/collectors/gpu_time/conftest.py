"""A source of GPU time that the tests of this folder follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_library import EMULATED
from tests.followed_kit import FakeLibrary, Followed


@pytest.fixture(autouse=EMULATED)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look longer at a segment: an emulated program writes slowly."""
    monkeypatch.setattr("collectors.gpu_time.segment.TRIES", 1_000)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    found = Followed(tmp_path / "s.sock")
    yield found
    found.source.stop()


@pytest.fixture
def library(followed: Followed) -> Iterator[FakeLibrary]:
    found = FakeLibrary(followed.path)
    found.lease()
    yield found
    found.close()
