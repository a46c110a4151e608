"""Hosts that lie and a Leader that attacks its Helper: what is refused, what a statistic moves.

Played in a minute of a small cohort, of which shares of a scenario are shares too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.interfaces import BatchReply, HelperPort
from aggregator.statistics.statistics import reserved_cells
from privacy.calibrate import SIGMA_UNIT
from simulator.engine.exact import ExactParties
from simulator.scenario import Scenario
from wire.batch import Batch, SignedBatch
from wire.task import CHECK_WORDS, SectionSpec

from .cohort import SMALL, START_S, WINDOW_S, Cohort, CohortPlan, Sealed, honest_rows
from .lossy_network import FaultResult, face

Vectors = NDArray[np.int64]

_ABSURD: Final = 1_000
"""How many times its bound a lying host claims to have measured."""

_FAR_STEPS: Final = 10**6
_SPREAD: Final = 2.0
"""Deviations of a word's noise that one host adds to every place without a class."""


@dataclass(frozen=True, slots=True)
class Movement:
    """One lie told by `liars` of `hosts`, against the same cohort without it.

    moved           steps by which the section's first cell differs from the accepted hosts' sum
    bound           steps: liars x what one host may add
    standard_error  steps, of the released cell: what the noise alone does
    accepted        hosts in the release, 0 without one
    bounded         whether the protocol bounds this lie at all
    elsewhere       most that another cell differs, steps
    """

    lie: str
    liars: int
    hosts: int
    section: str
    moved: float
    bound: float
    standard_error: float
    accepted: int
    bounded: bool
    elsewhere: int
    refused: Mapping[str, int]
    reason: str


@dataclass(frozen=True, slots=True)
class Honest:
    """What every host would report, int64[hosts, d]; the first `liars` of them lie."""

    steps: Vectors
    noise: Vectors
    liars: int

    @property
    def vectors(self) -> Vectors:
        return self.steps + self.noise


HostAttack = Callable[[Cohort, Honest, SectionSpec, int], list[Sealed]]
"""From what is honest, the section and the place of its first cell to the reports that are sent."""


def _out_of_range(cohort: Cohort, honest: Honest, spec: SectionSpec, at: int) -> list[Sealed]:
    """The agent is honest, its sources are not: readings far beyond every bound."""
    rows = np.zeros((honest.liars, cohort.task.d - CHECK_WORDS), dtype=np.int64)
    rows[:, at - CHECK_WORDS] = _ABSURD * spec.l1_bound
    changed = honest.vectors
    changed[: honest.liars] = cohort.encode(rows) + honest.noise[: honest.liars]
    return cohort.seal(changed, _WINDOW)


def _adding(cohort: Cohort, honest: Honest, at: int, steps: int) -> list[Sealed]:
    """The agent itself was replaced: it adds what it likes, and the mask hides it."""
    changed = honest.vectors
    changed[: honest.liars, at] += steps
    return cohort.seal(changed, _WINDOW)


def _spread(cohort: Cohort, honest: Honest, spec: SectionSpec, at: int) -> list[Sealed]:
    """A replaced agent adds what noise may do to a word, up and down, where no class is yet."""
    empty = at + np.array(reserved_cells(cohort.catalogue.section(spec.name)))
    signs = np.where(np.arange(empty.size) % 2, 1, -1)
    changed = honest.vectors
    noise = spec.sigma_1024 / SIGMA_UNIT * np.sqrt(len(changed))
    changed[0, empty] += (_SPREAD * signs * noise).astype(np.int64)
    return cohort.seal(changed, _WINDOW)


def _poisoned_share(cohort: Cohort, honest: Honest, _spec: SectionSpec, _at: int) -> list[Sealed]:
    """Check words that are not 1, to spoil the sum of everybody."""
    changed = honest.vectors
    changed[: honest.liars, :CHECK_WORDS] = 7
    return cohort.seal(changed, _WINDOW)


def _replay(cohort: Cohort, honest: Honest, _spec: SectionSpec, _at: int) -> list[Sealed]:
    """The report of the window before, again."""
    liars, vectors = honest.liars, honest.vectors
    old = cohort.seal(vectors[:liars], _WINDOW - WINDOW_S, range(liars))
    return [*old, *cohort.seal(vectors[liars:], _WINDOW, range(liars, len(vectors)))]


