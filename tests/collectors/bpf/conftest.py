"""Running sources: one of its own for a test, BCC's shared, because it compiles for seconds."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.ebpf.ebpf_source import EbpfSource

TRACEFS = Path("/sys/kernel/tracing")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on a disk, whose bytes are counted here: the usual one may lie in memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def source() -> Iterator[EbpfSource]:
    yield from _running("libbpf")


@pytest.fixture(scope="session")
def bcc_source() -> Iterator[EbpfSource]:
    if not (TRACEFS / "events").exists():
        subprocess.run(["mount", "-t", "tracefs", "nodev", str(TRACEFS)], check=True)
    yield from _running("bcc")


@pytest.fixture(params=["libbpf", pytest.param("bcc", marks=pytest.mark.release)])
def either_source(request: pytest.FixtureRequest) -> EbpfSource:
    """Each loader in turn: what both can do passes the same tests."""
    name = "source" if request.param == "libbpf" else "bcc_source"
    source = request.getfixturevalue(name)
    assert isinstance(source, EbpfSource)
    assert source.loader == request.param
    return source


def _running(loader: str) -> Iterator[EbpfSource]:
    running = EbpfSource(loader)
    assert running.probe() is None
    running.start()
    try:
        yield running
    finally:
        running.stop()
