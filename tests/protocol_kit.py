"""A cohort of hosts to the byte, and a Leader and a Helper around it, for the protocol's tests."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import sign_roster, sign_task
from aggregator.helper.batch_rules import MaskInto
from aggregator.helper.helper import Helper
from aggregator.helper.helper_runtime import HelperRunner
from aggregator.helper.helper_state import HelperState
from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import (
    CallCountersign,
    CallHelper,
    EpochsArrived,
    HelperAnswer,
    LeaderEvent,
    ReportsArrived,
    StoreRelease,
    StoreSuppressed,
    Tick,
)
from aggregator.leader.leader_runner import LeaderRunner, call_helper, restore_leader
from aggregator.leader.leader_state import LeaderState
from aggregator.protocol.directory import Directory, PinnedParties
from aggregator.protocol.interfaces import Checkpoint, HelperPort, no_checkpoint
from aggregator.protocol.released import ReleasedWindow
from aggregator.witness.chain import Witness, WitnessedChain
from privacy.masks import derive_epoch_task_keys, mask_into, seal_box, tag_and_nonce
from privacy.sealing import HpkeKeyPair, seal
from privacy.signing import SigningKey
from simulator.engine.interface import MemoryStore
from transport.interface import Record, TopicPartition
from wire import labels
from wire.envelope import Kind, wrap
from wire.epoch import Epoch, EpochHeader
from wire.fields import (
    EpochId,
    KeyId,
    ReportId,
    Scheme,
    TaskId,
    hardware_id,
    host_id,
    key_id,
    task_id,
    voucher_id,
)
from wire.report import Report, ReportHeader
from wire.roster import FleetName, PlanMembership, Roster, RosterEntry
from wire.task import SectionKind, SectionSpec, Task

if TYPE_CHECKING:  # Spark's environment lacks packages of an agent
    from tests.agent_world import World as AgentWorld

WINDOW_S = 60
T0 = 1_700_000_040
"""A window start."""
SERIES = "minute"
SIGMA_1024 = 100 * 1024


def seeded_bytes(*name: object) -> bytes:
    """32 bytes that depend on nothing but the name."""
    return hashlib.sha256(repr(name).encode()).digest()


def altered(data: bytes) -> bytes:
    """The bytes with one bit of the last one turned: never the same bytes by chance."""
    return data[:-1] + bytes([data[-1] ^ 1])


@cache
def signing_key(*name: object) -> SigningKey:
    """An Ed25519 key that every run of the test shares."""
    return SigningKey.from_seed_bytes(seeded_bytes(*name))


@cache
def hpke_pair(name: str) -> HpkeKeyPair:
    return HpkeKeyPair.from_seed_bytes(b"".join(seeded_bytes(name, i) for i in range(3)))


@dataclass
class Host:
    """One host: its keys, its epoch and what it seals."""

    number: int
    key: SigningKey
    operator: str
    epoch: Epoch | None = None
    secrets: tuple[bytes, bytes] = (b"", b"")

    @property
    def id(self) -> bytes:
        return host_id(self.key.public_bytes)


@dataclass
class World:
    leader_key: SigningKey
    helper_key: SigningKey
    leader_hpke: HpkeKeyPair
    helper_hpke: HpkeKeyPair
    task: Task
    task_id: TaskId
    task_bytes: bytes
    roster: Roster
    roster_bytes: bytes
    hosts: list[Host]

    @property
    def parties(self) -> PinnedParties:
        return PinnedParties(self.leader_key.public_bytes, self.helper_key.public_bytes)

    def directory(self) -> Directory:
        directory = Directory(self.parties)
        directory.add_task(self.task_bytes, T0)
        directory.add_roster(self.roster_bytes)
        return directory

    def resign(self, **changes: Any) -> World:
        task = dataclasses.replace(self.task, **changes)
        identity, signed = sign_task(task, self.leader_key, self.helper_key)
        return dataclasses.replace(self, task=task, task_id=identity, task_bytes=signed)


def world_of(parties: AgentWorld, task: Task, signed: bytes, roster: bytes) -> World:
    """The same parties as agents know them; the hosts are elsewhere."""
    leader, helper = parties.leader, parties.helper
    return World(
        leader.signing, helper.signing, leader.hpke, helper.hpke,
        task, TaskId(task_id(signed[:-128])), signed, Roster(1, 0, (), ()), roster, [],
    )  # fmt: skip


def small_task(leader: SigningKey, helper: SigningKey, **changes: Any) -> Task:
    """A task of one mix of four cells; its noise covers what `vector_of` draws."""
    section = SectionSpec(1, "mix", SectionKind.MIX, 4, 640, 640, 0, 10, 500_000, 10**6, SIGMA_1024)
    values: dict[str, Any] = {
        "series": SERIES,
        "version": 1,
        "domain": "fleet",
        "scheme": Scheme.MASKED,
        "first_window": T0,
        "last_window": T0 + 1000 * WINDOW_S,
        "window_s": WINDOW_S,
        "lateness_s": 30,
        "retention_s": 6 * 3600,
        "sections": (section,),
        "epsilon_millionths": 2_000_000,
        "delta_1e12": 1000,
        "mu_1e9": 351_549_815,
        "n_max": 40,
        "n_min": 8,
        "t": 2,
        "min_operators": 3,
        "leader_pk": leader.public_bytes,
        "helper_pk": helper.public_bytes,
        "catalogue_hash": bytes(32),
        "expiry": T0 + 10**7,
    }
    return Task(**(values | changes))


def build_world(
    n: int = 10,
    *,
    operators: Callable[[int], str] = lambda number: f"operator-{number // 2}",
    cohorts: Callable[[int], int] = lambda number: 0,
    roster_version: int = 1,
    **task_changes: Any,
) -> World:
    """Build a world of `n` hosts; everything in it is the same in every run."""
    leader, helper = signing_key("leader"), signing_key("helper")
    task = small_task(leader, helper, **task_changes)
    identity, task_bytes = sign_task(task, leader, helper)
    hosts = [Host(i, signing_key("host", i), operators(i)) for i in range(n)]
    used = sorted({cohorts(i) for i in range(n)})
    plans = tuple((PlanMembership(task.series, cohort, 500_000),) for cohort in used)
    entries = tuple(
        RosterEntry(
            host_id(host.key.public_bytes),
            host.key.public_bytes,
            host.operator,
            used.index(cohorts(host.number)),
            ((1, 8),),
            hardware_id(leader.public_bytes, f"gpu-{host.number}"),
            voucher_id(host.key.public_bytes),
        )
        for host in hosts
    )
    fleet = FleetName(leader.public_bytes, helper.public_bytes, "fleet")
    roster = Roster(roster_version, T0 - 7200, plans, entries, fleet)
    return World(
        leader,
        helper,
        hpke_pair("leader"),
        hpke_pair("helper"),
        task,
        identity,
        task_bytes,
        roster,
        sign_roster(roster, leader, helper),
        hosts,
    )


def make_epoch(
    world: World,
    host: Host,
    *,
    name: object = 0,
    not_before: int = T0 - 600,
    length_s: int = 3900,
    ledger_ctr: int | None = None,
    salt: object = 0,
    signer: SigningKey | None = None,
) -> tuple[Epoch, tuple[bytes, bytes]]:
    """Seal fresh keys for one host: (epoch, (K_H, K_L)). `salt` makes a twin differ.

    Seals are random and dear: the same arguments give the same epoch throughout a process.
    """
    if ledger_ctr is None:
        ledger_ctr = 1 + name if isinstance(name, int) else 1
    by = (signer or host.key).public_bytes
    known = (host.id, name, not_before, length_s, ledger_ctr, salt, by, world.roster.version)
    if known in _EPOCHS:
        return _EPOCHS[known]
    header = EpochHeader(
        host.id,  # type: ignore[arg-type]
        EpochId(seeded_bytes("epoch", host.number, name)[:16]),
        not_before,
        not_before + length_s,
        KeyId(key_id(world.helper_hpke.public_bytes)),
        KeyId(key_id(world.leader_hpke.public_bytes)),
        world.roster.version,
        ledger_ctr,
    )
    k_h = seeded_bytes("K_H", host.number, name, salt)
    k_l = seeded_bytes("K_L", host.number, name, salt)
    context = header.encode()
    epoch = Epoch(
        header,
        seal(world.helper_hpke.public_bytes, k_h, labels.SEAL_H + context),
        seal(world.leader_hpke.public_bytes, k_l, labels.SEAL_L + context),
    )
    signature = (signer or host.key).sign(epoch.unsigned())
    _EPOCHS[known] = dataclasses.replace(epoch, signature=signature), (k_h, k_l)
    return _EPOCHS[known]


_EPOCHS: dict[tuple[object, ...], tuple[Epoch, tuple[bytes, bytes]]] = {}


def open_epochs(world: World, name: object = 0) -> list[bytes]:
    for host in world.hosts:
        host.epoch, host.secrets = make_epoch(world, host, name=name)
    return [host.epoch.encode() for host in world.hosts if host.epoch is not None]


def seal_report(
    world: World,
    host: Host,
    vector: NDArray[np.int64],
    *,
    window: int = T0,
    cohort: int = 0,
    report_id: bytes | None = None,
    spoil_tag: bool = False,
) -> Report:
    """Mask, tag and box one host's vector (int64[d], check words included), to the byte."""
    assert host.epoch is not None
    identity = world.task_id
    keys = derive_epoch_task_keys(*host.secrets, host.epoch.hash(), identity)
    rid = report_id or seeded_bytes("report", host.number, window, cohort)[:16]
    header = ReportHeader(cohort, len(vector), window, ReportId(rid))
    tag, nonce = tag_and_nonce(keys.k_id, header.encode())
    if spoil_tag:
        tag = bytes(16)
    mask = np.empty(len(vector), dtype=np.uint32)
    mask_into(keys.k_mask, nonce, mask)
    y = (vector.astype(np.uint32) + mask).astype("<u4")
    box = seal_box(keys.k_box, rid, header.encode() + tag, y.tobytes())
    epoch_id = host.epoch.header.epoch_id
    return Report(host.id, epoch_id, identity, header, tag, box)  # type: ignore[arg-type]


