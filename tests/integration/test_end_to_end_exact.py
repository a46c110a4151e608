"""A released sum minus the true sum is exactly the noise that was drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregator.leader.window_closing import RESEND_S
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import find_report, verify_transcripts
from privacy.noise_table import SeededSampler
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    Host,
    World,
    build_world,
    make_epoch,
    open_epochs,
    seal_report,
    seeded_bytes,
)
from wire.report import Report

WINDOWS = 3


class RecordingSampler:
    """The seeded sampler, which remembers what it drew."""

    seeded = True

    def __init__(self) -> None:
        self._inner = SeededSampler(7)
        self.drawn: dict[tuple[int, int], NDArray[np.int64]] = {}

    def sample_for(self, world: World, host: Host, window: int) -> NDArray[np.int64]:
        noise: NDArray[np.int64] = self._inner.sample(1, world.task.sigma_vector_1024())[0]
        self.drawn[host.number, window] = noise
        return noise


def truth_of(world: World, host: Host, window: int) -> NDArray[np.int64]:
    """Steps of one host: a partition of 64 steps over the cells, check words 1."""
    cells = np.frombuffer(seeded_bytes("truth", host.number, window), np.uint8)[: world.task.d - 2]
    steps = cells.astype(np.int64) * 64 // max(1, int(cells.sum()))
    return np.concatenate(([1, 1], steps))


def sealed(world: World, sampler: RecordingSampler, host: Host, window: int) -> Report:
    vector = truth_of(world, host, window) + sampler.sample_for(world, host, window)
    return seal_report(world, host, vector, window=window)


def test_released_minus_true_is_the_noise_drawn(tmp_path: Path) -> None:
    """Dropouts, duplicates, late, forged and second reports, twins and a restart in it."""
    world = build_world(20)
    sampler = RecordingSampler()
    fleet = Fleet(world, tmp_path)
    twin_host = world.hosts[19]
    fleet.send_epochs(open_epochs(world))
    fleet.send_epochs([make_epoch(world, twin_host, salt="twin")[0].encode()])
    for number in range(WINDOWS):
        window = T0 + number * WINDOW_S
        present = [h for h in world.hosts if (h.number + number) % 7 != 0]
        reports = [sealed(world, sampler, host, window) for host in present]
        forged = [replace(r, box=r.box[:-1] + bytes([r.box[-1] ^ 1])) for r in reports[:5]]
        second = sealed(world, SecondSampler(), present[3], window)
        second = replace(second, header=second.header)
        late, in_time = reports[0], reports[1:]
        fleet.send([*forged, *in_time, *in_time[:4], second], window + WINDOW_S + 1)
        closes_s: float = window + WINDOW_S + 30
        if number == 1:
            fleet.restart_leader()
            closes_s = fleet.clock.now_s + RESEND_S
            fleet.tick(fleet.clock.now_s)
        fleet.tick(closes_s)
        fleet.send([late], closes_s + 1)
        counted = [host for host in present[1:] if host is not twin_host]
        release = fleet.store.written[number]
        true = sum((truth_of(world, host, window) for host in counted), np.zeros(world.task.d))
        noise = sum((sampler.drawn[host.number, window] for host in counted), np.zeros(1))
        assert release.n == len(counted)
        assert np.array_equal(release.vector - true, noise)
        assert noise[2:].any()
    rejected = fleet.leader.rejected
    assert rejected["second_report"] > 0
    assert rejected["box"] > 0
    assert rejected["duplicate"] > 0
    assert rejected["epoch_twin"] > 0
    assert rejected["window_late"] + rejected["window_released"] > 0
    check_transcripts(world, fleet, tmp_path)


class SecondSampler(RecordingSampler):
    """Noise of a host that seals twice: the second must not be counted."""

    def sample_for(self, world: World, host: Host, window: int) -> NDArray[np.int64]:
        del host, window
        return np.where(world.task.sigma_vector_1024() > 0, 99, 0).astype(np.int64)


def check_transcripts(world: World, fleet: Fleet, folder: Path) -> None:
    both = [read_transcript(folder / name) for name in ("leader.sqlite", "helper.sqlite")]
    verdict = verify_transcripts(both[0], both[1], world.parties)
    assert verdict.problems == []
    assert (verdict.releases, verdict.unsigned) == (WINDOWS, 0)
    counted = world.hosts[5]
    report_id = seeded_bytes("report", counted.number, T0, 0)[:16]
    places = find_report(both, report_id)
    assert {who: link and link.window for who, link in places.items()} == {
        "leader": T0,
        "helper": T0,
    }
    dropped = seeded_bytes("report", 0, T0, 0)[:16]
    assert set(find_report(both, dropped).values()) == {None}
    assert fleet.helper_state.counts()["answers"] == WINDOWS
