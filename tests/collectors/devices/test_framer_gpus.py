"""Looks at GPUs become a frame's GPUs, and the share that its subjects have in them."""

from __future__ import annotations

import pytest

from collectors.devices.device_port import DeviceReading, Field, all_failed
from collectors.records.basics import FailureKind, ReadFailure
from diagnosis.frames.gpu_signals import GpuSignals
from tests.frames_kit import T0, S, cpu, frame_of, framer, gpu_calls, reading


def test_subject_of_a_gpu_process_tells_its_own_use_from_others() -> None:
    made = framer({7: "/job", 8: "/noisy"})
    made.look([
        reading({Field.UTILISATION: 90}, T0 + S, 0, {7: 30, 8: 55}),
        reading({Field.UTILISATION: 5}, T0 + S, 1, {7: 5}),
    ])  # fmt: skip
    made.take([gpu_calls(7, share=0.5), cpu({})])
    frame = frame_of(made)
    job, noisy = frame.subjects["/job"], frame.subjects["/noisy"]
    assert (job.gpus, noisy.gpus) == ((0, 1), (0,))
    assert job.signals["gpu_own_percent"] == 30
    assert job.signals["gpu_others_percent"] == 55
    assert job.signals["gpu_launches_per_s"] == 100
    assert job.signals["copy_to_device_bytes_per_s"] == 8_000
    assert job.signals["gpu_wait_ms_per_s"] == 250
    assert noisy.signals["gpu_others_launches_per_s"] == 100
    assert frame.gpus[1]["copy_to_device_bytes_per_s"] == 4_000
    assert frame.gpus[0]["gpu_processes_count"] == 2


def test_gpu_counters_become_rates_and_a_reset_says_nothing() -> None:
    gpus = GpuSignals()
    errors = {Field.PCIE_REPLAYS: 10, Field.XID_EVENTS: 1, Field.XID_LAST: 13}
    gpus.look([reading(errors, T0)])
    assert "pcie_replays_per_s" not in gpus.signals(T0)[0]
    grown = {Field.PCIE_REPLAYS: 30, Field.XID_EVENTS: 2, Field.XID_LAST: 79}
    gpus.look([reading(grown, T0 + 5 * S)])
    found = gpus.signals(T0 + 6 * S)[0]
    assert found["pcie_replays_per_s"] == 4
    assert found["xids_faulty_per_s"] == pytest.approx(0.2)
    assert found["xids_memory_per_s"] == found["xids_other_per_s"] == 0
    gpus.look([reading({Field.PCIE_REPLAYS: 0}, T0 + 10 * S)])
    assert "pcie_replays_per_s" not in gpus.signals(T0 + 11 * S)[0]
    assert gpus.signals(T0 + 20 * S) == {}


def test_lost_gpu_is_still_its_users_and_says_that_it_is_gone() -> None:
    """With the driver's list of processes went the knowledge of whose GPU it was."""
    made = framer({7: "/job"})
    gone = ReadFailure(FailureKind.UNPLUGGED, "GPU is lost")

    def lost(at_ns: int, code: int = 0) -> DeviceReading:
        told = {Field.XID_EVENTS: 1, Field.XID_LAST: code} if code else {}
        fields = {Field.UTILISATION: gone, Field.POWER: gone} | told
        return DeviceReading(0, "GPU-0", "", at_ns, at_ns, fields)

    made.look([reading({Field.UTILISATION: 90, Field.XID_EVENTS: 0}, T0, 0, {7: 90})])
    made.frame(T0)
    made.take([cpu({})])
    calm = made.frame(T0 + S)
    assert calm is not None
    assert calm.gpus[0]["gpu_lost_count"] == 0
    made.look([lost(T0 + S, code=79)])
    struck = made.frame(T0 + 2 * S)
    assert struck is not None
    assert struck.subjects["/job"].gpus == (0,)
    assert struck.gpus[0]["gpu_lost_count"] == 1
    assert struck.gpus[0]["xids_faulty_per_s"] == 1
    assert "gpu_busy_percent" not in struck.gpus[0]
    for second in range(2, 75):
        made.look([lost(T0 + second * S)])
        later = made.frame(T0 + (second + 1) * S)
        assert later is not None
        assert later.gpus[0]["gpu_lost_count"] == 1
        users = [one.gpus for one in later.subjects.values() if one.gpus]
        assert users == ([(0,)] if second <= 66 else []), "the last list is 60 s old, and one look"
        assert all("gpu_own_percent" not in one.signals for one in later.subjects.values())


