"""The shipped catalogue: what it holds and what its bounds resolve to."""

from __future__ import annotations

import pytest

from wire.catalogue import Bins, Catalogue, Section
from wire.task import SectionKind

CATALOGUE = Catalogue.load()

# id, name, cells: a change of any of these changes what deployed hosts publish; others may follow.
SHIPPED = [
    (1, "kernel_mix", 130),
    (2, "kernel_mix_by_model", 1560),
    (3, "application_mix", 258),
    (4, "kernel_duration", 32),
    (5, "copy_size", 32),
    (6, "gpu_utilisation", 20),
    (7, "gpu_memory", 20),
    (8, "gpu_power", 32),
    (9, "gpu_temperature", 20),
    (20, "host_cpu", 6),
    (21, "host_memory", 3),
    (22, "host_disk", 4),
    (23, "host_network", 3),
    (24, "applications_seen", 258),
    (25, "incidents", 66),
    (26, "hardware_faults", 66),
    (27, "copies", 5),
    (28, "collectives", 10),
    (29, "synchronisation_waits", 4),
]
FIRST_CLASSES = {
    "family": ("gemm", "attention", "conv", "norm"),
    "gpu_model": ("V100", "A100", "H100", "H200", "B200", "MI300X", "L40S", "other"),
    "application": ("unknown",),
    "incident": ("cpu_contention", "cgroup_throttling", "memory_pressure", "disk_io"),
    "hardware_fault": ("faulty_gpu", "gpu_hbm3_memory", "software_bug"),
}
PLACES = {
    "family": 64,
    "gpu_model": 12,
    "application": 256,
    "incident": 64,
    "hardware_fault": 64,
}


def test_catalogue_keeps_its_sections() -> None:
    got = [(one.id, one.name, one.length) for one in CATALOGUE.sections]
    assert got[: len(SHIPPED)] == SHIPPED


@pytest.mark.parametrize("table", PLACES)
def test_table_keeps_its_places(table: str) -> None:
    assert len(CATALOGUE.tables[table].cells) == PLACES[table]
    first = FIRST_CLASSES[table]
    assert CATALOGUE.classes(table)[: len(first)] == first
    assert set(CATALOGUE.tables[table].cells[len(CATALOGUE.classes(table)) :]) == {
        f"reserved_{place}" for place in range(len(CATALOGUE.classes(table)), PLACES[table])
    }


def test_fault_table_starts_with_the_18_published_rows() -> None:
    assert len(CATALOGUE.classes("hardware_fault")) == 18
    assert len(CATALOGUE.classes("incident")) == 13


def test_kernel_mix_is_a_partition_of_wall_time() -> None:
    mix = CATALOGUE.section("kernel_mix")
    assert mix.index("gpu_time/gemm") == 0
    assert mix.index("launch_share/gemm") == 64
    assert (mix.index("idle"), mix.index("unmeasured")) == (128, 129)
    by_model = CATALOGUE.section("kernel_mix_by_model")
    assert by_model.index("H100/gpu_time/gemm") == 2 * 130
    assert by_model.index("other/unmeasured") == 1039


@pytest.mark.parametrize(
    ("name", "gpus", "window_s", "resolved"),
    [
        ("kernel_mix", 8, 60, (480_000, 480_000, 7_500)),
        ("kernel_mix", 8, 5, (40_000, 40_000, 625)),
        ("kernel_mix", 1, 1, (1_008, 1_008, 16)),  # 1,000 ms rounded up to whole steps
        ("gpu_utilisation", 8, 60, (96, 96, 2)),
        ("gpu_utilisation", 8, 1, (8, 8, 1)),  # a window shorter than a period has one sample
        ("host_cpu", 8, 60, (1_000_000, 1_000_000, 15_625)),
        ("host_disk", 1, 60, (1_031_250, 3_000_000, 46_875)),
        ("applications_seen", 8, 86_400, (64, 1_152, 1)),
        ("incidents", 1, 5, (64, 320, 1)),
    ],
)
def test_bounds_resolve(
    name: str, gpus: int, window_s: int, resolved: tuple[int, int, int]
) -> None:
    assert CATALOGUE.section(name).resolve(gpus, window_s) == resolved


@pytest.mark.parametrize("section", CATALOGUE.sections, ids=lambda one: one.name)
def test_bounds_are_whole_steps_and_never_below_the_raw_bound(section: Section) -> None:
    for gpus in (1, 3, 8, 16):
        for window_s in (1, 5, 60, 3_600):
            a, bound, q = section.resolve(gpus, window_s)
            assert a % q == bound % q == 0
            assert q <= a <= bound
            steps = section.steps_per_unit * max(section.m, 1)
            assert bound // q <= steps
            if section.kind is SectionKind.MIX:
                assert bound >= gpus * window_s * 1000


def test_resolve_refuses_no_gpus_and_no_window() -> None:
    for gpus, window_s in ((0, 60), (8, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            CATALOGUE.section("kernel_mix").resolve(gpus, window_s)


@pytest.mark.parametrize(
    ("value", "place"), [(0, 0), (1, 0), (2, 1), (1023, 9), (1024, 10), (2**31, 31), (2**40, 31)]
)
def test_log2_bin_of_value(value: int, place: int) -> None:
    bins = CATALOGUE.section("kernel_duration").bins
    assert bins is not None
    assert bins.index(value) == place
    assert bins.edges[10] == 1024


@pytest.mark.parametrize(("value", "place"), [(-5, 0), (19.9, 0), (25, 1), (119, 19), (300, 19)])
def test_linear_bin_of_value(value: float, place: int) -> None:
    bins = CATALOGUE.section("gpu_temperature").bins
    assert bins is not None
    assert bins.index(value) == place


def test_bin_names_show_open_ends() -> None:
    assert Bins("linear", "percent", 0, 50, 2).names == ("0..50 percent", "50.. percent")
    assert Bins("log2", "ns", 3, 0, 2).names == ("2^3..2^4 ns", "2^4.. ns")


def test_lookups_name_what_there_is() -> None:
    with pytest.raises(KeyError, match="kernel_mix, kernel_mix_by_model"):
        CATALOGUE.section("nothing")
    with pytest.raises(KeyError, match="section kernel_mix has no cell 'gemm'"):
        CATALOGUE.section("kernel_mix").index("gemm")
