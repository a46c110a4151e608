"""Two aggregators, a roster and a few hosts: what the agent's tests start from."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import TaskPlan, build_task
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import ClockSetBack, HostSpending, LedgerView, SealedRecord
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.protocol_events import (
    CommitEpochs,
    CommitFailed,
    CommitSealed,
    Effect,
    EpochDue,
    Event,
    KeysAnnounced,
    LedgerCommitted,
    Publish,
    Refuse,
    RememberRoster,
    RosterReceived,
    SignedTimeSeen,
    TaskAccepted,
    TaskReceived,
    WindowClosed,
    Withheld,
)
from edge_agent.protocol.task_check import Bounds, ParticipantRules, Pins
from privacy.calibrate import gdp_mu_1e9, sensitivity_sq_steps, sigma_local_1024, windows_touched
from privacy.masks import (
    derive_box_key,
    derive_helper_keys,
    mask_into,
    open_box,
    tag_and_nonce,
)
from privacy.noise import NoiseSampler
from privacy.noise_table import SeededSampler
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey, verify
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Kind, Signed, unwrap
from wire.epoch import Epoch, KeyAnnouncement
from wire.fields import NO_SIGNATURE, Scheme, TaskId, host_id, task_id, voucher_id
from wire.report import Report
from wire.roster import FleetName, PlanMembership, Roster, RosterEntry
from wire.task import SectionKind, SectionSpec, Task
from wire.topics import EPOCHS

WEEK_S = 7 * 24 * 3600
# A week start (Thursday 00:00 UTC) and the start of a day, an hour and a minute.
T0 = 2900 * WEEK_S
EPSILON = 2_000_000
DELTA = 1_000


def counting_bytes(seed: int = 0) -> Callable[[int], bytes]:
    generator = np.random.default_rng(seed)
    return generator.bytes


class LastNoise:
    """Seeded noise; the newest draw, int64[hosts, d], is remembered."""

    seeded = True

    def __init__(self, seed: int, name: str = "") -> None:
        self._sampler = SeededSampler(seed, name) if name else SeededSampler(seed)
        self.last = np.zeros((0, 0), dtype=np.int64)

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        self.last = self._sampler.sample(hosts, sigma_1024)
        return self.last.copy()


class NoNoise:
    """A sampler that adds nothing, so that a test sees the steps: anyone can repeat it."""

    seeded = True

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros((hosts, sigma_1024.size), dtype=np.int64)


@dataclass
class Party:
    """An aggregator's identity key and its HPKE key of the day."""

    signing: SigningKey = field(default_factory=SigningKey.generate)
    hpke: HpkeKeyPair = field(default_factory=HpkeKeyPair.generate)

    @property
    def pk(self) -> bytes:
        return self.signing.public_bytes

    def announce(self, not_before: int, not_after: int) -> KeyAnnouncement:
        plain = KeyAnnouncement(self.pk, self.hpke.public_bytes, not_before, not_after)
        return dataclasses.replace(plain, signature=self.signing.sign(plain.unsigned()))


def make_section(
    weight: int, *, section_id: int = 1, length: int = 4, bound: int = 64_000, q: int = 1_000
) -> SectionSpec:
    """A mix whose sigma is still to be filled in."""
    return SectionSpec(
        section_id, f"section{section_id}", SectionKind.MIX, length, bound, bound, 0, q, weight,
        1_000_000, 2_048,
    )  # fmt: skip


def calibrated(task: Task) -> Task:
    """Give every section of a task the least noise that an agent accepts."""
    mu = gdp_mu_1e9(task.epsilon_millionths, task.delta_1e12)
    touched = windows_touched(task.window_s, task.windows)
    sections = []
    for one in task.sections:
        delta_sq = sensitivity_sq_steps(one.coordinate_cap, one.l1_bound, one.q)
        sigma = sigma_local_1024(delta_sq, touched, one.weight_millionths, mu, task.h)
        sections.append(dataclasses.replace(one, sigma_1024=max(sigma, 2_048)))
    return dataclasses.replace(task, sections=tuple(sections), mu_1e9=mu)


