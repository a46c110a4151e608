"""Made GPU faults: what the fake driver then says, what the job feels, and how it is judged."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.diagnosis import gpu_faults
from bench.diagnosis.gpu_device import WORK_MS, Gpu, xid_lines
from bench.diagnosis.gpu_faults import Case, plan, record
from bench.diagnosis.gpu_figures import judged_cases
from bench.diagnosis.gpu_injectors import BY_NAME, FAULTS, LEVELS, NEGATIVES, Moment
from collectors.devices.bounded import BoundedReader
from collectors.devices.device_port import REGULAR
from diagnosis.detect.findings import Cause
from diagnosis.frames.gpu_signals import GpuSignals
from diagnosis.frames.recording import read_meta, read_recording
from pointillist.judging.figures import GPU_CAUSES, class_rows, macro_f1, pairs_of
from tests.fake_nvml_kit import FakeDriver

RECORDINGS = Path(__file__).parents[2] / "bench" / "recordings-gpu"
NEIGHBOUR = 4242
Signals = dict[str, float]
Look = Callable[[str], Signals]

TELLS: dict[str, Callable[[Signals], bool]] = {
    "thermal_driver": lambda s: (
        s["throttled_thermal_percent"] == 100 and s["sm_clock_percent"] < 50
    ),
    "thermal_board": lambda s: s["throttled_hardware_percent"] == 100,
    "power_cap": lambda s: s["throttled_power_percent"] == 100 and s["power_limit_percent"] > 70,
    "power_brake": lambda s: s["throttled_power_percent"] == 100,
    "xid48_double_bit": lambda s: s["xids_memory_per_s"] > 0 and s["ecc_uncorrected_per_s"] > 0,
    "xid63_row_remap": lambda s: s["rows_remapped_per_s"] > 0 and s["row_remap_pending_count"] == 1,
    "xid64_remap_failed": lambda s: s["row_remap_failed_count"] > 0,
    "nvlink_down": lambda s: s["nvlinks_down_count"] == 14 and s["nvlink_errors_per_s"] > 0,
    "ecc_corrected": lambda s: s["ecc_corrected_per_s"] > 100,
    "xid119_gsp": lambda s: s["xids_processor_per_s"] > 0,
    "xid94_contained": lambda s: s["xids_memory_per_s"] > 0,
    "xid62_controller": lambda s: s["xids_faulty_per_s"] > 0,
    "xid79_lost": lambda s: s["gpu_lost_count"] == 1 and s["xids_faulty_per_s"] > 0,
    "lost_unannounced": lambda s: s["gpu_lost_count"] == 1,
    "link_retrained": lambda s: (
        s["pcie_width_percent"] == 25 and s["pcie_generation_percent"] == 40
    ),
    "idle_mig": lambda s: s["sm_clock_percent"] < 20 and "gpu_busy_percent" not in s,
    "reset_required": lambda s: s["gpu_lost_count"] == 1 and "gpu_busy_percent" not in s,
    "idle_link": lambda s: s["pcie_generation_percent"] == 20 and s["sm_clock_percent"] < 20,
    "time_slice": lambda s: s["gpu_processes_count"] == 2,
    "mps_client": lambda s: s["gpu_processes_count"] == 2,
    "mig_neighbour": lambda s: s["gpu_processes_count"] == 2 and "gpu_busy_percent" not in s,
    "link_narrow": lambda s: s["pcie_width_percent"] == 6.25,
    "link_slow": lambda s: s["pcie_generation_percent"] == 20,
    "application_xids": lambda s: s["xids_other_per_s"] > 0 and s["xids_memory_per_s"] == 0,
}


def struck(name: str, level: int = 2) -> tuple[Gpu, float]:
    """A GPU some seconds into a fault, and for how long the job was stalled."""
    injector, chance = BY_NAME[name], random.Random(3)
    gpu = Gpu(0, job_pid=1, mig=injector.mig)
    turns = [Moment(gpu, level, tick * 0.2, NEIGHBOUR, chance) for tick in range(40)]
    return gpu, sum(injector.turn(turn) for turn in turns)


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Two looks through pynvml, in a child process, at a healthy GPU and at a struck one."""
    driver = FakeDriver(tmp_path)
    noise = random.Random(1)

    def play(gpu: Gpu) -> None:
        driver.play("gpus 1", *gpu.lines(noise), *xid_lines([gpu]))

    def looked(name: str) -> Signals:
        signals, gpu = GpuSignals(), struck(name)[0]
        reader = BoundedReader(driver.reader, deadline_s=5.0)
        play(Gpu(0, job_pid=1, mig=gpu.mig))
        reader.open()
        try:
            signals.look([reader.read(0, REGULAR, processes=True)])
            time.sleep(0.02)
            play(gpu)
            signals.look([reader.read(0, REGULAR, processes=True)])
        finally:
            reader.close()
        return signals.signals(time.clock_gettime_ns(time.CLOCK_BOOTTIME))[0]

    return looked


