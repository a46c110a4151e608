"""What the eBPF source is made of, without a kernel: layouts, names, cgroup v2, bounded tables."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from collectors.bpf.bpf_maps import PerCpuMap, possible_cpus
from collectors.bpf.cgroup_names import CgroupNames, hierarchy_of
from collectors.ebpf import ebpf_loaders
from collectors.ebpf import ebpf_tables as layout
from collectors.ebpf.ebpf_tables import OTHER, CgroupTable, GrowingTable, Rows, peer_name
from collectors.interface import SourceUnavailable
from collectors.kernel_files import cpu_numbers
from edge_agent.config import load_config
from edge_agent.open_agent import sources_of
from tests.bpf_kit import enumeration
from wire.catalogue import Catalogue

BPF = Path(__file__).parents[3] / "bpf"
ANY_MACHINE = ("host.bpf.o", "steps.bpf.o")
METRICS = (BPF / "include/metrics.h").read_text()
NOWHERE = PerCpuMap(fd=-1, key_bytes=8, fields=2, cpus=1)


class FakeMap:
    """A map of one CPU with these rows."""

    key_bytes, capacity = 8, 1024

    def __init__(self, *parts: dict[int, list[int]]) -> None:
        self._parts = parts
        self.deleted: list[bytes] = []

    def change(self, rows: dict[int, list[int]]) -> None:
        self._parts = (rows,)

    def batches(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint64]]]:
        for rows in self._parts:
            keys = np.array(list(rows), "<u8").view(np.uint8).reshape(-1, 8)
            width = len(next(iter(rows.values()), [0]))
            values = np.array(list(rows.values()), np.uint64).reshape(-1, 1, width)
            yield keys, values

    def delete(self, key: bytes) -> None:
        self.deleted.append(key)


def rows(found: dict[bytes, list[int]]) -> Rows:
    """One reading of a map."""
    places = {key: place for place, key in enumerate(found)}
    return Rows(places, np.array(list(found.values()), np.int64))


def fields(name: str) -> list[str]:
    body = re.search(rf"struct {name} {{(.*?)}};", METRICS, re.DOTALL)
    assert body
    return re.findall(r"__u64 (\w+)(?:\[\w+\])?;", body[1])


def test_layout_totals_and_programs_follow_the_header() -> None:
    plain = enumeration(METRICS, "total")[:-3]
    assert layout.TOTALS[: len(plain)] == tuple(plain)
    assert len(layout.TOTALS) == len(plain) + 2 * len(layout.SOFTIRQ_VECTORS)
    programs = [name.removeprefix("program_") for name in enumeration(METRICS, "program")[:-1]]
    assert [name.removeprefix("on_") for name in layout.PROGRAMS] == programs


def test_layout_rows_follow_the_header() -> None:
    assert fields("cgroup_row")[: len(layout.CGROUP_COLUMNS)] == list(layout.CGROUP_COLUMNS)
    assert len(fields("cgroup_row")) == layout.CGROUP_FIELDS
    assert fields("block_cgroup_row") == list(layout.BLOCK_CGROUP_COLUMNS)
    assert fields("peer_row") == list(layout.PEER_COLUMNS)
    bins = [c for c in layout.DEVICE_COLUMNS if c.startswith("latency_")]
    assert fields("device_row") == [*layout.DEVICE_COLUMNS[: -len(bins)], "latency_bins"]
    pending = [f"pending_{column}" for column in layout.PENDING_COLUMNS]
    assert fields("cpu_state")[-len(pending) - 2 :] == ["running_ns", "cgroup", *pending]
    assert fields("tick_state") == list(layout.TICK_STATE)
    for name in ("SNAPSHOT_SLOTS", "LATENCY_BINS"):
        assert f"#define {name} {getattr(layout, name)}" in METRICS


def make_objects(out: Path, *variables: str) -> None:
    """Build those of ANY_MACHINE."""
    command = ["make", "-s", "-C", str(BPF), f"OUT={out}", *variables]
    subprocess.run([*command, *(str(out / name) for name in ANY_MACHINE)], check=True, timeout=100)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang, as make tools installs it")
def test_committed_objects_are_what_the_sources_build(tmp_path: Path) -> None:
    make_objects(tmp_path)
    version = subprocess.run(["clang", "--version"], check=True, capture_output=True, text=True)
    for name in ANY_MACHINE:
        built, committed = tmp_path / name, BPF / "objects" / name
        assert symbols(built) == symbols(committed)
        if "clang version 14." in version.stdout:  # which built the committed one
            assert built.read_bytes() == committed.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang, as make tools installs it")
def test_one_object_serves_both_machines(tmp_path: Path) -> None:
    """What the compiler is told of the machine changes no byte: no program reads registers."""
    built = []
    for machine, defined in (("x86", "__x86_64__"), ("arm64", "__aarch64__")):
        flags = f"clang -D__TARGET_ARCH_{machine} -D{defined}"
        out = tmp_path / machine
        make_objects(out, f"CLANG={flags}")
        built.append([(out / name).read_bytes() for name in ANY_MACHINE])
    assert built[0] == built[1]


@pytest.mark.parametrize(("machine", "serves"), [("aarch64", True), ("s390x", False)])
def test_libbpf_loader_serves_the_machines_of_its_object(
    machine: str, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(ebpf_loaders, "VMLINUX", BPF)  # any path that is there
    monkeypatch.setattr(ebpf_loaders, "available", lambda: None)
    assert (ebpf_loaders.unavailable() is None) is serves


def test_cpu_clocks_are_opened_on_the_cpus_of_the_list() -> None:
    assert cpu_numbers("0-3,8\n") == [0, 1, 2, 3, 8]
    assert cpu_numbers("0\n") == [0]


def symbols(path: Path) -> set[tuple[str, ...]]:
    """Programs, maps and their sizes. Instructions may differ between releases of clang."""
    listed = subprocess.run(
        ["llvm-objdump", "--section-headers", "--syms", str(path)],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    rows = [line.split() for line in listed.splitlines()]
    sections = {("section", row[1]) for row in rows if len(row) > 1 and row[0].isdigit()}
    objects = {("object", row[-1], row[-2]) for row in rows if len(row) > 4 and row[2] == "O"}
    functions = {("program", row[-1]) for row in rows if len(row) > 4 and row[2] == "F"}
    return sections | objects | functions


def test_hierarchy_is_v1_where_the_controller_is_mounted_and_else_unified() -> None:
    v1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n"
    v2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0\n"
    assert not hierarchy_of("cpu", mounts=v1 + v2).unified
    assert hierarchy_of("cpu", mounts=v1 + v2).path == "/sys/fs/cgroup/cpu"
    only_v2 = hierarchy_of("blkio", "io", mounts=v2)
    assert only_v2.unified
    assert only_v2.path == "/sys/fs/cgroup/unified"
    with pytest.raises(SourceUnavailable, match="expected a mounted cgroup"):
        hierarchy_of("cpu", mounts="tmpfs /tmp tmpfs rw 0 0\n")


@pytest.mark.parametrize("letter", ["\u2028", "\x0c", "\r", "\x85"])
def test_hierarchy_is_not_that_of_a_folder_with_a_line_in_its_name(letter: str) -> None:
    """A user may mount a file system of his own on a folder of any name."""
    forged = f"fuse /mnt/u/a{letter}cgroup2\u3000/mnt/u/b\u3000cgroup2\u3000rw fuse rw 0 0\n"
    broken = f"fuse /mnt/u/a{letter}b fuse rw 0 0\n"
    real = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
    assert hierarchy_of("cpu", mounts=forged + broken + real).path == "/sys/fs/cgroup"


def test_hierarchy_is_found_beside_a_folder_of_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(b"fuse /mnt/u/\xff fuse rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    monkeypatch.setattr("collectors.bpf.cgroup_names._MOUNTS", mounts)
    assert hierarchy_of("cpu").path == "/sys/fs/cgroup"


def test_cgroups_of_one_user_by_the_thousand_hide_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cut scan did not reach keeps its row: it is not gone."""
    monkeypatch.setattr("collectors.bpf.cgroup_names._MOST_DIRECTORIES", 12)
    for name in ("a", "m", "z"):
        (tmp_path / name).mkdir()
    for number in range(50):
        (tmp_path / "z" / f"x{number}").mkdir()
        (tmp_path / "a" / f"x{number}").mkdir()
    (tmp_path / "m" / "job").mkdir()
    names = CgroupNames(str(tmp_path))
    names.scan()
    inodes = {(tmp_path / name).stat().st_ino: f"/{name}" for name in ("a", "m", "z")}
    assert {inode: names.name(inode) for inode in inodes} == inodes
    assert names.cut_short
    source = FakeMap({inode: [5] for inode in (7, *inodes)})
    table = GrowingTable("cgroup", source, ("cpu_ns",))  # type: ignore[arg-type]
    first = CgroupTable(table, names).grown(0, 1)
    assert first is not None
    assert set(first.rows) == {"/a", "/m", "/z", "gone:7"}
    assert not source.deleted


