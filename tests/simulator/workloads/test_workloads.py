"""Workload tables and the rows drawn from them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.families import FamilyRules
from pointillist.play.demo_fleet import SCENARIO
from simulator.applications import (
    Application,
    Workload,
    WorkloadError,
    check_classes,
    load_workload,
    load_workloads,
    shipped_folder,
)
from simulator.fleet.fleet_model import SteadyFleet
from simulator.fleet.fleet_rows import FleetRows
from simulator.fleet.hosts import IDLE
from simulator.scenario import load
from tests.window_kit import CATALOGUE, task_of
from wire.catalogue import Catalogue
from wire.task import SectionKind, SectionSpec, Task

MIXES = ("kernel_mix", "kernel_mix_by_model", "application_mix")


@pytest.fixture(scope="module")
def workloads() -> tuple[Workload, ...]:
    return load_workloads()


def sample_rows(
    task: Task,
    workloads: Sequence[Workload],
    runs: tuple[NDArray[np.int64], NDArray[np.int64]],
    rng: np.random.Generator,
    window_s: int = 60,
    catalogue: Catalogue = CATALOGUE,
) -> NDArray[np.int64]:
    """One window of hosts of which each runs a workload (by place, IDLE for none) on its GPUs."""
    index, gpus = runs
    fleet = SteadyFleet(load(SCENARIO).scaled(hosts=len(index)), CATALOGUE)
    models = CATALOGUE.classes("gpu_model")
    recorded = np.array([models.index(workload.gpu_model) for workload in workloads])
    state = fleet.at(fleet.scenario.start_s, window_s)
    inventory = replace(
        fleet.inventory, gpus=gpus.astype(np.int8), gpu_model=recorded[index].astype(np.int8)
    )
    state = replace(
        state,
        inventory=inventory,
        application=index.astype(np.int16),
        busy=(index != IDLE).astype(np.float32),
    )
    made = [Application(one.name, one.application, one, one.name) for one in workloads]
    drawn = FleetRows(catalogue, task, made)
    return drawn.block(state, 0, len(index), rng)


def sections(task: Task, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    return {
        name: rows[:, place.start - 2 : place.stop - 2] for name, place in task.slices().items()
    }


def test_workloads_packaged_tables_are_valid_and_small(workloads: tuple[Workload, ...]) -> None:
    check_classes(
        workloads,
        CATALOGUE.classes("family"),
        CATALOGUE.classes("application"),
        CATALOGUE.classes("gpu_model"),
    )
    assert len(workloads) == 10
    assert len({w.name for w in workloads}) == 10
    for workload in workloads:
        assert (shipped_folder() / f"{workload.name}.toml").stat().st_size < 20_000
        assert workload.licence == "MIT"
        assert workload.source.startswith("github.com/")
        time_ns = sum(row.time_ns_per_step for row in workload.kernels)
        # Streams may overlap, so kernels can be busy for longer than the GPU.
        assert time_ns >= 0.99 * workload.busy_millionths / 1e6 * workload.step_ns
        assert time_ns <= 1.1 * workload.busy_millionths / 1e6 * workload.step_ns


def test_workloads_rows_carry_the_family_of_the_rules(workloads: tuple[Workload, ...]) -> None:
    rules = FamilyRules.load()
    named = [row for w in workloads for row in w.kernels if row.name != "(everything else)"]
    astray = [row for row in named if rules.classify(row.name)[0] != row.family]
    assert astray == []
    assert len(named) > 200


def test_workloads_tail_is_at_most_one_percent(workloads: tuple[Workload, ...]) -> None:
    for workload in workloads:
        tail = sum(k.time_ns_per_step for k in workload.kernels if k.name == "(everything else)")
        assert tail <= 0.011 * sum(k.time_ns_per_step for k in workload.kernels)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format = 1", "format = 2", "format: expected 1, got 2"),
        (
            "steps = 1",
            "stepz = 1",
            r"stepz: unknown key \(did you mean 'steps'\?\); expected one of",
        ),
        (
            "busy_millionths = ",
            "busy_millionths = 99",
            "busy_millionths: expected an integer from 0 to 1,000,000",
        ),
        (
            "duration_ns = [",
            "duration_ns = [9999999999, ",
            r"kernel\[0\]\.duration_ns: expected an array of 4, got",
        ),
        ('family = "', "family = 3 #", r"kernel\[0\]\.family: expected text in quotes, got 3"),
        ("[[kernel]]", "[[kernel", "bert_small"),
    ],
)
def test_workloads_broken_table_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (shipped_folder() / "bert_small_h100.toml").read_text(encoding="utf-8")
    path = tmp_path / "bert_small.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(WorkloadError, match=message):
        load_workload(path)


def test_workloads_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="found none"):
        load_workloads(tmp_path)


def test_workloads_unknown_class_is_named(workloads: tuple[Workload, ...]) -> None:
    with pytest.raises(WorkloadError, match="a GPU model of the catalogue expected, got V100"):
        check_classes(
            workloads, CATALOGUE.classes("family"), CATALOGUE.classes("application"), ["H100"]
        )


def every_section() -> Task:
    return task_of([section.name for section in CATALOGUE.sections])


def test_workload_rows_complete_wall_time_and_stay_in_bounds(
    workloads: tuple[Workload, ...],
) -> None:
    task = every_section()
    rng = np.random.default_rng(3)
    index = rng.integers(IDLE, len(workloads), 300)
    gpus = rng.integers(1, 9, 300)
    rows = sample_rows(task, workloads, (index, gpus), rng)
    assert rows.shape == (300, task.d - 2)
    assert (rows >= 0).all()
    parts = sections(task, rows)
    for name in MIXES:
        assert (parts[name].sum(axis=1) == gpus * 60_000).all()
    for spec in task.sections:
        if spec.kind is SectionKind.INDICATORS:
            assert set(np.unique(parts[spec.name])) <= {0, 1}
        else:
            assert (parts[spec.name] <= spec.coordinate_cap).all()
            assert (parts[spec.name].sum(axis=1) <= spec.l1_bound).all()
    idle = CATALOGUE.section("kernel_mix").index("idle")
    assert (parts["kernel_mix"][index == IDLE][:, idle] == 60_000 * gpus[index < 0]).all()
    assert (parts["gpu_utilisation"].sum(axis=1) == gpus * 12).all()


def test_workload_rows_follow_their_table(workloads: tuple[Workload, ...]) -> None:
    task = task_of(["kernel_mix", "application_mix", "kernel_duration"])
    names = [workload.name for workload in workloads]
    qwen = workloads[names.index("qwen1_5_0_5b_h100")]
    hosts = 2_000
    index = np.full(hosts, names.index(qwen.name))
    rows = sample_rows(task, workloads, (index, np.full(hosts, 8)), np.random.default_rng(8))
    parts = sections(task, rows)
    mix = parts["kernel_mix"].sum(axis=0) / parts["kernel_mix"].sum()
    whole = sum(row.time_ns_per_step for row in qwen.kernels)
    for family in ("gemm", "elementwise", "attention"):
        place = CATALOGUE.section("kernel_mix").index(f"gpu_time/{family}")
        table = sum(r.time_ns_per_step for r in qwen.kernels if r.family == family) / whole
        busy = 1 - mix[CATALOGUE.section("kernel_mix").index("idle")]
        assert mix[place] / busy == pytest.approx(table, rel=0.06)
    host_gemm = parts["kernel_mix"][:, CATALOGUE.section("kernel_mix").index("gpu_time/gemm")]
    assert host_gemm.std() / host_gemm.mean() > 0.05  # hosts differ in load and in mix
    idle = parts["kernel_mix"][:, CATALOGUE.section("kernel_mix").index("idle")]
    share = host_gemm / (480_000 - idle)
    assert share.std() / share.mean() > 0.05
    seen = np.flatnonzero(parts["application_mix"].sum(axis=0))
    cells = [CATALOGUE.section("application_mix").cells[i] for i in seen]
    assert cells == ["llm_inference", "idle"]


def test_workload_rows_repeat_with_the_seed(workloads: tuple[Workload, ...]) -> None:
    task = every_section()
    index, gpus = np.arange(50) % len(workloads), np.full(50, 8)
    draws = [
        sample_rows(task, workloads, (index, gpus), np.random.default_rng(seed), 5)
        for seed in (4, 4, 5)
    ]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()


def test_workload_rows_of_unmeasured_hosts_are_unmeasured(workloads: tuple[Workload, ...]) -> None:
    task = task_of([*MIXES, "kernel_duration"], rate=250_000)
    index, gpus = np.arange(2_000) % len(workloads), np.full(2_000, 8)
    parts = sections(task, sample_rows(task, workloads, (index, gpus), np.random.default_rng(4)))
    place = CATALOGUE.section("kernel_mix").index("unmeasured")
    skipped = parts["kernel_mix"][:, place] > 0
    assert abs(skipped.mean() - 0.75) < 0.05
    assert (parts["kernel_mix"][skipped, place] == 480_000).all()
    assert (parts["kernel_mix"][skipped].sum(axis=1) == 480_000).all()
    assert (parts["kernel_duration"][skipped] == 0).all()
    assert (parts["kernel_mix_by_model"].sum(axis=1) == 480_000).all()


def test_workload_rows_of_a_section_without_signal_are_zero(
    workloads: tuple[Workload, ...], tmp_path: Path
) -> None:
    text = """
format = 1
extends = "default"
[[section]]
id = 900
name = "toy"
kind = "mix"
unit = "coffee-ms"
axes = ["gpu_model"]
bound = "fixed"
coordinate_cap = 64
l1_bound = 64
steps_per_unit = 64
"""
    path = tmp_path / "catalogue.toml"
    path.write_text(text, encoding="utf-8")
    catalogue = Catalogue.load(path)
    toy = catalogue.section("toy")
    spec = SectionSpec(toy.id, "toy", toy.kind, toy.length, 64, 64, 0, 1, 1, 1_000_000, 4_096)
    base = task_of(["kernel_mix"])
    task = replace(base, sections=(spec,))
    rows = sample_rows(
        task,
        workloads,
        (np.zeros(3, int), np.ones(3, int)),
        np.random.default_rng(1),
        catalogue=catalogue,
    )
    assert rows.tolist() == [[0] * toy.length] * 3
