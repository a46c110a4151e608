"""Replay: bounded streaming, errors with offsets, playing in time, looping, mapping of GPUs."""

import dataclasses
import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.interface import SourceRegistry, SourceUnavailable
from collectors.records.activity import GpuCoverage, KernelActivity
from collectors.replay.replay_source import ReplaySource
from kernels.families import FamilyRules
from kernels.launches.kineto import NO_DEVICE, TraceError, gpu_events, read_header

SECOND = 10**9
BOOT = 1_000 * SECOND


def kernel(ts_us: float, dur_us: float, name: str = "volta_sgemm_nn", device: int = 0) -> Any:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": ts_us,
        "dur": dur_us,
        "args": {"device": device, "stream": 7},
    }


def copy(ts_us: float, dur_us: float, size: int) -> Any:
    event = kernel(ts_us, dur_us, "Memcpy HtoD (Pinned -> Device)")
    return event | {"cat": "gpu_memcpy", "args": {"device": 0, "bytes": size}}


def write_trace(path: Path, events: list[Any], **head: Any) -> Path:
    text = json.dumps(head | {"traceEvents": events})
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), 1))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def launches(source: ReplaySource, now_ns: int) -> list[KernelActivity]:
    """What a source played, without the coverage it claims."""
    return [r for r in source.drain(now_ns) if isinstance(r, KernelActivity)]


def replay(path: Path, **options: Any) -> ReplaySource:
    source = ReplaySource(path, FamilyRules.load(), **({"gpus": 2} | options))
    source.start()
    return source