@dataclass
class World:
    hosts: int = 1
    leader: Party = field(default_factory=Party)
    helper: Party = field(default_factory=Party)
    key: Callable[[int], SigningKey] = lambda _number: SigningKey.generate()
    fleet: str = field(default_factory=lambda: f"fleet-{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        self.signing_keys = [self.key(number) for number in range(self.hosts)]
        self.identities = [Host(k, host_id(k.public_bytes)) for k in self.signing_keys]
        self.pins = Pins(frozenset({self.leader.pk}), frozenset({self.helper.pk}))

    @property
    def host_ids(self) -> list[bytes]:
        return [bytes(host.host_id) for host in self.identities]

    def task(
        self,
        series: str = "minute",
        *,
        window_s: int = 60,
        weight: int = 600_000,
        version: int = 1,
        first: int = T0,
        last: int | None = None,
        domain: str = "demo",
        **changes: object,
    ) -> Task:
        """A calibrated task of one section; 1,000 hosts, n_min 800, t 100."""
        last_window = first + 1_000 * max(window_s, WEEK_S // 2) if last is None else last
        task = Task(
            series, version, domain, Scheme.MASKED, first // window_s * window_s,
            last_window // window_s * window_s, window_s, EPSILON, DELTA, 1000, 800, 3,
            self.leader.pk, self.helper.pk, T0 + 1_000 * WEEK_S, min(30, window_s), 6 * 3600,
            (make_section(weight),), 1, 100, bytes(32),
        )  # fmt: skip
        return calibrated(dataclasses.replace(task, **changes))  # type: ignore[arg-type]

    def catalogue_task(
        self,
        weights: Mapping[str, int],
        *,
        window_s: int = 60,
        windows: int = 1000,
        first: int = T0,
        **changes: Any,
    ) -> Task:
        given: dict[str, Any] = {
            "series": "minute", "domain": "demo", "window_s": window_s, "first_window": first,
            "last_window": first + (windows - 1) * window_s, "lateness_s": 30,
            "retention_s": 6 * 3600, "weights": weights, "gpus_per_host": 8,
            "leader_pk": self.leader.pk, "helper_pk": self.helper.pk, "expiry": first + 10**8,
        }  # fmt: skip
        return build_task(Catalogue.load(), TaskPlan(**(given | changes)))

    def sign_task(self, task: Task) -> bytes:
        return self.sign(labels.TASK, task.encode_body(), local=task.scheme is Scheme.LOCAL)

    def sign(self, label: bytes, body: bytes, *, local: bool = False) -> bytes:
        plain = Signed(label, body)
        message = plain.unsigned()
        by_helper = NO_SIGNATURE if local else self.helper.signing.sign(message)
        return Signed(label, body, self.leader.signing.sign(message), by_helper).encode()

    def roster(
        self,
        weights: dict[str, int],
        *,
        version: int = 1,
        effective_from: int = 0,
        cohort: int = 7,
        local: bool = False,
        crowd: int = 800,
    ) -> bytes:
        """Sign a roster of the world's hosts, and of others up to `crowd`."""
        plan = tuple(PlanMembership(name, cohort, w) for name, w in weights.items())
        own = [key.public_bytes for key in self.signing_keys]
        others = [number.to_bytes(32) for number in range(len(own), crowd)]
        entries = tuple(
            RosterEntry(
                host_id(pk), pk, f"op{i % 10}", 0, ((2, 8),), bytes(host_id(pk)), voucher_id(pk)
            )
            for i, pk in enumerate((*own, *others))
        )
        fleet = FleetName(self.leader.pk, b"" if local else self.helper.pk, self.fleet)
        roster = Roster(version, effective_from, (plan,), entries, fleet)
        return self.sign(labels.ROSTER, roster.encode_body(), local=local)

    def keys(self, now_s: int = T0, life_s: int = 30 * 24 * 3600) -> tuple[KeyAnnouncement, ...]:
        return tuple(p.announce(now_s - 60, now_s + life_s) for p in (self.leader, self.helper))

    def rules(self, **changes: object) -> ParticipantRules:
        base = ParticipantRules(self.pins, Bounds(), "demo")
        return dataclasses.replace(base, **changes)  # type: ignore[arg-type]

    def empty_view(self) -> LedgerView:
        return LedgerView(tuple(HostSpending(h, (), 0, ()) for h in self.host_ids))

    def participant(
        self,
        view: LedgerView | None = None,
        *,
        sampler: NoiseSampler | None = None,
        rules: ParticipantRules | None = None,
        seed: int = 0,
    ) -> Participant:
        return Participant(
            self.identities,
            view or self.empty_view(),
            sampler or SeededSampler(seed),
            counting_bytes(seed),
            rules or self.rules(),
        )


class MemoryRuntime:
    """Carries out a participant's effects at once; a clock set back is all that can fail."""

    def __init__(self, participant: Participant, ledger: Ledger | None = None) -> None:
        self.participant = participant
        self.ledger = ledger
        self.published: list[SealedRecord] = []
        self.refused: list[Refuse] = []
        self.effects: list[Effect] = []
        self.committed: list[CommitSealed] = []
        self._ids = itertools.count(1)

    def tell(self, event: Event) -> list[Effect]:
        """Handle an event and everything that follows from it; give all effects."""
        effects = self.participant.handle(event)
        done = list(effects)
        for effect in effects:
            done += self._carry_out(effect)
        self.effects += effects
        return done

    def _carry_out(self, effect: Effect) -> list[Effect]:
        if isinstance(effect, CommitEpochs | CommitSealed):
            try:
                committed = LedgerCommitted(effect.token, self._commit(effect))
            except ClockSetBack:
                return self.tell(CommitFailed(effect.token, Withheld.CLOCK_SET_BACK))
            return self.tell(committed)
        if isinstance(effect, TaskAccepted) and self.ledger is not None:
            self.ledger.remember_series([effect.known])
        if isinstance(effect, RememberRoster) and self.ledger is not None:
            self.ledger.remember_roster(effect.known)
        if isinstance(effect, SignedTimeSeen) and self.ledger is not None:
            self.ledger.note_signed_time(effect.signed_time_s)
        if isinstance(effect, Publish):
            self.published += effect.records
        if isinstance(effect, Refuse):
            self.refused.append(effect)
        return []

    def _commit(self, effect: CommitEpochs | CommitSealed) -> tuple[int, ...]:
        if isinstance(effect, CommitSealed):
            self.committed.append(effect)
        if self.ledger is None:
            return tuple(next(self._ids) for _ in effect.records)
        if isinstance(effect, CommitEpochs):
            return self.ledger.commit_epochs(effect.openings, effect.records, effect.now_s)
        return self.ledger.commit_sealed(
            effect.entries, effect.records, effect.now_s, effect.keep_from_s
        )


def told(
    participant: Participant,
    tasks: Iterable[bytes],
    roster: bytes,
    keys: Sequence[KeyAnnouncement],
    now_s: int = T0,
    ledger: Ledger | None = None,
) -> MemoryRuntime:
    runtime = MemoryRuntime(participant, ledger)
    for task in tasks:
        runtime.tell(TaskReceived(task, now_s))
    runtime.tell(RosterReceived(roster, now_s))
    runtime.tell(KeysAnnounced(tuple(keys), now_s))
    runtime.tell(EpochDue(now_s))
    return runtime


def started(
    world: World,
    tasks: Sequence[Task],
    *,
    now_s: int = T0,
    participant: Participant | None = None,
    ledger: Ledger | None = None,
) -> tuple[MemoryRuntime, list[TaskId]]:
    signed = [world.sign_task(task) for task in tasks]
    weights = {t.series: sum(s.weight_millionths for s in t.sections) for t in tasks}
    crowd = max((t.n_min for t in tasks), default=0)
    made, roster = participant or world.participant(), world.roster(weights, crowd=crowd)
    runtime = told(made, signed, roster, world.keys(now_s), now_s, ledger)
    return runtime, [task_id(one[:-128]) for one in signed]


def close_window(
    runtime: MemoryRuntime,
    world: World,
    task: Task,
    tid: TaskId,
    start: int,
    rows: NDArray[np.int64] | None = None,
    *,
    late_s: int = 0,
) -> list[Effect]:
    if rows is None:
        rows = np.zeros((world.hosts, task.d - 2), dtype=np.int64)
    present = np.ones(world.hosts, dtype=np.bool_)
    now_s = start + task.window_s + late_s
    return runtime.tell(WindowClosed(tid, start, rows, present, now_s))


def reports(records: Iterable[SealedRecord]) -> list[Report]:
    cores = [unwrap(r.value, 1 << 22) for r in records]
    return [Report.decode(core) for kind, core in cores if kind is Kind.REPORT]


def epochs(records: Iterable[SealedRecord]) -> list[Epoch]:
    return [Epoch.decode(unwrap(r.value, 1 << 20)[1]) for r in records if r.topic == EPOCHS]


def open_report(world: World, epoch: Epoch, report: Report) -> NDArray[np.int64]:
    """Do what both aggregators would have to do together: open, verify and unmask one report."""
    host = world.identities[world.host_ids.index(bytes(report.host_id))]
    assert verify(host.signing_key.public_bytes, epoch.unsigned(), epoch.signature)
    context = epoch.header.encode()
    k_l = world.leader.hpke.open(epoch.seal_l, labels.SEAL_L + context)
    k_box = derive_box_key(k_l, epoch.hash(), report.task_id)
    plain = open_box(k_box, report.header.report_id, report.aad, report.box)
    if report.scheme is Scheme.LOCAL:
        return np.frombuffer(plain, dtype="<i8").astype(np.int64)
    k_h = world.helper.hpke.open(epoch.seal_h, labels.SEAL_H + context)
    k_mask, k_id = derive_helper_keys(k_h, epoch.hash(), report.task_id)
    tag, nonce = tag_and_nonce(k_id, report.header.encode())
    assert tag == report.tag_h
    mask = np.empty(report.header.d, dtype=np.uint32)
    mask_into(k_mask, nonce, mask)
    return (np.frombuffer(plain, dtype="<u4") - mask).astype(np.int32).astype(np.int64)


def new_ledger(folder: Path, world: World, now_s: int = T0, **changes: object) -> Ledger:
    return Ledger.create(
        folder / "ledger.sqlite", folder / "host.key.fence", hosts=world.host_ids,
        binding=b"machine", now_s=now_s, **changes,  # type: ignore[arg-type]
    )  # fmt: skip