def _forged_id(cohort: Cohort, honest: Honest, _spec: SectionSpec, _at: int) -> list[Sealed]:
    """Reports under the names of honest hosts, ahead of theirs; and under one that nobody has."""
    liars, reports = honest.liars, cohort.seal(honest.vectors, _WINDOW)
    victims = [liars + number % max(len(reports) - liars, 1) for number in range(liars)]
    forged = [
        (victim, bytes(cohort.hosts[victim].host_id) + report[16:])
        for victim, (_, report) in zip(victims, reports[:liars], strict=True)
    ]
    unknown = bytes(16)
    for _, report in reports[:liars]:
        cohort.send_raw(unknown, unknown + report[16:])
    return [*forged, *reports[liars:]]


def _second_report(cohort: Cohort, honest: Honest, spec: SectionSpec, at: int) -> list[Sealed]:
    """Two reports of one window: the second with more in it."""
    reports, more = cohort.seal(honest.vectors, _WINDOW), honest.vectors[: honest.liars]
    more[:, at] += spec.cap_steps
    return [*reports, *cohort.seal(more, _WINDOW, range(honest.liars))]


_WINDOW: Final = START_S + WINDOW_S
HOST_ATTACKS: Final[Mapping[str, HostAttack]] = {
    "out_of_range": _out_of_range,
    "beyond_bound": lambda c, honest, spec, at: _adding(c, honest, at, 10 * spec.cap_steps),
    "far_beyond": lambda cohort, honest, _, at: _adding(cohort, honest, at, _FAR_STEPS),
    "spread": _spread,
    "replay": _replay,
    "forged_id": _forged_id,
    "poisoned_share": _poisoned_share,
    "second_report": _second_report,
}
_REFUSED: Final = frozenset({"replay", "forged_id", "poisoned_share"})
"""Of these the liars' reports may not be in the sum."""
UNBOUNDED: Final = frozenset({"beyond_bound"})
"""Masks hide a replaced agent's vector from everybody: range proofs would bound it (not built)."""


def move_statistic(lie: str, liars: int, plan: CohortPlan = SMALL) -> Movement:
    """Let k hosts of a cohort lie in one window, and compare its release with the honest sum.

    Raises      ValueError for a lie not of HOST_ATTACKS, or more liars than hosts
    """
    if lie not in HOST_ATTACKS or not 0 <= liars <= plan.hosts:
        raise ValueError(
            f"expected one of {list(HOST_ATTACKS)} by 0 .. {plan.hosts}, got {lie}, {liars}"
        )
    with Cohort(plan) as cohort:
        spec = cohort.task.sections[0]
        start = cohort.task.slices()[spec.name].start
        rows = honest_rows(cohort, plan.hosts, plan.seed)
        honest = Honest(cohort.encode(rows), cohort.noise(plan.hosts), liars)
        # The window before is settled first, so that a replay of it has something to repeat.
        cohort.send(cohort.seal(honest.vectors, START_S))
        cohort.settle(START_S)
        cohort.send(HOST_ATTACKS[lie](cohort, honest, spec, start))
        settled = cohort.settle(_WINDOW)
    moved, elsewhere = 0.0, 0
    if settled.released is not None:
        counted = honest.vectors[liars if lie in _REFUSED else 0 :]
        difference = settled.released - counted.sum(axis=0)
        moved = float(difference[start])
        elsewhere = int(np.abs(np.delete(difference, start)).max())
    return Movement(
        lie,
        liars,
        plan.hosts,
        spec.name,
        moved,
        float(liars * spec.cap_steps),
        spec.sigma_1024 / SIGMA_UNIT * float(np.sqrt(max(settled.n, 1))),
        settled.n,
        lie not in UNBOUNDED,
        elsewhere,
        settled.refused,
        settled.reason,
    )