def test_cgroup_names_are_paths_by_inode_and_follow_removal(tmp_path: Path) -> None:
    job = tmp_path / "slice" / "job"
    job.mkdir(parents=True)
    names = CgroupNames(str(tmp_path))
    names.scan()
    inode = job.stat().st_ino
    assert names.name(inode) == "/slice/job"
    assert names.name(tmp_path.stat().st_ino) == "/"
    job.rmdir()
    names.scan()
    assert names.name(inode) is None


def test_growing_table_hands_out_growth_once_and_names_the_rest_other() -> None:
    table = GrowingTable("cgroup", NOWHERE, ("cpu_ns", "switches"))
    key, other = (5).to_bytes(8, "little"), bytes(8)
    first = rows({key: [10, 1], other: [0, 0]})
    second = rows({key: [15, 1], other: [7, 2]})
    grown = table.grown(first, lambda k: f"g{k[0]}", 0, 1)
    assert grown is not None
    assert grown.column("cpu_ns") == {"g5": 10}
    grown = table.grown(second, lambda k: f"g{k[0]}", 1, 1)
    assert grown is not None
    assert grown.column("cpu_ns") == {"g5": 5, OTHER: 7}
    assert table.grown(second, str, 2, 1) is None


def test_growing_table_adds_to_other_what_the_map_has_no_room_for() -> None:
    full = PerCpuMap(fd=-1, key_bytes=8, fields=2, cpus=1, capacity=2)
    table = GrowingTable("cgroup", full, ("cpu_ns", "switches"))
    key, other = (5).to_bytes(8, "little"), bytes(8)
    now = rows({key: [10, 1], other: [0, 0]})
    table.add(now, (6).to_bytes(8, "little"), {"cpu_ns": 4})
    table.add(now, key, {"cpu_ns": 1})
    assert list(now.places) == [key, other]
    assert now.totals.tolist() == [[11, 1], [4, 0]]


