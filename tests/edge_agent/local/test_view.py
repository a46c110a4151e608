"""One view of a host: intervals hold the truth, and an older agent's rows make none too narrow."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.records.basics import NORMAL
from collectors.records.gpu_calls import CountedCalls, GpuCalls, ProbeGroup
from edge_agent.local.history import History, HistorySection
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.history_tables import KERNEL_CALLS, PROCESS_CALLS
from edge_agent.local.view import view_of
from edge_agent.local.view_lines import HostView, KernelLine
from tests.calls_kit import SERVER, gpu_calls, sampled_calls
from tests.local_kit import BOOT, POINT, UNIX, S, flattener

LIMITS = HistorySection(max_bytes=64 << 20)
ROWS = 30
HISTORIES = 400

Counted = Callable[[np.random.Generator, float, float], CountedCalls]
"""Makes the count of a row from what there was and the error that all rows of a host share."""


def random_error(rng: np.random.Generator, truth: float, _shared: float) -> CountedCalls:
    return CountedCalls(0, truth + rng.normal(0, 30), 900.0, 0.25)


def shared_error(_rng: np.random.Generator, truth: float, shared: float) -> CountedCalls:
    return CountedCalls(0, truth * (1 + shared), 0.0, 0.25, 0.1 * truth, 0.1 * truth)


def both_errors(rng: np.random.Generator, truth: float, shared: float) -> CountedCalls:
    value = truth * (1 + shared) + rng.normal(0, 30)
    return CountedCalls(0, value, 900.0, 0.25, 0.1 * truth, 0.1 * truth)


def kernels_of(path: Path, records: list[GpuCalls]) -> tuple[KernelLine, ...]:
    history = History(path, LIMITS, boot=lambda: "boot-1")
    history.note_clock(POINT)
    for record in records:
        history.add(flattener().rows("probes", [record]))
    history.close()
    return view_of(path, UNIX, UNIX + 86_400 * S, most=HISTORIES).kernels


@pytest.mark.parametrize("counted", [random_error, shared_error, both_errors])
def test_intervals_hold_the_truth_of_random_and_of_shared_errors(
    counted: Counted, tmp_path: Path
) -> None:
    """Each kernel is a history of its own; a shared error is anywhere within its bound."""
    seed = 20_261_127
    rng = np.random.default_rng(seed)
    base, found = sampled_calls(), {}
    kernel, truths = base.kernels[0], rng.uniform(500, 2_000, (HISTORIES, ROWS))
    shared = rng.uniform(-0.1, 0.1, HISTORIES)
    records = []
    for row in range(ROWS):
        rows = [
            kernel._replace(kernel=f"k{n}", launches=counted(rng, truths[n, row], shared[n]))
            for n in range(HISTORIES)
        ]
        records.append(replace(base, boottime_ns=BOOT + row * 10 * S, span_ns=10 * S,
                               kernels=tuple(rows)))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edge_agent.local.spans.KEPT_KERNELS", HISTORIES)
        found = {line.kernel: line for line in kernels_of(tmp_path / "h", records)}
    held = 0
    for number in range(HISTORIES):
        line = found[f"k{number}"]
        assert line.launches.low is not None
        assert line.launches.high is not None
        truth = truths[number].sum() / line.seconds
        held += line.launches.low <= truth <= line.launches.high
    assert held / HISTORIES >= 0.93, f"seed {seed}"


def test_random_errors_of_rows_cancel_and_shared_ones_do_not(tmp_path: Path) -> None:
    def of(counted: CountedCalls, name: str) -> float:
        base = sampled_calls()
        rows = [
            replace(
                base, boottime_ns=BOOT + row * 10 * S, span_ns=10 * S,
                kernels=(base.kernels[0]._replace(launches=counted),),
            )
            for row in range(100)
        ]  # fmt: skip
        (line,) = kernels_of(tmp_path / name, rows)
        assert line.launches.error is not None
        return line.launches.error * line.seconds

    assert of(CountedCalls(0, 1e4, 100.0, 0.25), "random") == pytest.approx(NORMAL * 100)
    assert of(CountedCalls(0, 1e4, 0.0, 0.25, 20.0, 20.0), "shared") == pytest.approx(2_000)


def test_a_bound_that_is_not_known_leaves_the_other_end(tmp_path: Path) -> None:
    one_sided = CountedCalls(400, 2000.0, 0.0, 0.25, 100.0, float("inf"))
    base = sampled_calls()
    calls = replace(base, span_ns=10 * S, kernels=(base.kernels[0]._replace(launches=one_sided),))
    (line,) = kernels_of(tmp_path / "h", [calls])
    assert (line.launches.low, line.launches.high, line.launches.error) == (190, None, None)
    unseen = calls.kernels[0]._replace(launches=CountedCalls(0, 0.0, float("inf"), 0.0))
    blind = replace(calls, kernels=(unseen,), shares={ProbeGroup.LAUNCH: 0.0})
    (line,) = kernels_of(tmp_path / "blind", [blind])
    assert (line.launches.low, line.launches.high, line.launches.error) == (0, None, None)


# An older agent's file ---------------------------------------------------------------------------

_OLD = {
    KERNEL_CALLS.name: ("kernel_calls", ("below", "above")),
    PROCESS_CALLS.name: ("process_calls", ("below", "above")),
}


def made_old(path: Path) -> None:
    """Turn a file into one of the version before: tables of their old names and columns.

    There the one variance was as wide as the interval, and lists had it, too.
    """
    with sqlite3.connect(path) as db:
        db.create_function("root", 1, np.sqrt)
        db.create_function("square", 1, np.square)
        for table, (older, gone) in _OLD.items():
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            kept = [name for name in names if name not in gone]
            wide = f"square(root(variance) + max(below, above) / {NORMAL})"
            terms = [wide if name == "variance" else name for name in kept]
            db.execute(
                f"CREATE TABLE {older} ({', '.join(kept)}, PRIMARY KEY (boot, at_ns, seq)) "
                "WITHOUT ROWID"
            )
            db.execute(f"INSERT INTO {older} SELECT {', '.join(terms)} FROM {table}")
            db.execute(f"DROP TABLE {table}")
        for name in ("copies", "collectives"):
            db.execute(
                f"UPDATE process_calls SET {name} = coalesce((SELECT json_group_array(json_remove("
                f"value, '$.below', '$.above')) FROM json_each({name})), '[]')"
            )


def biased(second: int) -> GpuCalls:
    """Ten seconds whose launches have a random error and one that all rows share."""
    base = sampled_calls(BOOT + second * S)
    launches = CountedCalls(500, 2000.0, 400.0, 0.25, 50.0, 80.0)
    (process,), (kernel,) = base.processes, base.kernels
    return replace(
        base, span_ns=10 * S, processes=(replace(process, launches=launches),),
        kernels=(kernel._replace(launches=launches),),
    )  # fmt: skip


def written(path: Path, seconds: range) -> None:
    history = History(path, LIMITS, boot=lambda: "boot-1")
    history.note_clock(POINT)
    for second in seconds:
        history.add(flattener().rows("probes", [biased(second)]))
    history.close()


def ends(view: HostView) -> list[tuple[float, float, float]]:
    estimates = [view.kernels[0].launches, view.processes[0].launches, view.copies[0].copies]
    return [
        (of.value, of.low, of.high)
        for of in estimates
        if of is not None and of.low is not None and of.high is not None
    ]


def test_rows_of_an_older_agent_are_read_and_never_too_narrow(tmp_path: Path) -> None:
    path = tmp_path / "h"
    written(path, range(0, 200, 10))
    right = ends(view_of(path))
    made_old(path)
    old = ends(view_of(path))
    assert len(old) == len(right) == 3
    for (value, low, high), (true_value, true_low, true_high) in zip(old, right, strict=True):
        assert value == pytest.approx(true_value)
        assert low <= true_low + 1e-9
        assert high >= true_high - 1e-9
    with HistoryReader(path) as reader:
        (*_, row) = reader.rows("kernel")
        (*_, process) = reader.rows("process")
    assert row["variance"] == 0
    assert row["below"] == row["above"] == pytest.approx(NORMAL * 20 + 80)
    assert process["copies"][0]["below"] == pytest.approx(NORMAL * 2)


def test_a_file_goes_on_over_an_upgrade_and_forgets_old_rows_in_time(tmp_path: Path) -> None:
    path = tmp_path / "h"
    written(path, range(0, 100, 10))
    made_old(path)
    written(path, range(100, 200, 10))
    both = view_of(path)
    assert both.kernels[0].seconds == both.processes[0].seconds == 200
    assert both.kernels[0].launches.value == pytest.approx(200)
    with HistoryReader(path) as reader:
        times = [row["boottime_ns"] for row in reader.rows("kernel")]
    assert times == [BOOT + second * S for second in range(0, 200, 10)]
    history = History(path, replace(LIMITS, keep_s=60), boot=lambda: "boot-1")
    history.trim(replace(POINT, boottime_ns=BOOT + 210 * S))
    history.close()
    with HistoryReader(path) as reader:
        assert min(row["boottime_ns"] for row in reader.rows("kernel")) == BOOT + 150 * S


def test_a_pattern_picks_kernels_by_their_names_and_processes_by_theirs(tmp_path: Path) -> None:
    history = History(tmp_path / "h", LIMITS, boot=lambda: "boot-1")
    history.note_clock(POINT)
    history.add(flattener().rows("probes", [gpu_calls(BOOT, 10 * S), sampled_calls(BOOT)]))
    history.close()
    found = view_of(tmp_path / "h", name="paged*")
    assert [(line.kernel, line.pid) for line in found.kernels] == [
        ("paged_attention_v2", SERVER.pid)
    ]
    assert [line.name for line in view_of(tmp_path / "h", name="vll*").processes] == ["vllm"]