def vector_of(host: Host, window: int, d: int) -> NDArray[np.int64]:
    """A host's steps, noise included: small, some negative, check words 1."""
    draws = np.frombuffer(seeded_bytes("steps", host.number, window) * (d // 8 + 1), "<i4")[:d]
    vector = (draws % 201 - 100).astype(np.int64)
    vector[:2] = 1
    return vector


class Log:
    """Records with offsets; by default one partition per host parity.

    place   the partition of a key among so many
    """

    def __init__(
        self,
        topic: str = "reports",
        partitions: int = 2,
        place: Callable[[bytes, int], int] = lambda key, partitions: key[0] % partitions,
    ) -> None:
        self.topic, self._place = topic, place
        self.records: list[Record] = []
        self.next = [0] * partitions
        self.committed: dict[TopicPartition, int] = {}

    def append(
        self, kind: Kind, core: bytes, key: bytes = b"\0", partition: int | None = None
    ) -> Record:
        """Append by the key, or to a partition that a lying broker chose."""
        part = self._place(key, len(self.next)) if partition is None else partition
        record = Record(self.topic, part, self.next[part], key, wrap(kind, core), float(T0))
        self.next[part] += 1
        self.records.append(record)
        return record

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.committed.update(offsets)

    def uncommitted(self) -> list[Record]:
        return [
            record
            for record in self.records
            if record.offset >= self.committed.get((record.topic, record.partition), 0)
        ]


class ListStore(MemoryStore):
    """Keeps releases as the real store does: one per window, the same twice changes nothing."""

    def write(self, release: ReleasedWindow) -> None:
        for before in self.written:
            if (before.task_id, before.cohort, before.window_start_s) == (
                release.task_id,
                release.cohort,
                release.window_start_s,
            ):
                assert np.array_equal(before.vector, release.vector)
                return
        self.written.append(release)


class Clock:
    def __init__(self, now_s: float = T0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def start_helper(
    world: World,
    folder: Path,
    clock: Clock,
    *,
    mask_source: MaskInto = mask_into,
    checkpoint: Checkpoint = no_checkpoint,
    witness: Witness | None = None,
    second_witness: Witness | None = None,
    name: str = "helper",
) -> tuple[Helper, HelperState, HelperRunner]:
    """A Helper on its state in `folder`."""
    linked_as = None if witness is None else world.helper_key.public_bytes
    state = HelperState(
        folder / f"{name}.sqlite", folder / f"{name}.fence", clock(), linked_as=linked_as
    )
    chain = WitnessedChain(state, *filter(None, (witness, second_witness)))
    pairs = {key_id(world.helper_hpke.public_bytes): world.helper_hpke}
    helper = Helper(
        world.directory(),
        world.helper_key,
        lambda kid: pairs.get(KeyId(kid)),
        state,
        ledger_counters=state.counters(),
        seen_epochs=state.epochs(),
        mask_into=mask_source,
        checkpoint=checkpoint,
    )
    runner = HelperRunner(
        helper,
        clock,
        helper_pk=world.helper_key.public_bytes,
        settle=chain.settle,
    )
    return helper, state, runner


class Failures:
    """What ended calls of a served Helper; none of it ends the Helper."""

    def __init__(self) -> None:
        self.seen: list[BaseException] = []

    def __call__(self, error: BaseException) -> bool:
        self.seen.append(error)
        return False


class Fleet:
    """A Leader and a Helper joined by direct calls, over a log in memory."""

    make_leader: Callable[..., Leader] = Leader

    def __init__(
        self,
        world: World,
        folder: Path,
        *,
        helper: HelperPort | None = None,
    ) -> None:
        self.world, self.folder = world, folder
        self.clock = Clock()
        self.log = Log()
        self.epoch_log = Log("epochs", 1)
        self.store = ListStore()
        if helper is None:
            self.helper, self.helper_state, runner = start_helper(world, folder, self.clock)
            helper = runner
        self.port: HelperPort = helper
        self.start_leader()

    def open_state(self) -> LeaderState:
        return LeaderState(self.folder / "leader.sqlite")

    def start_leader(self) -> None:
        self.state = self.open_state()
        pairs = {key_id(self.world.leader_hpke.public_bytes): self.world.leader_hpke}
        self.leader = self.make_leader(
            self.world.directory(),
            self.world.leader_key,
            lambda kid: pairs.get(KeyId(kid)),
            ledger_counters=self.state.counters(),
            resumed=self.state.resumed,
            raw_epoch=self.state.raw_epoch,
        )
        owed = restore_leader(self.leader, self.state, self.clock())
        self.calls: list[CallHelper | CallCountersign] = []
        self.told: list[StoreSuppressed] = []
        self.runner = LeaderRunner(
            self.leader,
            self.state,
            self.store,
            commit=self.log.commit,
            call=self.calls.append,
            tell=self._note,
        )
        self.runner.carry_out(owed)

    def _note(self, settled: StoreRelease | StoreSuppressed) -> None:
        if isinstance(settled, StoreSuppressed):
            self.told.append(settled)

    def restart_leader(self) -> None:
        """Crash and come back: memory is lost, state and log remain."""
        self.state.close()
        self.start_leader()
        self.feed(ReportsArrived(self.log.uncommitted(), self.clock()))

    def feed(self, event: LeaderEvent) -> None:
        self.runner.feed(event)
        while self.calls:
            self.runner.feed(self.call(self.calls.pop(0)))

    def call(self, effect: CallHelper | CallCountersign) -> HelperAnswer:
        wanted = effect.wanted if isinstance(effect, CallHelper) else None
        epochs = self.state.epoch_bytes(list(wanted or ()))
        return call_helper(self.port, effect, epochs, self.clock)

    def send_epochs(self, epochs: Iterable[bytes]) -> None:
        records = [self.epoch_log.append(Kind.EPOCH, raw) for raw in epochs]
        self.feed(EpochsArrived(records, self.clock()))

    def send(self, reports: Iterable[Report | bytes], at_s: float = T0 + WINDOW_S + 1) -> None:
        self.clock.now_s = at_s
        records = [self.append(report) for report in reports]
        self.feed(ReportsArrived(records, at_s))

    def append(self, report: Report | bytes) -> Record:
        raw = report if isinstance(report, bytes) else report.encode()
        return self.log.append(Kind.REPORT, raw, raw[:16] or b"\0")

    def tick(self, at_s: float, lag: int | None = 0) -> None:
        self.clock.now_s = at_s
        self.feed(Tick(at_s, lag))

    def close_window(self, window: int = T0) -> None:
        self.tick(window + WINDOW_S + self.world.task.lateness_s)


def honest_reports(
    world: World, hosts: Sequence[Host] | None = None, window: int = T0
) -> list[Report]:
    return [
        seal_report(world, host, vector_of(host, window, world.task.d), window=window)
        for host in (world.hosts if hosts is None else hosts)
    ]


def true_sum(world: World, hosts: Sequence[Host], window: int = T0) -> NDArray[np.int64]:
    total = np.zeros(world.task.d, dtype=np.int64)
    for host in hosts:
        total += vector_of(host, window, world.task.d)
    return total