@pytest.mark.release
def test_gpu_faults_are_what_the_driver_then_tells(look: Look) -> None:
    assert {name: told(look(name)) for name, told in TELLS.items()} == dict.fromkeys(TELLS, True)


def test_gpu_fault_slows_the_job_the_more_the_heavier_it_is() -> None:
    for injector in FAULTS:
        felt = []
        for level in range(len(LEVELS)):
            gpu, stalled_ms = struck(injector.name, level)
            felt.append(gpu.work_ms() / WORK_MS + stalled_ms)
        assert felt[2] > 1.3, injector.name
        assert felt == sorted(felt), injector.name


def test_gpu_hard_negatives_have_no_fault_to_tell(look: Look) -> None:
    for injector in NEGATIVES:
        gpu, _ = struck(injector.name)
        assert not gpu.throttle
        assert gpu.clock >= 0.9 or gpu.busy < 10
        assert not gpu.uncorrected
        assert not gpu.links_down
    signals = look("idle_neighbour")
    assert signals["gpu_processes_count"] == 2
    assert signals["throttled_thermal_percent"] == 0


def test_gpu_cases_for_training_are_no_case_that_judges() -> None:
    cases = plan()
    assert len({case.name for case in cases}) == len(cases) == 70
    training = {one.name for one in FAULTS if not one.held_out}
    for cause in {one.cause for one in FAULTS}:
        of_cause = {one.name for one in FAULTS if one.cause is cause}
        assert of_cause & training
        assert of_cause - training


def test_macro_f1_counts_misses_and_false_alarms() -> None:
    limit, fault = Cause.GPU_THERMAL_OR_POWER_LIMIT, Cause.GPU_HARDWARE_FAULT
    pairs = [(limit, limit), (limit, None), (fault, fault), (None, fault), (None, Cause.UNKNOWN)]
    rows = {row.cause: (row.precision, row.recall) for row in class_rows(pairs, GPU_CAUSES)}
    assert rows == {limit: (1, 0.5), fault: (0.5, 1)}
    assert macro_f1(pairs, GPU_CAUSES) == pytest.approx(2 / 3)


def test_recorded_gpu_faults_are_named(tmp_path: Path) -> None:
    """A slice of the committed recordings, one held-out case of each cause."""
    chosen = ("gpu-power_brake-high-1", "gpu-xid119_gsp-high-1", "gpu-time_slice-middle-1",
              "gpu-link_narrow-middle-1", "gpu-none-1")  # fmt: skip
    for name in chosen:
        (tmp_path / f"{name}.parquet").symlink_to(RECORDINGS / f"{name}.parquet")
        assert (RECORDINGS / f"{name}.parquet").stat().st_size < 40_000
    cases = judged_cases(tmp_path)
    assert all(case.held_out for case in cases)
    said = {pair for case in cases for pair in pairs_of(case.judged, quiet=True)}
    assert said == {(one, one) for one in Cause if one.value.startswith(("gpu_", "pcie"))}


@pytest.mark.root
@pytest.mark.live
def test_gpu_faults_are_recorded_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"BEFORE_S": 2.5, "FAULT_S": 2.0, "AFTER_S": 0.5, "_SPREAD_S": 0.1,
                        "_SETTLE_S": 0.0}.items():  # fmt: skip
        monkeypatch.setattr(gpu_faults, name, value)
    cases = [Case(BY_NAME["time_slice"], 2, 9), Case(BY_NAME["none"], 2, 9)]
    shared, calm = (read_recording(path) for path in record(cases, tmp_path))
    assert shared.meta["impact"]["passed"]
    assert not calm.meta["impact"]["passed"]
    assert read_meta(tmp_path / "gpu-none-9.parquet")["spans"] == []
    for recording, gpu in ((shared, 0), (calm, 1)):
        (subject,) = {key for frame in recording.frames for key in frame.subjects}
        assert [subject] == recording.meta["subjects"]
        assert {index for frame in recording.frames for index in frame.gpus} == {gpu}
        steps = [frame.subjects[subject].steps for frame in recording.frames[1:]]
        assert sum(len(one.ended_ns) for one in steps if one is not None) > 40