def test_gpu_that_was_left_alone_is_not_silent_for_longer() -> None:
    gpus = GpuSignals()

    def unanswered(kind: FailureKind, at_ns: int) -> DeviceReading:
        return all_failed(0, [Field.UTILISATION], ReadFailure(kind, "late"), at_ns)

    gpus.look([reading({Field.UTILISATION: 90}, T0)])
    gpus.look([unanswered(FailureKind.TIMED_OUT, T0 + S)])
    assert gpus.signals(T0 + S)[0]["gpu_silent_count"] == 1
    gpus.look([unanswered(FailureKind.LEFT_ALONE, T0 + 9 * S)])
    assert gpus.signals(T0 + 9 * S) == {}
    gpus.look([reading({Field.UTILISATION: 90}, T0 + 70 * S)])
    assert gpus.signals(T0 + 70 * S)[0]["gpu_silent_count"] == 0


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [(0x0, ""), (0x20, "thermal"), (0x04, "power"), (0x48, "thermal hardware"),
     (0x80, "power hardware"), (0x1, "")],
)  # fmt: skip
def test_gpu_throttle_reasons_are_told_apart(bits: int, reasons: str) -> None:
    gpus = GpuSignals()
    gpus.look(
        [reading({Field.THROTTLE: bits, Field.POWER: 350_000, Field.POWER_LIMIT: 700_000}, T0)]
    )
    found = gpus.signals(T0)[0]
    for kind in ("thermal", "power", "hardware"):
        assert found[f"throttled_{kind}_percent"] == (100 if kind in reasons else 0)
    assert found["power_limit_percent"] == 50


@pytest.mark.parametrize(
    ("code", "kind"),
    [(48, "memory"), (63, "memory"), (94, "memory"), (119, "processor"), (62, "faulty"),
     (74, "faulty"), (13, "other"), (31, "other"), (43, "other")],
)  # fmt: skip
def test_xids_are_counted_by_what_has_failed(code: int, kind: str) -> None:
    gpus = GpuSignals()
    gpus.look([reading({Field.XID_EVENTS: 0}, T0)])
    gpus.look([reading({Field.XID_EVENTS: 2, Field.XID_LAST: code}, T0 + S)])
    found = gpus.signals(T0 + S)[0]
    counted = {name: rate for name, rate in found.items() if name.startswith("xids_") and rate}
    assert counted == {f"xids_{kind}_per_s": 2}


def test_errors_of_memory_and_links_are_rates_and_states() -> None:
    gpus = GpuSignals()
    counters = (Field.NVLINK_ERRORS, Field.ECC_VOLATILE_CORRECTED, Field.ROWS_UNCORRECTED)
    states = {Field.NVLINKS_DOWN: 14, Field.ROWS_PENDING: 1, Field.ROWS_FAILED: 1}
    gpus.look([reading(dict.fromkeys(counters, 0) | {Field.ROWS_CORRECTED: 0}, T0)])
    gpus.look([reading(dict.fromkeys(counters, 3) | {Field.ROWS_CORRECTED: 0} | states, T0 + S)])
    found = gpus.signals(T0 + S)[0]
    rates = ("nvlink_errors_per_s", "ecc_corrected_per_s", "rows_remapped_per_s")
    assert [found[name] for name in rates] == [3, 3, 3]
    told = ("nvlinks_down_count", "row_remap_pending_count", "row_remap_failed_count")
    assert [found[name] for name in told] == [14, 1, 1]
