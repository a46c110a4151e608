"""Windows: event time, exact partitions of wall time, the sampling coin, durable long windows."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.records.activity import (
    GpuCoverage,
    HostTable,
    HostTicks,
    KernelActivity,
    Observation,
    Record,
    SourceCoverage,
    log2_bin,
)
from edge_agent.windows.window_accumulator import HostClock, WindowAccumulator
from edge_agent.windows.window_state import AccumulatorsUnavailable, DurableAccumulators
from tests.window_kit import CATALOGUE, MINUTE_SECTIONS, OFFSET, SECOND, START, cells, task_of
from wire.task import SectionSpec, Task


def zeros(n: int) -> bytes:
    return bytes(n)


def fixed_coin(value: int) -> Callable[[int], bytes]:
    """Randomness whose first draw below a million is `value`."""
    return lambda n: value.to_bytes(n, "little")


def accumulator(
    task: Task,
    gpus: tuple[str, ...] = ("H100", "H100"),
    random_bytes: Callable[[int], bytes] = zeros,
    store: DurableAccumulators | None = None,
    watched: bool = True,
) -> WindowAccumulator:
    """Windows of which a source watches every GPU from the first to the third."""
    windows = WindowAccumulator(
        CATALOGUE,
        task,
        gpus,
        clock=HostClock(OFFSET),
        first_window=START,
        store=store,
        random_bytes=random_bytes,
    )
    if watched:
        watch(windows, range(len(gpus)), 0, 3 * task.window_s)
        for source in ("faults", "diagnosis"):
            windows.add(SourceCoverage(source, boot(0), 3 * task.window_s * SECOND))
    return windows


def watch(windows: WindowAccumulator, gpus: Iterable[int], since_s: float, until_s: float) -> None:
    for gpu in gpus:
        windows.add(GpuCoverage("x", gpu, boot(since_s), round((until_s - since_s) * SECOND)))


def boot(seconds: float) -> int:
    """CLOCK_BOOTTIME at some seconds into the first window."""
    return round(seconds * SECOND) + 50 * SECOND


def activity(at_s: float, time_ns: int | None, family: str = "gemm", **more: Any) -> KernelActivity:
    bins = ((log2_bin(time_ns or 0), 1),) if time_ns is not None else ()
    fields: dict[str, Any] = {
        "gpu": 0, "kernel": "k", "family": family, "application": "llm_inference", "count": 1,
        "gpu_time_ns": time_ns, "log2_bins": bins, "sampling_rate_millionths": 1_000_000,
        "boottime_ns": boot(at_s),
    }  # fmt: skip
    return KernelActivity(**(fields | more))


def test_windows_idle_window_is_all_idle() -> None:
    task = task_of(MINUTE_SECTIONS)
    row = accumulator(task).close(START)
    assert row.shape == (task.d - 2,)
    assert cells(task, row, "kernel_mix") == {"idle": 120_000}
    assert cells(task, row, "kernel_mix_by_model") == {"H100/idle": 120_000}
    assert cells(task, row, "application_mix") == {"idle": 120_000}
    assert cells(task, row, "kernel_duration") == {}


def test_windows_leave_out_what_is_local_to_the_host() -> None:
    with_local, without = (accumulator(task_of(MINUTE_SECTIONS)) for _ in range(2))
    one = np.ones((1, 1))
    with_local.add(HostTable("cpu", ("cpu0",), ("cpu_ns",), one.astype(np.int64), boot(1), SECOND))
    with_local.add(HostTicks(("cpu_ns",), np.array([boot(1)]), one.astype(np.uint64), 0, 0))
    assert (with_local.close(START) == without.close(START)).all()


def test_windows_record_counts_in_the_window_of_its_own_time() -> None:
    task = task_of(["kernel_mix"])
    windows = accumulator(task)
    windows.add(activity(59.9, 5 * SECOND, "gemm"))
    windows.add(activity(60.0, 7 * SECOND, "conv"))
    first = cells(task, windows.close(START), "kernel_mix")
    assert first == {"gpu_time/gemm": 5_000, "idle": 115_000}
    second = cells(task, windows.close(START + 60), "kernel_mix")
    assert second == {"gpu_time/conv": 7_000, "idle": 113_000}


def test_windows_record_over_a_boundary_is_split_by_time() -> None:
    task = task_of(["kernel_mix"])
    windows = accumulator(task)
    windows.add(activity(57.0, 4 * SECOND, span_ns=10 * SECOND))
    assert cells(task, windows.close(START), "kernel_mix")["gpu_time/gemm"] == 1_200
    assert cells(task, windows.close(START + 60), "kernel_mix")["gpu_time/gemm"] == 2_800


def test_windows_late_early_and_stray_records_are_left_out() -> None:
    task = task_of(["kernel_mix", "host_cpu"])
    windows = accumulator(task)
    windows.close(START)
    windows.add(activity(10, SECOND))
    windows.add(activity(1_000, SECOND))
    windows.add(activity(70, SECOND, gpu=2))
    windows.add(Observation("host_cpu", "no such cell", 1, boot(70)))
    windows.add(Observation("of another task", "x", 1, boot(70)))
    assert START not in windows._open
    assert max(windows._open) <= START + 3 * 60
    assert cells(task, windows.close(START + 60), "kernel_mix") == {"idle": 120_000}


def test_windows_closed_window_cannot_be_closed_again() -> None:
    windows = accumulator(task_of(["kernel_mix"]))
    windows.close(START)
    with pytest.raises(ValueError, match="got window"):
        windows.close(START)
    with pytest.raises(ValueError, match="multiple of 60"):
        windows.close(START + 61)


def test_windows_overlapping_streams_are_scaled_to_wall_time() -> None:
    task = task_of(MINUTE_SECTIONS)
    windows = accumulator(task, ("H100",))
    windows.add(activity(1, 60 * SECOND, "gemm", log2_bins=((20, 1),)))
    windows.add(activity(1, 30 * SECOND, "communication", log2_bins=((10, 1),)))
    row = windows.close(START)
    mix = cells(task, row, "kernel_mix")
    assert mix == {"gpu_time/gemm": 40_000, "gpu_time/communication": 20_000}
    assert cells(task, row, "application_mix") == {"llm_inference": 60_000}
    durations = cells(task, row, "kernel_duration")
    assert durations == {"2^10..2^11 ns": 20_000, "2^20..2^21 ns": 40_000}


def test_windows_by_model_puts_each_gpu_in_its_model() -> None:
    task = task_of(["kernel_mix_by_model"])
    windows = accumulator(task, ("H100", "B200", "Voodoo2"))
    windows.add(activity(1, SECOND, gpu=1))
    assert cells(task, windows.close(START), "kernel_mix_by_model") == {
        "H100/idle": 60_000,
        "B200/gpu_time/gemm": 1_000,
        "B200/idle": 59_000,
        "other/idle": 60_000,
    }


def test_windows_launches_without_times_fill_the_other_measure() -> None:
    task = task_of(MINUTE_SECTIONS)
    windows = accumulator(task)
    windows.add(activity(1, None, "gemm", count=30))
    windows.add(activity(2, None, "norm", count=10))
    row = windows.close(START)
    assert cells(task, row, "kernel_mix") == {
        "launch_share/gemm": 45_000,
        "launch_share/norm": 15_000,
        "idle": 60_000,
    }
    assert cells(task, row, "application_mix") == {"llm_inference": 60_000, "idle": 60_000}


def test_windows_launches_never_reach_the_time_measure() -> None:
    task = task_of(MINUTE_SECTIONS)
    windows = accumulator(task)
    windows.add(activity(1, 6 * SECOND, "gemm"))
    windows.add(activity(2, None, "norm", count=10))
    windows.add(activity(3, None, "conv", count=10, gpu=1))
    windows.add(activity(3, None, "memcpy", count=1, gpu=1, copy_log2_bins=((20, 1),)))
    row = windows.close(START)
    # GPU 0 has a time; of GPU 1 only launches are known, and no host fills both measures.
    assert cells(task, row, "kernel_mix") == {
        "gpu_time/gemm": 6_000,
        "idle": 54_000,
        "unmeasured": 60_000,
    }
    assert cells(task, row, "application_mix") == {
        "llm_inference": 6_000,
        "idle": 54_000,
        "unmeasured": 60_000,
    }
    assert cells(task, row, "copy_size") == {}


def test_windows_copy_sizes_are_estimated_where_only_calls_are_seen() -> None:
    task = task_of(["copy_size", "kernel_mix"])
    windows = accumulator(task, ("H100",))
    bins = ((30, 100), (10, 100_000))
    windows.add(activity(1, None, "memcpy", count=100_100, copy_log2_bins=bins))
    got = cells(task, windows.close(START), "copy_size")
    # (2^30 + 2^14) B and (2^10 + 2^14) B each, at 25 GB/s.
    assert got == {"2^30..2^31 bytes": 4_295, "2^10..2^11 bytes": 69}
    windows.add(activity(61, None, "memcpy", count=10**6, copy_log2_bins=((31, 10**6),)))
    assert sum(cells(task, windows.close(START + 60), "copy_size").values()) == 60_000


def test_windows_unknown_classes_fall_into_the_rest() -> None:
    task = task_of(["kernel_mix", "application_mix"])
    windows = accumulator(task)
    windows.add(activity(1, SECOND, "brand new", application="org/model"))
    row = windows.close(START)
    assert cells(task, row, "kernel_mix")["gpu_time/other"] == 1_000
    assert cells(task, row, "application_mix")["unknown"] == 1_000


def test_windows_sampled_source_is_scaled_up() -> None:
    task = task_of(["kernel_mix"])
    windows = accumulator(task)
    windows.add(activity(1, SECOND, sampling_rate_millionths=100_000))
    assert cells(task, windows.close(START), "kernel_mix")["gpu_time/gemm"] == 10_000


def test_windows_copy_sizes_take_the_time_of_copies() -> None:
    task = task_of(["copy_size", "kernel_duration"])
    windows = accumulator(task)
    windows.add(activity(1, SECOND, "memcpy", copy_log2_bins=((20, 4),), count=4))
    row = windows.close(START)
    assert cells(task, row, "copy_size") == {"2^20..2^21 bytes": 1_000}
    assert cells(task, row, "kernel_duration") == {}


def test_windows_unwatched_time_is_unmeasured() -> None:
    task = task_of(["kernel_mix"])
    windows = accumulator(task, ("H100", "H100", "H100"), watched=False)
    watch(windows, [0, 1], 45, 60)
    windows.add(GpuCoverage("replay", 1, boot(20), 30 * SECOND))
    assert cells(task, windows.close(START), "kernel_mix") == {
        "idle": 15_000 + 30_000,
        "unmeasured": 45_000 + 30_000 + 60_000,
    }


def test_windows_coverage_of_two_sources_counts_once() -> None:
    task = task_of(["kernel_mix"])
    windows = accumulator(task, ("H100",), watched=False)
    for source in ("ebpf", "cupti"):
        windows.add(GpuCoverage(source, 0, boot(50), 20 * SECOND))
    assert cells(task, windows.close(START), "kernel_mix") == {"idle": 10_000, "unmeasured": 50_000}


def test_windows_coin_above_the_rate_leaves_all_wall_time_unmeasured() -> None:
    task = task_of(MINUTE_SECTIONS, rate=250_000)
    busy: list[Record] = [activity(1, SECOND), Observation("host_cpu", "user", 500_000, boot(1))]
    coins = {"below": 200_000, "above": 300_000}
    rows = {}
    for name, coin in coins.items():
        windows = accumulator(task, random_bytes=fixed_coin(coin))
        for record in busy:
            windows.add(record)
        rows[name] = windows.close(START)
    assert cells(task, rows["below"], "kernel_mix")["gpu_time/gemm"] == 1_000
    assert cells(task, rows["above"], "kernel_mix") == {"unmeasured": 120_000}
    assert cells(task, rows["above"], "application_mix") == {"unmeasured": 120_000}
    assert cells(task, rows["above"], "kernel_mix_by_model") == {"H100/unmeasured": 120_000}
    assert cells(task, rows["above"], "kernel_duration") == {}
    assert cells(task, rows["above"], "host_cpu") == {"user": 500_000}


def test_windows_coin_is_drawn_once_per_window_at_the_rate() -> None:
    task = task_of(["kernel_mix"], rate=300_000)
    generator = np.random.default_rng(5)
    windows = accumulator(task, random_bytes=generator.bytes)
    measured = 0
    for number in range(2_000):
        window = START + 60 * number
        watch(windows, range(2), 60 * number, 60 * number + 60)
        first = windows.preview(window)
        row = windows.close(window)
        assert (row == first).all()
        found = cells(task, row, "kernel_mix")
        assert found in ({"idle": 120_000}, {"unmeasured": 120_000})
        measured += "idle" in found
    assert abs(measured - 600) < 4 * (2_000 * 0.3 * 0.7) ** 0.5


def test_windows_generic_sections_fill_by_kind() -> None:
    task = task_of(["gpu_utilisation", "host_cpu", "incidents"])
    windows = accumulator(task)
    for value in (12, 14, 99, 1_000):
        windows.add(Observation("gpu_utilisation", "", value, boot(1)))
    windows.add(Observation("host_cpu", "user", 100, boot(1)))
    windows.add(Observation("host_cpu", "user", 301, boot(2)))
    for _ in range(3):
        windows.add(Observation("incidents", "disk_io", 1, boot(3)))
    row = windows.close(START)
    assert cells(task, row, "gpu_utilisation") == {"10..15 percent": 2, "95.. percent": 2}
    assert cells(task, row, "host_cpu") == {"user": 200}
    assert cells(task, row, "incidents") == {"disk_io": 1}


@st.composite
def records(draw: st.DrawFn) -> list[KernelActivity]:
    one = st.builds(
        activity,
        st.floats(0, 59),
        st.integers(0, 10**11),
        st.sampled_from(["gemm", "memcpy", "communication", "strange"]),
        gpu=st.integers(0, 2),
        count=st.integers(0, 10**6),
        span_ns=st.integers(0, 90 * SECOND),
        log2_bins=st.just(((3, 2), (40, 7))),
        sampling_rate_millionths=st.integers(1_000, 1_000_000),
    )
    return draw(st.lists(one, max_size=12))


@settings(max_examples=80, deadline=None)
@given(seen=records(), untimed=st.booleans(), watched=st.floats(0, 60))
def test_windows_partitions_complete_wall_time_exactly(
    seen: list[KernelActivity], untimed: bool, watched: float
) -> None:
    task = task_of(MINUTE_SECTIONS)
    windows = accumulator(task, ("H100", "B200", "V100"), watched=False)
    watch(windows, [0, 2], watched, 60)
    for record in seen:
        windows.add(record)
    if untimed:
        windows.add(activity(1, None))
    row = windows.close(START)
    for name in ("kernel_mix", "kernel_mix_by_model", "application_mix"):
        assert sum(cells(task, row, name).values()) == 180_000
    for name in ("kernel_duration", "copy_size"):
        assert sum(cells(task, row, name).values()) <= 180_000
    assert (row >= 0).all()


WEEK = 604_800


@pytest.fixture
def store(tmp_path: Path) -> DurableAccumulators:
    return DurableAccumulators(tmp_path / "windows.sqlite")


def test_windows_long_window_survives_a_restart(store: DurableAccumulators) -> None:
    task = task_of(["incidents", "kernel_mix"], window_s=WEEK, rate=500_000)
    draws = np.random.default_rng(1).bytes
    before = accumulator(task, store=store, random_bytes=draws)
    before.add(Observation("incidents", "disk_io", 1, boot(3)))
    before.add(activity(4, SECOND))
    coin = before._coin(before._state(START))
    before.persist()
    after = accumulator(task, store=store, random_bytes=draws, watched=False)
    assert after._coin(after._state(START)) == coin
    after.add(activity(5, SECOND))
    row = after.close(START)
    assert cells(task, row, "incidents") == {"disk_io": 1}
    mix = cells(task, row, "kernel_mix")
    assert sum(mix.values()) == 2 * WEEK * 1_000
    assert mix.get("gpu_time/gemm", 2_000) == 2_000


def test_windows_stored_window_is_erased_after_sealing(store: DurableAccumulators) -> None:
    task = task_of(["applications_seen"], window_s=86_400)
    windows = accumulator(task, store=store)
    windows.add(activity(4, SECOND))
    assert cells(task, windows.close(START), "applications_seen") == {"llm_inference": 1}
    assert store.windows(task.series_key) == [START]
    windows.forget(START)
    assert store.windows(task.series_key) == []


def test_accumulators_leave_no_trace_of_an_erased_window(tmp_path: Path) -> None:
    path = tmp_path / "windows.sqlite"
    store = DurableAccumulators(path)
    task = task_of(["incidents"], window_s=WEEK)
    windows = accumulator(task, store=store)
    windows.add(Observation("incidents", "gpu_hardware_fault", 1, boot(3)))
    windows.persist()
    assert b"gpu_hardware_fault" in path.read_bytes()
    store.erase(task.series_key, START)
    left = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"gpu_hardware_fault" not in left


def test_accumulators_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "windows.sqlite"
    DurableAccumulators(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(AccumulatorsUnavailable, match="expected mode 0600, got 0640"):
        DurableAccumulators(path)


def test_accumulators_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "windows.sqlite"
    path.write_bytes(b"not a database" * 100)
    path.chmod(0o600)
    with pytest.raises(AccumulatorsUnavailable, match="move the file away"):
        DurableAccumulators(path)


def test_accumulators_old_windows_are_erased(store: DurableAccumulators) -> None:
    task = task_of(["incidents"], window_s=WEEK)
    windows = accumulator(task, store=store, watched=False)
    windows.add(Observation("incidents", "disk_io", 1, boot(3)))
    windows.persist()
    store.erase_before(task.series_key, START)
    assert store.windows(task.series_key) == [START]
    store.erase_before(task.series_key, START + 1)
    assert store.windows(task.series_key) == []


def test_windows_task_of_another_catalogue_is_refused() -> None:
    task = task_of(["kernel_mix"])
    (spec,) = task.sections
    wrong = SectionSpec(99, *[getattr(spec, f) for f in SectionSpec.__slots__[1:]])
    changed = replace(task, sections=(wrong,))
    with pytest.raises(ValueError, match="section kernel_mix"):
        accumulator(changed)


def test_windows_say_what_was_not_measured_and_nothing_else() -> None:
    task = task_of(["host_cpu", "incidents", "applications_seen", "hardware_faults"])
    windows = accumulator(task, ("H100",), watched=False)
    windows.add(Observation("incidents", "disk_io", 1, boot(3)))  # by a source that soon failed
    windows.add(SourceCoverage("diagnosis", boot(0), 20 * SECOND))
    windows.add(SourceCoverage("faults", boot(0), 40 * SECOND))
    row = windows.close(START)
    assert cells(task, row, "host_cpu") == {"unmeasured": 1_000_000}
    assert cells(task, row, "incidents") == {"disk_io": 1}
    assert cells(task, row, "applications_seen") == {"unmeasured": 1}
    assert cells(task, row, "hardware_faults") == {}
    watch(windows, [0], 60, 100)
    assert cells(task, windows.close(START + 60), "applications_seen") == {}


def test_windows_of_a_task_of_the_catalogue_before_have_no_such_cell() -> None:
    former = CATALOGUE.former
    assert former is not None
    section = former.section("host_cpu")
    now = task_of(["host_cpu"])
    spec = replace(now.sections[0], section_id=section.id, length=section.length)
    task = replace(now, sections=(spec,), catalogue_hash=former.hash)
    windows = accumulator(task, watched=False)
    assert windows.close(START).tolist() == [0] * 5
