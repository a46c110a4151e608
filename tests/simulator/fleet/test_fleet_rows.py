"""Rows of a simulated fleet: within bounds, made block by block, true to their state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.applications import load_applications
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.fleet_rows import MIX_JITTER, FleetRows, block_rng
from simulator.fleet.hosts import IDLE, FleetState, HostInventory, unpack
from simulator.scenario import Shape, load
from tests.window_kit import CATALOGUE, task_of
from wire.task import SectionKind, Task

HOSTS = 600
ALL = [section.name for section in CATALOGUE.sections]
MIXES = ("kernel_mix", "kernel_mix_by_model", "application_mix")
Rows = NDArray[np.int64]


@pytest.fixture(scope="module")
def model() -> FleetModel:
    shapes = (
        Shape(gpu_model="H100", gpus=8, share=0.5),
        Shape(gpu_model="V100", gpus=4, share=0.3),
        Shape(gpu_model="MI300X", gpus=8, share=0.2),
    )
    return FleetModel(load("steady").with_(hosts=HOSTS, shapes=shapes), CATALOGUE)


@pytest.fixture(scope="module")
def state(model: FleetModel) -> FleetState:
    return model.at(model.scenario.start_s, 60)


@pytest.fixture(scope="module")
def drawn(model: FleetModel, state: FleetState) -> dict[str, Rows]:
    task = task_of(ALL)
    return parts(task, FleetRows(CATALOGUE, task, model.applications).block(
        state, 0, HOSTS, block_rng(1, "t", 0, 0)
    ))  # fmt: skip


def parts(task: Task, rows: Rows) -> dict[str, Rows]:
    return {n: rows[:, place.start - 2 : place.stop - 2] for n, place in task.slices().items()}


def test_fleet_rows_complete_wall_time_and_stay_in_bounds(
    state: FleetState, drawn: dict[str, Rows]
) -> None:
    wall_ms = state.inventory.gpus.astype(np.int64) * 60_000
    for name in MIXES:
        assert (drawn[name].sum(axis=1) == wall_ms).all()
    for spec in task_of(ALL).sections:
        rows = drawn[spec.name]
        assert (rows >= 0).all()
        if spec.kind is SectionKind.INDICATORS:
            assert rows.max(initial=0) <= 1
        else:
            assert (rows <= spec.coordinate_cap).all()
            assert (rows.sum(axis=1) <= spec.l1_bound).all()
    samples = state.inventory.gpus.astype(np.int64) * 12
    for gauge in ("gpu_utilisation", "gpu_memory", "gpu_power", "gpu_temperature"):
        assert (drawn[gauge].sum(axis=1) == samples).all()
    idle = state.application == IDLE
    assert 0 < idle.sum() < HOSTS
    section = CATALOGUE.section("kernel_mix")
    assert (drawn["kernel_mix"][idle, section.index("idle")] == wall_ms[idle]).all()
    assert (drawn["kernel_mix"][~idle, section.index("idle")] < wall_ms[~idle]).all()
    time_ms = drawn["kernel_duration"].sum(axis=1)
    assert (time_ms <= wall_ms).all()
    assert (time_ms[~idle] > 0).all()


def test_fleet_rows_count_under_the_hosts_gpu_model(
    state: FleetState, drawn: dict[str, Rows]
) -> None:
    cells = CATALOGUE.section("kernel_mix_by_model").cells
    models = CATALOGUE.classes("gpu_model")
    own = np.array([cell.split("/", 1)[0] for cell in cells])
    for place in np.unique(state.inventory.gpu_model):
        hosts = state.inventory.gpu_model == place
        elsewhere = drawn["kernel_mix_by_model"][np.ix_(hosts, own != models[place])]
        assert not elsewhere.any()
    by_model = drawn["kernel_mix_by_model"].reshape(HOSTS, 12, -1).sum(axis=1)
    assert (by_model == drawn["kernel_mix"]).all()


def test_fleet_rows_on_another_gpu_model_are_a_variant_by_rule(model: FleetModel) -> None:
    names, models = [one.name for one in model.applications], CATALOGUE.classes("gpu_model")
    task = task_of(["kernel_duration"])
    rows = FleetRows(CATALOGUE, task, model.applications)
    base = model.at(model.now_s, 60)
    means = {}
    for name in ("H100", "A100", "other"):
        inventory = replace(
            base.inventory, gpu_model=np.full(HOSTS, models.index(name), dtype=np.int8)
        )
        state = replace(
            base,
            inventory=inventory,
            application=np.full(HOSTS, names.index("timesformer_h100"), dtype=np.int16),
            busy=np.ones(HOSTS, dtype=np.float32),
        )
        time_ms = rows.block(state, 0, HOSTS, block_rng(1, "t", 0, 0)).sum(axis=0)
        means[name] = float(time_ms @ np.arange(len(time_ms)) / time_ms.sum())
    # An A100 has 0.61 of the memory bandwidth and 0.32 of the arithmetic: 0.7 to 1.7 bins longer.
    assert 0.6 < means["A100"] - means["H100"] < 1.7
    assert means["other"] == means["H100"]  # no data sheet: as recorded


def test_fleet_rows_name_the_application_that_runs(
    model: FleetModel, state: FleetState, drawn: dict[str, Rows]
) -> None:
    section = CATALOGUE.section("application_mix")
    for host in np.flatnonzero(state.application != IDLE)[:50]:
        name = model.applications[state.application[host]].workload.application
        filled = {section.cells[i] for i in np.flatnonzero(drawn["application_mix"][host])}
        assert filled <= {name, "idle"}
        assert name in filled
        work_ms = drawn["application_mix"][host, section.index(name)]
        mix = CATALOGUE.section("kernel_mix")
        idle = drawn["kernel_mix"][host, mix.index("idle")]
        assert work_ms == int(state.inventory.gpus[host]) * 60_000 - idle


def test_fleet_rows_report_the_events_of_the_state(model: FleetModel, state: FleetState) -> None:
    rng = np.random.default_rng(2)
    struck = rng.integers(0, 2**13, HOSTS).astype(np.uint64)
    broken = rng.integers(0, 2**18, HOSTS).astype(np.uint64)
    seen = rng.integers(0, 2**63, (HOSTS, 4)).astype(np.uint64)
    known = replace(state, incidents=struck, hardware=broken, seen=seen)
    task = task_of(["incidents", "hardware_faults", "applications_seen"], window_s=604_800)
    rows = FleetRows(CATALOGUE, task, model.applications).block(
        known, 0, HOSTS, block_rng(1, "t", 0, 0)
    )
    got = parts(task, rows)
    powers = 2 ** np.arange(13, dtype=np.uint64)
    assert (got["incidents"][:, :13].astype(np.uint64) @ powers == struck).all()
    assert not got["incidents"][:, 13:].any()
    assert (got["hardware_faults"][:, 3] == (broken >> np.uint64(3)) % np.uint64(2)).all()
    assert (
        got["applications_seen"][:, 64 + 7] == (seen[:, 1] >> np.uint64(7)) % np.uint64(2)
    ).all()
    assert (got["applications_seen"][:, :256] == unpack(seen, 256)).all()
    assert not got["applications_seen"][:, 256].any()


def test_fleet_rows_block_alone_is_the_block_among_others(
    model: FleetModel, state: FleetState
) -> None:
    task = task_of(["kernel_mix", "gpu_power", "host_network", "copy_size"])
    rows = FleetRows(CATALOGUE, task, model.applications)
    blocks = [(lo, min(lo + 250, HOSTS)) for lo in range(0, HOSTS, 250)]
    forwards = [rows.block(state, *b, block_rng(7, "t", 60, b[0])) for b in blocks]
    again = FleetRows(CATALOGUE, task, model.applications)
    backwards = [again.block(state, *b, block_rng(7, "t", 60, b[0])) for b in reversed(blocks)]
    out = np.full((HOSTS, task.d - 2), 99, dtype=np.int64)
    for block in blocks:
        again.block(state, *block, block_rng(7, "t", 60, block[0]), out[slice(*block)])
    assert (np.concatenate(forwards) == np.concatenate(backwards[::-1])).all()
    assert (np.concatenate(forwards) == out).all()
    for change in ((8, "t", 60), (7, "u", 60), (7, "t", 120)):
        assert (rows.block(state, 0, 250, block_rng(*change, 0)) != forwards[0]).any()


def healthy_hosts(model: FleetModel) -> HostInventory:
    return replace(model.inventory, pace=np.ones(HOSTS, dtype=np.float32))


def test_fleet_rows_wait_for_the_slowest_host_which_does_not(model: FleetModel) -> None:
    names = [one.name for one in model.applications]
    pace = np.ones(HOSTS, dtype=np.float32)
    pace[::2] = 0.7
    v100 = CATALOGUE.classes("gpu_model").index("V100")
    state = replace(
        model.at(model.now_s, 60),
        inventory=replace(model.inventory, pace=pace, gpu_model=np.full(HOSTS, v100, np.int8)),
        application=np.full(HOSTS, names.index("data_parallel_v100"), dtype=np.int16),
        busy=np.ones(HOSTS, dtype=np.float32),
        speed=np.full(HOSTS, 0.7, dtype=np.float32),
    )
    rows = FleetRows(CATALOGUE, task_of(["kernel_mix"]), model.applications)
    mix = rows.block(state, 0, HOSTS, block_rng(1, "t", 0, 0))
    cell = CATALOGUE.section("kernel_mix").index("gpu_time/communication")
    busy = mix[:, : CATALOGUE.section("kernel_mix").index("idle")].sum(axis=1)
    waits = mix[:, cell] / busy
    recorded = next(one.workload for one in model.applications if one.name == "data_parallel_v100")
    kernels = recorded.kernels
    exchange = sum(row.time_ns_per_step for row in kernels if row.family == "communication")
    own = exchange / sum(row.time_ns_per_step for row in kernels)
    assert waits[::2].mean() == pytest.approx(own, abs=0.02)
    assert waits[1::2].mean() == pytest.approx(0.7 * waits[::2].mean() + 0.3, abs=0.02)


def test_fleet_rows_of_a_slow_host_wait_in_their_exchange(model: FleetModel) -> None:
    names = [one.name for one in model.applications]
    task = task_of(["kernel_mix"])
    section = CATALOGUE.section("kernel_mix")
    rows = FleetRows(CATALOGUE, task, model.applications)
    for name, waits_in in (("data_parallel_v100", "gpu_time/communication"),
                           ("timesformer_h100", "idle")):  # fmt: skip
        base = replace(
            model.at(model.now_s, 60),
            inventory=healthy_hosts(model),
            application=np.full(HOSTS, names.index(name), dtype=np.int16),
            busy=np.ones(HOSTS, dtype=np.float32),
            speed=np.ones(HOSTS, dtype=np.float32),
        )
        healthy = rows.block(base, 0, HOSTS, block_rng(1, "t", 0, 0)).sum(axis=0)
        slow = replace(base, speed=np.full(HOSTS, 0.5, dtype=np.float32))
        slowed = rows.block(slow, 0, HOSTS, block_rng(1, "t", 0, 0)).sum(axis=0)
        gemm, wait = section.index("gpu_time/gemm"), section.index(waits_in)
        assert slowed[gemm] == pytest.approx(0.5 * healthy[gemm], rel=0.01)
        assert slowed[wait] > 1.2 * healthy[wait]
        assert slowed.sum() == healthy.sum()


def test_fleet_rows_left_out_by_the_coin_are_unmeasured(
    model: FleetModel, state: FleetState
) -> None:
    task = task_of([*MIXES, "kernel_duration"], rate=250_000)
    rows = FleetRows(CATALOGUE, task, model.applications)
    got = parts(task, rows.block(state, 0, HOSTS, block_rng(3, "t", 0, 0)))
    wall_ms = state.inventory.gpus.astype(np.int64) * 60_000
    hole = CATALOGUE.section("kernel_mix").index("unmeasured")
    skipped = got["kernel_mix"][:, hole] > 0
    assert abs(skipped.mean() - 0.75) < 0.08
    for name in MIXES:
        assert (got[name].sum(axis=1) == wall_ms).all()
    assert (got["kernel_mix"][skipped, hole] == wall_ms[skipped]).all()
    assert not got["kernel_duration"][skipped].any()


def test_fleet_rows_keep_each_applications_mix_within_its_jitter(model: FleetModel) -> None:
    """The kernel mix of each application lies around its table's, by no more than its jitter."""
    shipped = load_applications()
    task = task_of(["kernel_mix", "kernel_duration"])
    rows = FleetRows(CATALOGUE, task, shipped)
    families = CATALOGUE.classes("family")
    models = CATALOGUE.classes("gpu_model")
    base = model.at(model.now_s, 60)
    hosts = 400
    for place, one in enumerate(shipped):
        inventory = replace(
            base.inventory,
            gpu_model=np.full(HOSTS, models.index(one.workload.gpu_model), dtype=np.int8),
        )
        state = replace(
            base,
            inventory=inventory,
            application=np.full(HOSTS, place, dtype=np.int16),
            busy=np.ones(HOSTS, dtype=np.float32),
            speed=np.ones(HOSTS, dtype=np.float32),
        )
        got = rows.block(state, 0, hosts, block_rng(5, "t", 0, place))[:, : len(families)]
        shares = got / got.sum(axis=1, keepdims=True)
        whole = sum(row.time_ns_per_step for row in one.workload.kernels)
        for index, family in enumerate(families):
            kernels = [r for r in one.workload.kernels if r.family == family]
            table = sum(row.time_ns_per_step for row in kernels) / whole
            spread = shares[:, index].std()
            # Four standard errors of the mean, and the bias of a share of log-normal weights.
            allowed = 4 * spread / np.sqrt(hosts) + MIX_JITTER**2 * table * (1 - table) + 1e-4
            assert abs(shares[:, index].mean() - table) <= allowed, f"{one.name}, {family}"
            assert spread <= 1.15 * MIX_JITTER * table + 1e-3, f"{one.name}, {family}"
