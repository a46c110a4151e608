"""Nothing that a party logs, reports or raises shows a key, a vector or a mask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aggregator.party.key_ring import DAY_S, OVERLAP_S, KeyRing
from privacy.masks import derive_epoch_task_keys
from tests.process_kit import ProcessFleet
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    altered,
    build_world,
    honest_reports,
    open_epochs,
    vector_of,
)
from tests.wait_kit import until
from transport.files.keyfiles import write_signing_key
from wire.epoch import KeyAnnouncement
from wire.fields import MAX_EPOCH_S, key_id


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessFleet]:
    made = ProcessFleet(build_world(9), tmp_path)
    made.start("helper")
    made.start("leader")
    yield made
    made.stop()


def secrets_of(fleet: ProcessFleet) -> list[bytes]:
    """Every key of the run, raw."""
    world = fleet.world
    found = [world.leader_key.seed_bytes(), world.helper_key.seed_bytes()]
    found += [pair.seed_bytes()[:32] for pair in (world.leader_hpke, world.helper_hpke)]
    for host in world.hosts:
        assert host.epoch is not None
        keys = derive_epoch_task_keys(*host.secrets, host.epoch.hash(), world.task_id)
        found += [*host.secrets, keys.k_mask, keys.k_id, keys.k_box]
    return found


def test_logs_and_status_of_a_run_hold_no_secret(
    fleet: ProcessFleet, capfd: pytest.CaptureFixture[str]
) -> None:
    world = fleet.world
    epochs = open_epochs(world)
    broken = [altered(r.encode()) for r in honest_reports(world)]
    fleet.publish(epochs, [*broken, *(r.encode() for r in honest_reports(world))])
    until(lambda: fleet.reports_read() >= 18)
    fleet.clock.set(T0 + WINDOW_S + 31)
    until(lambda: bool(fleet.lines("store.jsonl")))
    assert fleet.stop() == [0, 0]
    output = capfd.readouterr()
    status = [(fleet.folder / f"{who}-status.json").read_text() for who in ("leader", "helper")]
    told = "\n".join([output.out, output.err, *status])
    assert json.loads(status[0])["rejected"]["box"] > 0
    for secret in secrets_of(fleet):
        assert secret.hex() not in told
        assert repr(secret)[2:-1] not in told
    for host in world.hosts:
        assert str(vector_of(host, T0, world.task.d)[2:].tolist())[1:-1] not in told


def test_reprs_and_errors_hold_no_key(tmp_path: Path) -> None:
    world = build_world(9)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    host = world.hosts[0]
    assert host.epoch is not None
    known = fleet.leader.book.find(host.id, host.epoch.header.epoch_id)
    assert known is not None
    known.box_key(world.task_id)
    assert known.key is not None
    assert known.key.hex() not in repr(known)
    assert str(known.key) not in repr(known)


def test_stored_state_of_the_leader_holds_no_vector_after_the_release(tmp_path: Path) -> None:
    world = build_world(9)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    fleet.state.close()
    content = b"".join(path.read_bytes() for path in tmp_path.glob("leader.sqlite*"))
    for host in world.hosts:
        vector = vector_of(host, T0, world.task.d).astype(np.uint32).astype("<u4")
        assert vector.tobytes()[8:] not in content
        assert host.secrets[1] not in content


def test_daily_keys_are_made_announced_and_destroyed(tmp_path: Path) -> None:
    identity = build_world(1).leader_key
    write_signing_key(tmp_path / "identity.key", identity)
    start = T0 // DAY_S * DAY_S
    ring = KeyRing(tmp_path)
    assert ring.rotate(start + 10, 6 * 3600)
    assert not ring.rotate(start + 20, 6 * 3600)
    (raw,) = ring.announcements(start + 20)
    first = KeyAnnouncement.decode(raw)
    kid = key_id(first.hpke_pk)
    assert (first.not_before, first.not_after) == (start, start + DAY_S + OVERLAP_S)
    assert ring.rotate(start + DAY_S - 60, 6 * 3600)
    assert len(ring.announcements(start + DAY_S - 60)) == 2
    late = start + DAY_S + OVERLAP_S + MAX_EPOCH_S + 6 * 3600
    ring.rotate(late, 6 * 3600)
    assert ring.pair(kid) is not None
    assert KeyRing(tmp_path).pair(kid) is not None
    assert ring.rotate(late + 1, 6 * 3600)
    assert ring.pair(kid) is None
    assert KeyRing(tmp_path).pair(kid) is None