def test_replay_plays_events_at_their_time(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", [kernel(50.0, 10.0), copy(1_000_050.0, 5.0, 4096)])
    source = replay(trace, loop=False)
    (first,) = launches(source, BOOT)
    assert (first.family, first.count, first.gpu_time_ns) == ("gemm", 1, 10_000)
    assert first.log2_bins == ((13, 1),)
    assert first.boottime_ns == BOOT
    assert launches(source, BOOT + SECOND - 1) == []
    (second,) = launches(source, BOOT + SECOND)
    assert (second.family, second.copy_log2_bins) == ("memcpy", ((12, 1),))
    assert second.boottime_ns == BOOT + SECOND
    assert launches(source, BOOT + 100 * SECOND) == []


def test_replay_loops_after_the_trace_length(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json.gz", [kernel(0, 10), kernel(400_000, 100_000)])
    source = replay(trace)
    source.drain(BOOT)
    records = launches(source, BOOT + 10 * SECOND)
    source.stop()
    assert source.loops == 20
    assert sum(r.count for r in records) == 40
    assert sum(r.gpu_time_ns or 0 for r in records) == 20 * 100_010_000 - 10_000 + 10_000


def test_replay_later_passes_repeat_the_first_exactly(tmp_path: Path) -> None:
    events: list[Any] = [
        kernel(7_000 * i, 10 + 37 * i % 5_000, f"volta_sgemm_{i % 3}", device=i % 2)
        for i in range(1, 140)
    ]
    events += [copy(7_001 * i, 5, 1 << (i % 20)) for i in range(1, 140)]
    source = replay(write_trace(tmp_path / "t.json", events))
    seen: list[KernelActivity] = []
    step = 0
    while source.loops < 3:
        seen += launches(source, BOOT + step * 1_000_000)
        step += 1
    once = len(seen) // 3
    first = seen[:once]
    for number in (1, 2):
        later = seen[number * once : (number + 1) * once]
        shifts = {b.boottime_ns - a.boottime_ns for a, b in zip(first, later, strict=True)}
        assert len(shifts) == 1
        shift = shifts.pop()
        assert later == [dataclasses.replace(a, boottime_ns=a.boottime_ns + shift) for a in first]
    assert sum(record.count for record in first) == len(events)
    assert len(first) < len(events)


def test_replay_speed_shrinks_time_and_keeps_durations_in_bins(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", [kernel(0, 1_000), kernel(1_000_000, 1_000)])
    source = replay(trace, speed=10.0, loop=False)
    source.drain(BOOT)
    (record,) = launches(source, BOOT + SECOND // 10)
    assert record.gpu_time_ns == 100_000
    assert record.log2_bins == ((19, 1),)


def test_replay_maps_devices_in_order_of_appearance(tmp_path: Path) -> None:
    events = [kernel(i, 1, device=device) for i, device in enumerate((5, 3, 7))]
    source = replay(write_trace(tmp_path / "t.json", events), loop=False)
    records = [*launches(source, BOOT), *launches(source, BOOT + SECOND)]
    assert [(r.gpu, r.count) for r in records] == [(0, 1), (1, 1), (0, 1)]
    copies = replay(tmp_path / "t.json", loop=False, every_gpu=True)
    records = [*launches(copies, BOOT), *launches(copies, BOOT + SECOND)]
    assert sum(r.count for r in records) == 6


def test_replay_sorts_streams_that_were_written_one_after_the_other(tmp_path: Path) -> None:
    events = [kernel(ts, 1) for ts in (*range(0, 100, 2), *range(1, 100, 2))]
    times = [e.start_ns for e in gpu_events(write_trace(tmp_path / "t.json", events))]
    assert times == [ts * 1_000 for ts in range(100)]


def test_replay_skips_malformed_single_events(tmp_path: Path) -> None:
    bad: list[Any] = [
        None,
        7,
        {"cat": "kernel"},
        kernel(1, -5),
        kernel(1, 1e300),
        kernel(0, 0) | {"ts": "soon"},
        kernel(5e15, 1),
        kernel(1, 1, device=1 << 40),
        kernel(1, 1, device=-1),
        kernel(1, 1) | {"args": "none", "pid": "GPU"},
    ]
    trace = write_trace(tmp_path / "t.json", [*bad, kernel(1, 1)])
    assert [event.device for event in gpu_events(trace)] == [NO_DEVICE] * 3 + [0]
    assert [record.count for record in launches(replay(trace, loop=False), BOOT)] == [1]


def test_replay_takes_the_application_from_option_then_head(tmp_path: Path) -> None:
    head = {"metadata": {"experiment": {"pipeline_tag": "fill-mask"}}}
    trace = write_trace(tmp_path / "t.json", [kernel(0, 1)], **head)
    assert launches(replay(trace), BOOT)[0].application == "text_encoder"
    assert launches(replay(trace, application="x"), BOOT)[0].application == "x"
    named = write_trace(tmp_path / "n.json", [kernel(0, 1)], application="rendering", **head)
    assert launches(replay(named), BOOT)[0].application == "rendering"
    plain = write_trace(tmp_path / "p.json", [kernel(0, 1)])
    assert launches(replay(plain), BOOT)[0].application == "unknown"


def offset_of(refused: SourceUnavailable) -> int:
    """Give the byte at which the trace stopped making sense."""
    assert isinstance(refused.__cause__, TraceError)
    return refused.__cause__.offset


def test_replay_malformed_json_names_file_and_byte(tmp_path: Path) -> None:
    good = json.dumps({"traceEvents": [kernel(i, 1) for i in range(2_000)]})
    at = good.index('"name"', 150_000)
    path = tmp_path / "broken.json"
    path.write_text(good[:at] + "?" + good[at:], encoding="utf-8")
    with pytest.raises(SourceUnavailable, match=r"broken\.json.*at byte") as caught:
        replay(path)
    assert offset_of(caught.value) == at


@pytest.mark.parametrize("cut", [1, 1_000, 40_000])
def test_replay_truncated_json_names_the_end(tmp_path: Path, cut: int) -> None:
    text = json.dumps({"traceEvents": [kernel(i, 1) for i in range(400)]})
    path = tmp_path / "cut.json"
    path.write_text(text[:cut], encoding="utf-8")
    with pytest.raises(SourceUnavailable) as caught:
        replay(path)
    assert offset_of(caught.value) == cut


def test_replay_truncated_gzip_is_told(tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "t.json.gz", [kernel(i, 1) for i in range(20_000)])
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(
        SourceUnavailable, match=r"cut\.json\.gz: the compressed file is cut short"
    ) as e:
        replay(cut)
    assert 0 < offset_of(e.value) <= len(gzip.decompress(whole.read_bytes()))


def test_replay_damaged_gzip_is_told(tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "t.json.gz", [kernel(i, 1) for i in range(5_000)])
    damaged = bytearray(whole.read_bytes())
    damaged[-4:] = b"\0\0\0\0"
    damaged[-8:-4] = b"\1\2\3\4"
    whole.write_bytes(damaged)
    with pytest.raises(SourceUnavailable, match="damaged gzip"):
        replay(whole)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"traceEvents": []}'])
def test_replay_trace_without_gpu_events_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(content)
    with pytest.raises(SourceUnavailable):
        replay(path)


def test_replay_reads_a_top_level_list(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([kernel(0, 1)]), encoding="utf-8")
    assert len(list(gpu_events(path))) == 1


def test_replay_absent_file_gives_one_line(tmp_path: Path) -> None:
    registry = SourceRegistry()
    gone = ReplaySource(tmp_path / "gone.json", FamilyRules.load(), gpus=1)
    registry.register("replay", lambda: gone)
    running, absent = registry.start_all()
    assert running == []
    assert absent[0].reason.endswith("No such file or directory")
    assert "\n" not in absent[0].reason


def huge_trace(path: Path, events: int) -> Path:
    """A trace far larger than what a reader may hold: mostly host events, as real ones are."""

    def lines() -> Iterator[str]:
        yield '{"traceEvents": ['
        for i in range(events):
            cat = "kernel" if i % 2 else "cpu_op"
            name = f"volta_sgemm_{i % 50}_nn" + "x" * 500
            yield (
                f'{{"cat":"{cat}","name":"{name}","ts":{i},"dur":1,"args":{{"device":0}}}}'
                + (",\n" if i + 1 < events else "]}")
            )

    with gzip.open(path, "wt", compresslevel=1) as stream:
        stream.writelines(lines())
    return path


@pytest.mark.release
def test_replay_streams_a_huge_trace_in_bounded_memory(tmp_path: Path) -> None:
    trace = huge_trace(tmp_path / "huge.json.gz", 20_000)  # 12 MB of text
    source = ReplaySource(trace, FamilyRules.load(), gpus=1, reorder=500)
    played = 0
    tracemalloc.start()
    source.start()
    for step in range(1, 42):
        played += sum(r.count for r in launches(source, BOOT + step * SECOND // 1_000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    source.stop()
    assert played >= 20_000  # both passes: the parsed one and the spooled one
    assert peak_bytes < 5_000_000


def test_replay_header_names_gpus(tmp_path: Path) -> None:
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
    assert read_header(write_trace(tmp_path / "t.json", [], **head)).gpu_models == ("NVIDIA H100",)


def test_replay_after_a_suspend_leaves_the_gap_out(tmp_path: Path) -> None:
    source = replay(write_trace(tmp_path / "t.json", [kernel(0, 10), kernel(900_000, 100_000)]))
    source.drain(BOOT)
    records = launches(source, BOOT + 86_400 * SECOND)
    assert all(r.boottime_ns >= BOOT + 86_200 * SECOND for r in records)
    assert len(records) < 5_000


def test_replay_says_which_gpus_it_watched(tmp_path: Path) -> None:
    source = replay(write_trace(tmp_path / "t.json", [kernel(0, 10)]), loop=False)
    source.drain(BOOT)
    covered = [r for r in source.drain(BOOT + SECOND) if isinstance(r, GpuCoverage)]
    assert covered == [GpuCoverage("replay t.json", gpu, BOOT, SECOND) for gpu in (0, 1)]