LEADER_ATTACKS: Final = (
    "all_colluders", "forged_host", "other_signature", "replay_batch", "split_batch", "drop_hosts",
    "alter_share",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeaderAttack:
    """What one attack came to.

    answer      "share", or the reason of the Helper's refusal
    cleared     reason -> hosts that the Helper left out of the attack's sum
    sums        different sums of this window that the Leader got: two would give their difference
    released    the honest window was released, with n hosts
    """

    trick: str
    answer: str
    cleared: Mapping[str, int]
    sums: int
    released: bool
    n: int


def play_leader_attack(trick: str, plan: CohortPlan = SMALL) -> LeaderAttack:
    """Let the Leader try one of LEADER_ATTACKS in a window of an otherwise honest cohort."""
    if trick not in LEADER_ATTACKS:
        raise ValueError(f"expected one of {', '.join(LEADER_ATTACKS)}, got {trick}")
    port: list[_AttackingLeader] = []

    def between(parties: ExactParties) -> Callable[[HelperPort], HelperPort]:
        def wrap(inner: HelperPort) -> HelperPort:
            port.append(_AttackingLeader(inner, parties, trick))
            return port[0]

        return wrap

    with Cohort(plan, between) as cohort:
        port[0].colluders = cohort.task.t
        vectors = cohort.encode(honest_rows(cohort, plan.hosts, plan.seed))
        vectors += cohort.noise(plan.hosts)
        cohort.send(cohort.seal(vectors, START_S))
        settled = cohort.settle(START_S)
        leader, done = port[0], settled.released is not None
        answer = ", ".join(settled.refused) if trick == "alter_share" else leader.answer
        return LeaderAttack(trick, answer, leader.cleared, len(leader.shares), done, settled.n)


class _AttackingLeader:
    """The Leader's own port, in the hands of a Leader that also asks for something else."""

    def __init__(self, inner: HelperPort, parties: ExactParties, trick: str) -> None:
        self._inner, self._parties, self._attack = inner, parties, trick
        self.colluders = 0
        self.answer = "not tried"
        self.cleared: Mapping[str, int] = {}
        self.shares: set[bytes] = set()
        self.submit_epochs, self.submit_release = inner.submit_epochs, inner.submit_release
        self.status = inner.status

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        honest = SignedBatch.decode(signed_batch).batch
        first = self._attack not in {"replay_batch", "split_batch", "alter_share"}
        if not epochs_complete:
            # The Helper has to know the epochs first: the honest question teaches it.
            return self._inner.submit_batch(signed_batch, epochs_complete=False)
        if first:
            self._try(honest, signed_batch)
        reply = self._inner.submit_batch(signed_batch, epochs_complete=True)
        self._note(reply)
        if self._attack == "alter_share" and reply.share:
            return replace(reply, share=_flipped(reply.share))
        if not first and reply.share:
            self._try(honest, signed_batch)
        return reply

    def _try(self, honest: Batch, signed: bytes) -> None:
        reply = self._inner.submit_batch(self._asked(honest, signed), epochs_complete=True)
        self.answer = "share" if reply.share else reply.refusal or "need_epochs"
        self.cleared = dict(reply.cleared)
        self._note(reply)

    def _note(self, reply: BatchReply) -> None:
        if reply.share:
            self.shares.add(reply.share)

    def _asked(self, honest: Batch, signed: bytes) -> bytes:
        entries = honest.entries
        match self._attack:
            case "replay_batch":
                return signed
            case "all_colluders":
                entries = entries[: self.colluders]
            case "split_batch":
                entries = entries[1:]
            case "drop_hosts":
                entries = entries[: len(entries) - 1]
            case "forged_host":  # two hosts with a tag that they never made
                entries = entries.copy()
                entries["tag_h"][:2] = bytes(16)
            case "other_signature":
                return SignedBatch(honest, bytes(64)).encode()
            case _:
                pass
        batch = replace(honest, entries=entries)
        return SignedBatch(batch, self._parties.leader_key.sign(batch.unsigned())).encode()


def _flipped(share: bytes) -> bytes:
    """Change the last word of the mask sum, ahead of the Helper's signature."""
    place = len(share) - 65
    return share[:place] + bytes([share[place] ^ 1]) + share[place + 1 :]


@dataclass(frozen=True, slots=True)
class Played:
    lies: tuple[Movement, ...]
    tricks: tuple[LeaderAttack, ...]
    faults: tuple[FaultResult, ...]


def play_scenario(scenario: Scenario, plan: CohortPlan = SMALL) -> Played:
    asked = scenario.adversaries
    liars = max(round(asked.lying_share * plan.hosts), 1) if asked.lying_share else 0
    lies = tuple(move_statistic(lie, liars, plan) for lie in asked.lies if liars)
    tricks = tuple(play_leader_attack(trick, plan) for trick in asked.leader)
    largest = max(scenario.operators) / sum(scenario.operators)
    faults = {
        "duplicates": asked.duplicate_share,
        "reordering": asked.reorder_share,
        "helper_loss": asked.helper_lost_share,
        "clock_skew": asked.clock_skew_s,
        "mass_restart": largest if asked.mass_restart_hour >= 0 else 0.0,
        "dropout": scenario.dropout.share,
    }
    faced = tuple(face(fault, size, plan=plan) for fault, size in faults.items() if size)
    return Played(lies, tricks, faced)
