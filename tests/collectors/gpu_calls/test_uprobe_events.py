"""BCC's loader leaves no line in the kernel's list of uprobe events, not even when it is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collectors.bpf import libbpf
from collectors.bpf.bcc import tracing
from collectors.gpu_calls import programs_bcc
from collectors.gpu_calls.probe_table import ProbeTable
from tests.collectors.gpu_calls.attaching import LAUNCHES
from tests.probes_kit import Stubs

pytestmark = pytest.mark.slow

PMU = "/sys/bus/event_source/devices/uprobe"
DEAD = 1 << 30
NOT_OURS = (
    f"p:uprobes/gpu_p_1_5f_{DEAD}_bcc_{DEAD + 1} /lib/c.so:0x5f",
    f"p:uprobes/gpu_p_1_5f_{DEAD} /lib/c.so:0x5f",
    f"p:probes/gpu_p_1_5f_{DEAD}_bcc_{DEAD} /lib/c.so:0x5f",
    f"p:uprobes/tool_p_1_5f_{DEAD}_bcc_{DEAD} /lib/c.so:0x5f",
    f"p:uprobes/gpu_p_1_5f_{os.getppid()}_bcc_{os.getppid()} /lib/c.so:0x5f",
)


def line(event: str) -> str:
    """A line of the list."""
    return f"p:uprobes/{event} /lib/c.so:0x000000000000005f"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A list that keeps what is written to it behind what it had."""
    name = libbpf.event_name(7, 0x5F, True)
    ours = f"{name}_bcc_{os.getpid()}"
    stale = f"gpu_r_3_ab_{DEAD}_bcc_{DEAD}"
    lines = [*NOT_OURS, line(ours).replace("p:", "r:", 1), line(stale)]
    (tmp_path / "uprobe_events").write_text("\n".join(lines) + "\n")
    return tmp_path


def written(folder: Path) -> list[str]:
    """What was written to the list."""
    return (folder / "uprobe_events").read_text().splitlines()[len(NOT_OURS) + 2 :]


def test_stale_events_of_our_name_alone_are_removed(folder: Path) -> None:
    libbpf.remove_stale(folder)
    assert written(folder) == [f"-:uprobes/gpu_r_3_ab_{DEAD}_bcc_{DEAD}"]


def test_events_of_this_process_are_removed_where_they_are_listed(folder: Path) -> None:
    name = libbpf.event_name(7, 0x5F, True)
    libbpf.remove([name, libbpf.event_name(8, 0x5F, True)], folder)
    assert written(folder) == [f"-:uprobes/{name}_bcc_{os.getpid()}"]


def test_list_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    libbpf.remove_stale(tmp_path)
    assert not list(libbpf.listed(tmp_path))
    assert not list(tmp_path.iterdir())


@contextmanager
def attaching(stubs: Stubs, empty: Path) -> Iterator[subprocess.Popen[str]]:
    """A loader in a mount namespace where perf knows no uprobes, as before Linux 4.17."""
    parts = [str(stubs.library("libcudart")), str(stubs.caller("libcudart"))]
    command = [sys.executable, "-m", "tests.collectors.gpu_calls.attaching", *parts]
    hidden = f'mount --bind {empty} {PMU} && exec "$@"'
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", hidden, "sh", *command], stdin=pipe, stdout=pipe, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def said(child: subprocess.Popen[str]) -> dict[str, dict[str, int] | list[str]]:
    """The next line of the loader."""
    assert child.stdout is not None
    found: dict[str, dict[str, int] | list[str]] = json.loads(child.stdout.readline())
    return found


def change(folder: Path, text: str) -> None:
    """Write to the kernel's list."""
    fd = os.open(folder / "uprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def of(child: subprocess.Popen[str]) -> list[str]:
    """The events of a loader that the kernel lists."""
    return [event for event, pid in libbpf.listed() if pid == child.pid]


@pytest.mark.root
def test_bcc_without_perfs_uprobes_counts_and_takes_its_events_back(
    stubs: Stubs, tmp_path: Path
) -> None:
    with attaching(stubs, tmp_path) as child:
        attached = said(child)
        assert of(child)
        assert set(of(child)) <= set(attached["events"])
        assert attached["calls"] == {"cudart.launch": LAUNCHES}
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        said(child)
        assert not of(child)


@pytest.mark.root
def test_events_of_a_killed_loader_are_removed_at_the_next_start(
    stubs: Stubs, tmp_path: Path
) -> None:
    folder = tracing()
    assert folder is not None
    with attaching(stubs, tmp_path) as child:
        said(child)
        child.kill()
        child.wait()
        assert of(child)
        other = f"uprobes/somebodys_{os.getpid()}"
        change(folder, f"p:{other} {stubs.library('libcudart')}:0x1000\n")
        try:
            programs_bcc.GpuPrograms(ProbeTable.load()).close()
            assert not of(child)
            assert other in (folder / "uprobe_events").read_text()
        finally:
            change(folder, f"-:{other}\n")
