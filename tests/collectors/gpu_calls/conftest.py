"""Stubs compiled once, and programs loaded for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from collectors.bpf import libbpf
from tests.probes_kit import ENDBR, Probed, Stubs, probing


@pytest.fixture(scope="module", autouse=True)
def no_uprobe_event_is_left() -> Iterator[None]:
    """Torn down after whatever a module attached: the kernel lists no place of this process."""
    yield
    assert not [event for event, pid in libbpf.listed() if pid == os.getpid()]


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Stubs:
    """Libraries whose functions begin with `push`."""
    return Stubs.build(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="session")
def endbr_stubs(tmp_path_factory: pytest.TempPathFactory) -> Stubs:
    """Libraries whose functions begin with `endbr64`."""
    return Stubs.build(tmp_path_factory.mktemp("endbr"), ENDBR)


@pytest.fixture
def probed() -> Iterator[Probed]:
    with probing() as probed:
        yield probed
