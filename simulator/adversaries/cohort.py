"""A small cohort whose hosts may do what they like, before a production Leader and Helper.

Hosts use the production epochs, encoding, noise and sealing, but no `Participant`: that would keep
them honest. Records and messages go through the log and the parties' ports, which refuse them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import TaskPlan, build_task
from aggregator.protocol.interfaces import HelperPort
from aggregator.statistics.statistics import reserved_cells
from edge_agent.protocol.epochs import HostEpoch, SealingKeys, open_epoch
from edge_agent.protocol.seal_report import Sealing, seal_reports
from edge_agent.windows.encode import encode_rows
from privacy.calibrate import DELTA_1E12, EPSILON_MILLIONTHS
from privacy.noise_table import SeededBytes, SeededSampler
from simulator.engine.exact import ExactParties
from simulator.engine.interface import Settled
from simulator.simulated_hosts import memberships, new_hosts, roster_of
from transport.embedded.embedded import EmbeddedLog
from transport.interface import Producer
from transport.process.supervision import Closing
from wire.catalogue import Catalogue
from wire.envelope import Kind, wrap
from wire.roster import FleetName
from wire.task import CHECK_WORDS, DEMO_DOMAIN, Task
from wire.topics import EPOCHS, REPORTS, epoch_key, report_key

WINDOW_S: Final = 60
START_S: Final = 1_770_854_400
_SERIES: Final = "minute"
_LATENESS_S: Final = 30
_SPAN_S: Final = 6 * 3600
WAITING: Final = "waiting"
"""A window that has not ended: reports or the Helper may still come."""


@dataclass(frozen=True, slots=True)
class CohortPlan:
    """A cohort of equal hosts; n_min is 0.8 and t a tenth of them, as in the shipped plan.

    operators   their hosts take turns
    weights     section -> millionths of the budget
    """

    hosts: int = 40
    operators: int = 8
    weights: Mapping[str, int] = field(
        default_factory=lambda: {"kernel_mix": 300_000, "incidents": 100_000}
    )
    epsilon_millionths: int = EPSILON_MILLIONTHS
    windows: int = 60
    seed: int = 11

    @property
    def n_min(self) -> int:
        return -(-self.hosts * 8 // 10)


SMALL: Final = CohortPlan()


Sealed = tuple[int, bytes]
"""(host, report)."""


class Cohort(Closing):
    """Opens epochs, seals what it is told to, and lets both parties settle the windows."""

    def __init__(
        self,
        plan: CohortPlan = SMALL,
        wrap_helper: Callable[[ExactParties], Callable[[HelperPort], HelperPort]] | None = None,
    ) -> None:
        """Enrol the hosts; `wrap_helper` stands between the Leader and its Helper."""
        self.plan, self.catalogue = plan, Catalogue.load()
        self.parties = ExactParties()
        self.hosts = new_hosts(plan.hosts)
        self.task = _make_task(plan, self.catalogue, self.parties.public_keys)
        self._folder = TemporaryDirectory(prefix="pointillist-cohort-")
        self._given_up: dict[int, str] = {}
        folder = Path(self._folder.name)
        self._log = EmbeddedLog(folder / "log")
        between = wrap_helper(self.parties) if wrap_helper else lambda port: port
        span = START_S, START_S + _SPAN_S
        members = (
            (host.signing_key.public_bytes, number % plan.operators, ((0, 8),))
            for number, host in enumerate(self.hosts)
        )
        fleet = FleetName(*self.parties.public_keys, "simulated")
        roster = roster_of(members, memberships([self.task]), fleet=fleet)
        papers, ids = self.parties.start([self.task], roster, self._log, folder, span, between)
        self.task_id = ids[_SERIES]
        leader, helper = papers.announcements
        self._keys = SealingKeys(leader, helper)
        self._producer: Producer = self._log.producer()
        self._epochs: list[HostEpoch] = []
        self._ledger = 0
        self._sampler = SeededSampler(plan.seed, "noise")
        self._rounding = SeededBytes(plan.seed, "rounding")
        self.restart(range(plan.hosts))

    # What hosts do

    def restart(
        self, hosts: Sequence[int], now_s: int = START_S, skew_s: int = 0, ledger_back: int = 0
    ) -> None:
        """Open fresh epochs, as a process start does, and send them.

        ledger_back     their ledger was set back by so many epochs: a restored disk
        """
        self._ledger += 1
        if not self._epochs:
            self._epochs = [None] * len(self.hosts)  # type: ignore[list-item]
        for number in hosts:
            host = self.hosts[number]
            counter = max(self._ledger - ledger_back, 0)
            state, raw = open_epoch(host, self._keys, 1, counter, now_s + skew_s, os.urandom)
            self._epochs[number] = state
            key = epoch_key(host.host_id, state.header.epoch_id)
            self._producer.send(EPOCHS, key, wrap(Kind.EPOCH, raw))
        self._producer.flush()

    def encode(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return encode_rows(self.task, rows, self._rounding)

    def noise(self, hosts: int) -> NDArray[np.int64]:
        return self._sampler.sample(hosts, self.task.sigma_vector_1024())

    def seal(
        self, vectors: NDArray[np.int64], window_s: int, hosts: Sequence[int] | None = None
    ) -> list[Sealed]:
        """Seal any vectors, int64[len(hosts), d]; nothing is checked here."""
        chosen = list(range(len(self.hosts))) if hosts is None else list(hosts)
        sealings = [Sealing(self.hosts[i].host_id, 0, self._epochs[i]) for i in chosen]
        scheme = self.task.scheme
        sealed = seal_reports(self.task_id, scheme, window_s, sealings, vectors, os.urandom)
        return list(zip(chosen, sealed, strict=True))

    def send(self, sealed: Sequence[Sealed]) -> None:
        for host, report in sealed:
            key = report_key(self.hosts[host].host_id)
            self._producer.send(REPORTS, key, wrap(Kind.REPORT, report))
        self._producer.flush()

    def send_raw(self, key: bytes, report: bytes) -> None:
        self._producer.send(REPORTS, key, wrap(Kind.REPORT, report))
        self._producer.flush()

    # What the parties make of it

    def receive(self, now_s: float) -> None:
        self.parties.now_s = now_s
        while self.parties.read(0.0):
            pass

    def settle(self, window_s: int, at_s: float | None = None) -> Settled:
        before = self._refusals()
        end_s = window_s + WINDOW_S
        self.receive(end_s + 1.0)
        released, told = self.parties.settle(at_s or end_s + self.task.lateness_s + 1.0)
        counts = self._refusals()
        counts.subtract(before)
        refused = {reason: count for reason, count in counts.items() if count > 0}
        own = next((release for release in released if release.window_start_s == window_s), None)
        if own is not None:
            return Settled(window_s, own.vector, own.n, refused, "")
        self._given_up.update({suppressed.key.window: suppressed.reason for suppressed in told})
        return Settled(window_s, None, 0, refused, self._given_up.get(window_s, WAITING))

    def given_up(self) -> Mapping[int, str]:
        """Let every window's retention pass; why windows have no release, by their start."""
        _, told = self.parties.settle(self.task.last_window + WINDOW_S + self.task.retention_s)
        self._given_up.update({suppressed.key.window: suppressed.reason for suppressed in told})
        return self._given_up

    def _refusals(self) -> Counter[str]:
        leader, helper = self.parties.leader, self.parties.helper
        return Counter(leader.rejected) + helper.refused + helper.cleared

    def close(self) -> None:
        self._producer.close()
        self.parties.close()
        self._log.close()
        self._folder.cleanup()