def test_growing_table_adds_a_row_that_the_map_has_not_got_yet() -> None:
    source = FakeMap({5: [10, 1]})
    table = GrowingTable("cgroup", source, ("cpu_ns", "switches"))  # type: ignore[arg-type]
    table.grown(table.read(), str, 0, 1)
    now = table.read()
    table.add(now, (6).to_bytes(8, "little"), {"cpu_ns": 4})
    grown = table.grown(now, lambda key: f"g{key[0]}", 1, 1)
    assert grown is not None
    assert grown.column("cpu_ns") == {"g6": 4}
    assert table.grown(table.read(), str, 2, 1) is None


def test_growing_table_forgets_what_was_silent_and_begins_it_anew() -> None:
    """Rows that stay keep their last value, whatever comes and goes beside them."""
    source = FakeMap({})
    table = GrowingTable("peer", source, ("send_bytes",))  # type: ignore[arg-type]
    stays, goes, comes = (one.to_bytes(8, "little") for one in (5, 6, 7))
    table.grown(rows({goes: [4], stays: [10]}), str, 0, 1)
    for second in range(1, 601):
        table.grown(rows({goes: [4], stays: [10 + second]}), str, second, 1)
        table.forget_idle()
    assert source.deleted == [goes]
    now = rows({comes: [1], goes: [2], stays: [612]})
    grown = table.grown(now, lambda key: str(key[0]), 601, 1)
    assert grown is not None
    assert grown.column("send_bytes") == {"7": 1, "6": 2, "5": 2}


def test_growing_table_reads_other_rows_where_keys_change_or_come_again() -> None:
    source = FakeMap({5: [10], 6: [20]})
    table = GrowingTable("peer", source, ("bytes",))  # type: ignore[arg-type]
    five, six = ((one).to_bytes(8, "little") for one in (5, 6))

    def grown() -> dict[str, int]:
        found = table.grown(table.read(), lambda key: str(key[0]), 0, 1)
        return found.column("bytes") if found is not None else {}

    assert grown() == {"5": 10, "6": 20}
    first = table.read()
    assert table.read().places is first.places
    source.change({6: [21], 7: [3], 5: [10]})
    assert grown() == {"6": 1, "7": 3}
    table.forget([five])
    source.change({6: [21], 7: [3], 5: [2]})
    assert grown() == {"5": 2}  # a row of the same key that was made anew
    table.forget([six])
    source.change({})
    assert grown() == {}
    source.change({6: [1]})
    assert grown() == {"6": 1}
    assert source.deleted == [five, six]


def test_growing_table_takes_the_later_of_a_row_that_is_read_twice() -> None:
    """The kernel walks a hash that moves, and may come by one row again."""
    twice = FakeMap({5: [10]}, {6: [1], 5: [12]})
    table = GrowingTable("peer", twice, ("bytes",))  # type: ignore[arg-type]
    found = table.grown(table.read(), lambda key: str(key[0]), 0, 1)
    assert found is not None
    assert found.column("bytes") == {"5": 12, "6": 1}


def test_growing_table_never_shrinks_when_a_running_task_leaves() -> None:
    table = GrowingTable("cgroup", NOWHERE, ("cpu_ns", "switches"))
    key = (5).to_bytes(8, "little")
    table.grown(rows({key: [10, 1]}), str, 0, 1)
    assert table.grown(rows({key: [9, 1]}), str, 1, 1) is None
    grown = table.grown(rows({key: [12, 1]}), str, 2, 1)
    assert grown is not None
    assert grown.values.tolist() == [[2, 0]]


def test_sources_of_the_sample_configuration_name_the_host_sources() -> None:
    sample = load_config(BPF.parent / "deploy/config/agent.toml")
    named = list(sources_of(sample, Catalogue.load()))
    assert [name for name in named if name in {"ebpf", "pressure", "rdma"}] == [
        "ebpf", "pressure", "rdma",
    ]  # fmt: skip
    assert sample.sources.capabilities[:2] == ("CAP_BPF", "CAP_PERFMON")


def test_peer_names_are_addresses() -> None:
    assert peer_name(bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 7])) == "10.0.0.7"
    assert peer_name(bytes(15) + b"\x01") == "::1"


def test_possible_cpus_counts_a_list_with_holes() -> None:
    assert possible_cpus("0-3,8\n") == 5
    assert possible_cpus("0\n") == 1
