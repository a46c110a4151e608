"""Scheme `local`: no Helper, each host's noise is whole, the Leader alone sums int64 vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import sign_roster, sign_task
from privacy.masks import derive_box_key, seal_box
from privacy.sealing import seal
from tests.protocol_kit import (
    T0,
    Fleet,
    Host,
    World,
    build_world,
    seeded_bytes,
    true_sum,
    vector_of,
)
from wire import labels
from wire.epoch import Epoch, EpochHeader
from wire.fields import NO_KEY, NO_TAG, EpochId, KeyId, ReportId, Scheme, key_id
from wire.report import Report, ReportHeader
from wire.roster import FleetName


def local_world() -> World:
    world = build_world(9)
    wide = replace(world.task.sections[0], sigma_1024=1024 << 40)  # reaches far beyond 2^32
    task = replace(
        world.task, scheme=Scheme.LOCAL, helper_pk=b"", min_operators=0, sections=(wide,)
    )
    identity, signed = sign_task(task, world.leader_key, None)
    fleet = FleetName(task.leader_pk, b"", "fleet")
    roster = sign_roster(replace(world.roster, fleet=fleet), world.leader_key, None)
    return LocalWorld(
        **{name: getattr(world, name) for name in world.__dataclass_fields__}
        | {"task": task, "task_id": identity, "task_bytes": signed, "roster_bytes": roster}
    )


class LocalWorld(World):
    """A world whose Leader pins no Helper."""

    @property
    def parties(self):  # type: ignore[no-untyped-def]
        return replace(super().parties, helper_pk=b"")


def local_epoch(world: World, host: Host) -> Epoch:
    kid = KeyId(key_id(world.leader_hpke.public_bytes))
    name = EpochId(seeded_bytes("local", host.number)[:16])
    header = EpochHeader(host.id, name, T0 - 600, T0 + 3300, NO_KEY, kid, 1, 1)  # type: ignore[arg-type]
    k_l = seeded_bytes("K_L", host.number)
    info = labels.SEAL_L + header.encode()
    epoch = Epoch(header, b"", seal(world.leader_hpke.public_bytes, k_l, info))
    host.epoch = replace(epoch, signature=host.key.sign(epoch.unsigned()))
    host.secrets = (b"", k_l)
    return host.epoch


def local_report(world: World, host: Host, vector: NDArray[np.int64]) -> Report:
    assert host.epoch is not None
    rid = seeded_bytes("report", host.number)[:16]
    header = ReportHeader(0, len(vector), T0, ReportId(rid))
    key = derive_box_key(host.secrets[1], host.epoch.hash(), world.task_id)
    box = seal_box(key, rid, header.encode() + NO_TAG, vector.astype("<i8").tobytes())
    return Report(host.id, host.epoch.header.epoch_id, world.task_id, header, NO_TAG, box)  # type: ignore[arg-type]


def test_leader_alone_releases_the_sum(tmp_path: Path) -> None:
    world = local_world()
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs([local_epoch(world, host).encode() for host in world.hosts])
    vectors = [vector_of(host, T0, world.task.d) for host in world.hosts]
    vectors[0][3] += 2**40  # int64: nothing wraps at 2^32
    fleet.send([local_report(world, h, v) for h, v in zip(world.hosts, vectors, strict=True)])
    fleet.close_window()
    expected = true_sum(world, world.hosts)
    expected[3] += 2**40
    assert np.array_equal(fleet.store.written[0].vector, expected)
    (kept,) = fleet.state.releases()
    assert kept.vector == b""
    (final,) = fleet.state.to_publish(9)
    assert (final.series, final.cohort, final.entry) == (*kept.chain, kept.entry)
    fleet.state.published(final)
    assert fleet.state.to_publish(9) == []


def test_host_with_wrong_check_words_is_refused_at_once(tmp_path: Path) -> None:
    world = local_world()
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs([local_epoch(world, host).encode() for host in world.hosts])
    vector = vector_of(world.hosts[0], T0, world.task.d)
    vector[1] = 2
    fleet.send([local_report(world, world.hosts[0], vector)])
    assert fleet.leader.rejected == {"check_words": 1}