def honest_rows(cohort: Cohort, hosts: int, seed: int) -> NDArray[np.int64]:
    """Draw int64[hosts, k]: plain rows of named cells, within every bound."""
    task = cohort.task
    rng = np.random.default_rng(seed)
    rows = np.zeros((hosts, task.d - CHECK_WORDS), dtype=np.int64)
    for spec, place in zip(task.sections, task.slices().values(), strict=True):
        part = rows[:, place.start - CHECK_WORDS : place.stop - CHECK_WORDS]
        section = cohort.catalogue.section(spec.name)
        named = np.setdiff1d(np.arange(section.axis_cells), reserved_cells(section))
        if spec.m:
            part[np.arange(hosts), rng.choice(named, hosts)] = 1
        else:
            shares = rng.dirichlet(np.full(named.size, 0.5), hosts)
            part[:, named] = np.floor(shares * (spec.l1_bound // 2))
    return rows


def _make_task(plan: CohortPlan, catalogue: Catalogue, parties: tuple[bytes, bytes]) -> Task:
    largest = -(-plan.hosts // plan.operators)
    return build_task(
        catalogue,
        TaskPlan(
            series=_SERIES,
            domain=DEMO_DOMAIN,
            window_s=WINDOW_S,
            first_window=START_S,
            last_window=START_S + WINDOW_S * (plan.windows - 1),
            lateness_s=_LATENESS_S,
            retention_s=_SPAN_S,
            weights=dict(plan.weights),
            rates=dict.fromkeys(plan.weights, 1_000_000),
            gpus_per_host=8,
            epsilon_millionths=plan.epsilon_millionths,
            delta_1e12=DELTA_1E12,
            n_max=plan.hosts,
            n_min=plan.n_min,
            t=max(-(-plan.hosts // 10), largest),
            largest_operator=largest,
            min_operators=3,
            leader_pk=parties[0],
            helper_pk=parties[1],
            expiry=START_S + 10 * _SPAN_S,
        ),
    )
