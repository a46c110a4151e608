"""Hosts, epochs, tasks and sealed reports for the round benchmark, made by the agents' own code.

Keys are fixed and known to everyone who reads this file: they protect nothing. Epochs take the
longest to make, so they are kept in bench/.cache in parts, and a cut-off run goes on where it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aggregator.enrolment.tasks import TaskPlan, build_task, sign_roster, sign_task
from aggregator.protocol.directory import Directory, PinnedParties
from bench.record import CACHE
from edge_agent.protocol.epochs import Host, HostEpoch, SealingKeys, open_epoch
from edge_agent.protocol.seal_report import Sealing, seal_reports
from privacy.calibrate import SIGMA_UNIT
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from simulator.simulated_hosts import host_of, roster_of
from transport.interface import Record
from wire.catalogue import Catalogue
from wire.envelope import Kind, wrap
from wire.epoch import Epoch, KeyAnnouncement
from wire.fields import Scheme, TaskId
from wire.roster import PlanMembership
from wire.task import Task
from wire.topics import EPOCHS, REPORTS

T0: Final = 1_800_000_000
"""The epochs' start and the first window's; every window of the benchmark ends within the hour."""

WINDOW_S: Final = 60
HOST_EPSILON_MILLIONTHS: Final = 2_000_000
GPUS: Final = 8
PART: Final = 5_000
PARTITIONS: Final = 8
CHUNK_BYTES: Final = 1 << 26
BINS: Final = 4096
LEADER: Final = SigningKey.from_seed_bytes(b"bench leader".ljust(32, b"."))
HELPER: Final = SigningKey.from_seed_bytes(b"bench helper".ljust(32, b"."))
LEADER_BOX: Final = HpkeKeyPair.from_seed_bytes(b"bench leader box".ljust(96, b"."))
HELPER_BOX: Final = HpkeKeyPair.from_seed_bytes(b"bench helper box".ljust(96, b"."))
PARTIES: Final = PinnedParties(LEADER.public_bytes, HELPER.public_bytes)


def announcements() -> tuple[KeyAnnouncement, KeyAnnouncement]:
    found = []
    for party, pair in ((LEADER, LEADER_BOX), (HELPER, HELPER_BOX)):
        bare = KeyAnnouncement(party.public_bytes, pair.public_bytes, T0 - 3600, T0 + 86_400)
        found.append(replace(bare, signature=party.sign(bare.unsigned())))
    return found[0], found[1]


def seed_of(index: int) -> bytes:
    return sha256(b"bench host" + index.to_bytes(4, "big")).digest()


@dataclass(frozen=True, slots=True)
class Fleet:
    """The first n hosts with one epoch each; raw is the epoch as published."""

    hosts: list[Host]
    epochs: list[HostEpoch]
    raw: list[bytes]

    def first(self, n: int) -> Fleet:
        return Fleet(self.hosts[:n], self.epochs[:n], self.raw[:n])

    def epoch_records(self) -> Iterator[list[Record]]:
        """The epoch topic, in batches as a consumer polls them."""
        for start in range(0, len(self.raw), 1000):
            yield [
                Record(EPOCHS, 0, start + i, b"", wrap(Kind.EPOCH, raw), float(T0))
                for i, raw in enumerate(self.raw[start : start + 1000])
            ]


def load_fleet(
    n: int, folder: Path = CACHE / "fleet", part: int = PART, begun: tuple[int, int] = (T0, 1)
) -> Fleet:
    """Make or read n hosts and their epochs, `part` hosts to a file of `folder`.

    begun       when the epochs begin, seconds, and their ledger counter
    """
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet([], [], [])
    for start in range(0, n, part):
        path = folder / f"part-{start:06}-{part}.npz"
        if not path.exists():
            partial = path.with_suffix(".partial.npz")
            np.savez(partial, **_make_part(start, part, *begun))
            partial.replace(path)
        _read_part(fleet, start, dict(np.load(path)))
    return fleet.first(n)


def _make_part(start: int, size: int, begun_s: int, ledger_ctr: int) -> dict[str, Any]:
    keys = SealingKeys(*announcements())
    numbers = range(start, start + size)
    made = [open_epoch(_host(i), keys, 1, ledger_ctr, begun_s, os.urandom) for i in numbers]
    secrets = [epoch.k_h + epoch.k_l for epoch, _ in made]
    return {
        "secrets": np.frombuffer(b"".join(secrets), np.uint8).reshape(size, -1),
        "raw": np.frombuffer(b"".join(raw for _, raw in made), np.uint8).reshape(size, -1),
    }


def _read_part(fleet: Fleet, start: int, part: dict[str, npt.NDArray[np.uint8]]) -> None:
    for i, (secret, row) in enumerate(zip(part["secrets"], part["raw"], strict=True)):
        raw, keys = row.tobytes(), secret.tobytes()
        epoch = Epoch.decode(raw)
        fleet.hosts.append(_host(start + i))
        fleet.epochs.append(HostEpoch(epoch.header, epoch.hash(), keys[:32], keys[32:]))
        fleet.raw.append(raw)


def _host(index: int) -> Host:
    return host_of(SigningKey.from_seed_bytes(seed_of(index)))


def make_task(n: int, d: int) -> tuple[TaskId, Task, bytes]:
    """A signed task of d words for a roster of n hosts: histograms of up to 4,096 bins."""
    lengths = [BINS] * ((d - 2) // BINS) + [(d - 2) % BINS]
    catalogue = Catalogue.from_content(
        {"format": 1, "section": [_section(i, size) for i, size in enumerate(lengths, 1)]}
    )
    plan = TaskPlan(
        series=f"bench-d{d}",
        window_s=WINDOW_S,
        first_window=T0,
        last_window=T0 + 10_080 * WINDOW_S,
        weights={f"bench_{i}": 400_000 // len(lengths) for i in range(1, len(lengths) + 1)},
        gpus_per_host=GPUS,
        epsilon_millionths=HOST_EPSILON_MILLIONTHS,
        n_max=n,
        n_min=n * 8 // 10,
        leader_pk=LEADER.public_bytes,
        helper_pk=HELPER.public_bytes,
        expiry=T0 + 10**7,
    )
    task = build_task(catalogue, plan)
    task_id, signed = sign_task(task, LEADER, HELPER)
    return task_id, task, signed


def _section(number: int, size: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"bench_{number}",
        "kind": "histogram",
        "unit": "GPU-ms",
        "axes": ["bins"],
        "bins": {"scale": "linear", "unit": "ms", "first": 0, "width": 1, "count": size},
        "bound": "per_gpu_ms",
        "steps_per_unit": 64,
    }


def make_roster(fleet: Fleet, dimensions: list[int]) -> bytes:
    """A signed roster of the fleet with ten operators."""
    plan = tuple(PlanMembership(f"bench-d{d}", 0, 400_000) for d in sorted(dimensions))
    members = (
        (host.signing_key.public_bytes, i % 10, ((2, GPUS),)) for i, host in enumerate(fleet.hosts)
    )
    return sign_roster(roster_of(members, plan, T0 - 3600), LEADER, HELPER)


def directory(task: bytes, roster: bytes) -> Directory:
    """What one party knows; each party gets its own."""
    known = Directory(PARTIES)
    known.add_task(task, T0)
    known.add_roster(roster)
    return known


def sealed_chunks(
    fleet: Fleet, task_id: TaskId, task: Task, window: int, total: npt.NDArray[np.int64]
) -> Iterator[list[Record]]:
    """Seal the fleet's reports of one window, chunk by chunk; `total` grows by their true sum.

    A chunk is at most 64 MiB of reports, so that no run ever holds a round's 4 GB twice.
    """
    rng = np.random.default_rng(window)
    n, size = len(fleet.hosts), max(1, CHUNK_BYTES // (4 * task.d))
    most = task.sections[0].sigma_1024 // SIGMA_UNIT  # what is beyond noise is not released
    for start in range(0, n, size):
        stop = min(start + size, n)
        sealings = [
            Sealing(host.host_id, 0, epoch)
            for host, epoch in zip(fleet.hosts[start:stop], fleet.epochs[start:stop], strict=True)
        ]
        noisy = rng.integers(-most, most + 1, size=(stop - start, task.d), dtype=np.int64)
        noisy[:, :2] = 1
        total += noisy.sum(axis=0)
        sealed = seal_reports(task_id, Scheme.MASKED, window, sealings, noisy, os.urandom)
        del noisy
        yield [
            Record(REPORTS, i % PARTITIONS, start + i, b"", wrap(Kind.REPORT, report), float(T0))
            for i, report in enumerate(sealed)
        ]
