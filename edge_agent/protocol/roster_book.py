"""Which rosters of the pinned parties are in force, and what they prove of a host that lost its
ledger: a series resumes after all that can have been spent, with the least weight it ever had.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from edge_agent.ledger.ledger_db import ROSTERS_KEPT
from edge_agent.ledger.ledger_records import Crowd, KnownRoster, KnownSeries
from privacy.budget import WEEK_S, WeightChange, change_start, check_weight_changes
from privacy.errors import ParameterError
from privacy.signing import verify
from transport.interface import Transport, create_topics
from wire import labels
from wire.envelope import Signed, unwrap
from wire.epoch import KeyAnnouncement
from wire.fields import HostId
from wire.rejection import Reason, ReportRejected
from wire.roster import PlanMembership, Roster
from wire.task import Task, series_key, series_name
from wire.topics import KEYS, ROSTERS, TASKS, TOPICS

from .epochs import PartyKeys
from .task_check import Pins, verified_task

Plans = Mapping[str, PlanMembership]


@dataclass(slots=True)
class RosterBook:
    """The newest rosters of each pair of aggregators, as far as they speak of these hosts.

    weekly      a roster takes effect at a week start, after the one before it, and gives no weight
                before another's is free; only a deployment's first may be in force at once. False
                in the demo, whose rosters live for minutes
    """

    pins: Pins
    hosts: tuple[HostId, ...]
    weekly: bool = True
    _rosters: dict[PartyKeys, list[KnownRoster]] = field(default_factory=dict)

    def recall(self, known: Iterable[KnownRoster]) -> None:
        """Take over rosters that were verified before a restart, oldest version first, but those
        of a fleet that is pinned no more.
        """
        fleets = self.pins.fleets | {""}  # of before rosters named theirs
        for roster in known:
            if self.pins.fleets and roster.fleet not in fleets:
                continue
            parties = PartyKeys(roster.leader_pk, roster.helper_pk)
            self._rosters.setdefault(parties, []).append(roster)

    def add(self, signed: bytes, windows_s: Mapping[str, int] = {}) -> KnownRoster | None:
        """Verify a roster and keep what concerns these hosts; None: it is known already.
        windows_s   cadences by series key, or by name alone; other Leaders' do not count
        Raises      ReportRejected
        """
        envelope = Signed.decode(signed, labels.ROSTER)
        parties = self._signers(envelope)
        roster = Roster.decode_body(envelope.body)
        kept = self._rosters.setdefault(parties, [])
        if any(known.version == roster.version for known in kept):
            return None
        bound = {kept[-1].fleet} - {""} if kept else set[str]()
        roster.require_fleet(*parties, self.pins.fleets or bound)
        if kept and roster.version < kept[-1].version:
            raise ReportRejected(
                Reason.ROSTER_VERSION, f"version {kept[-1].version} or later", roster.version
            )
        known = self._known(parties, roster)
        if self.weekly:
            _check_start(known, kept)
            named = ((series_name(key), key, s) for key, s in sorted(windows_s.items()))
            own = {n: s for n, key, s in named if key in {n, series_key(n, known.leader_pk)}}
            _check_weights(_unbroken([*kept, known]), own)
        kept.append(known)
        del kept[:-ROSTERS_KEPT]
        return known

    def _signers(self, envelope: Signed) -> PartyKeys:
        message = envelope.unsigned()
        leader = _signer(self.pins.leaders, message, envelope.sig_leader)
        helper = _signer(self.pins.helpers, message, envelope.sig_helper)
        if leader is not None and helper is not None and leader != helper:
            return PartyKeys(leader, helper)
        if leader in self.pins.allow_local and not any(envelope.sig_helper):
            return PartyKeys(leader or b"", b"")
        raise ReportRejected(Reason.ROSTER_SIGNATURE, "a pinned Leader and Helper", "others")

    def _known(self, parties: PartyKeys, roster: Roster) -> KnownRoster:
        by_series: list[Plans] = [{m.series: m for m in plan} for plan in roster.plans]
        plans: dict[bytes, Plans | None] = dict.fromkeys(self.hosts)
        plans |= {e.host_id: by_series[e.plan] for e in roster.entries if e.host_id in plans}
        fleet = "" if roster.fleet is None else roster.fleet.name
        return KnownRoster(
            *parties, roster.version, roster.effective_from, plans, _crowds(roster), fleet
        )

    def in_force(self, parties: PartyKeys, at_s: int) -> KnownRoster | None:
        views = [v for v in self._rosters.get(parties, ()) if v.effective_from <= at_s]
        return views[-1] if views else None

    def newest(self, leader_pk: bytes) -> KnownRoster | None:
        """Give a Leader's roster of the highest version, in force or to come."""
        of_leader = [
            views[-1]
            for parties, views in self._rosters.items()
            if parties.leader_pk == leader_pk and views
        ]
        return max(of_leader, key=lambda view: view.version, default=None)


def _crowds(roster: Roster) -> dict[tuple[str, int], Crowd]:
    by_plan = Counter((entry.plan, entry.operator) for entry in roster.entries)
    operators: dict[tuple[str, int], Counter[str]] = {}
    for (plan, operator), hosts in by_plan.items():
        for membership in roster.plans[plan]:
            operators.setdefault((membership.series, membership.cohort), Counter())[operator] += (
                hosts
            )
    return {key: Crowd(sum(c.values()), max(c.values())) for key, c in operators.items()}


def _check_start(view: KnownRoster, kept: list[KnownRoster]) -> None:
    first = not kept and view.version == 1
    if view.effective_from % WEEK_S and not first:
        raise ReportRejected(
            Reason.ROSTER_CHANGE, "a roster in force from a week start on", view.effective_from
        )
    if kept and view.effective_from <= kept[-1].effective_from:
        raise ReportRejected(
            Reason.ROSTER_CHANGE, f"a start after {kept[-1].effective_from}", view.effective_from
        )


def _unbroken(views: list[KnownRoster]) -> list[KnownRoster]:
    """Give the last versions that follow one another. What a host missed while it was away may
    have made room; there the Helper, who saw it, and the host's ledger hold the rule.
    """
    first = len(views) - 1
    while first and views[first].version == views[first - 1].version + 1:
        first -= 1
    return views[first:]


def _check_weights(views: list[KnownRoster], windows_s: Mapping[str, int]) -> None:
    """Hold each host's weights to the rule of changes: room first, a week later the increase."""
    for host in views[-1].plans:
        weights = [
            {name: m.weight_millionths for name, m in (view.plans.get(host) or {}).items()}
            for view in views
        ]
        changes = [
            change
            for before, after, view in zip(weights, weights[1:], views[1:], strict=False)
            for change in _changes(before, after, view.effective_from, windows_s)
        ]
        try:
            check_weight_changes(weights[0], changes, max(windows_s.values(), default=0))
        except ParameterError as error:
            raise ReportRejected(Reason.ROSTER_CHANGE, error.expected, error.got) from error


def _changes(
    before: Mapping[str, int], after: Mapping[str, int], start_s: int, windows_s: Mapping[str, int]
) -> Iterable[WeightChange]:
    for series in sorted({*before, *after}):
        weight = after.get(series, 0)
        if weight != before.get(series, 0):
            window_s = windows_s.get(series, 1)
            yield WeightChange(series, window_s, change_start(window_s, start_s), weight)


def _signer(candidates: frozenset[bytes], message: bytes, signature: bytes) -> bytes | None:
    return next((pk for pk in candidates if verify(pk, message, signature)), None)


_MAX_BYTES = {topic.name: topic.max_bytes for topic in TOPICS}


@dataclass(frozen=True, slots=True)
class SignedPast:
    """What the log proves of a host's past; the latest beginning of a signed sealing key."""

    known: tuple[KnownSeries, ...]
    signed_time_s: int


def read_signed_past(transport: Transport, host: HostId, pins: Pins) -> SignedPast:
    """Read tasks, rosters and keys that pinned parties signed. Raises TransportUnavailable."""
    weights: dict[str, int] = {}
    tasks: dict[str, Task] = {}
    signed_time_s = 0
    rosters = RosterBook(pins, (host,), weekly=False)
    for topic, core in _cores(transport):
        try:
            if topic == ROSTERS:
                _take_roster(rosters, core, weights)
            elif topic == TASKS:
                task = verified_task(Signed.decode(core, labels.TASK), pins)
                newest = tasks.setdefault(task.series_key, task)
                if task.version >= newest.version:
                    tasks[task.series_key] = task
            else:
                signed_time_s = max(signed_time_s, _signed_time(core, pins))
        except ReportRejected:
            continue
    known = tuple(
        KnownSeries(key, tasks[key].version, weight, tasks[key].window_s)
        for key, weight in sorted(weights.items())
        if key in tasks
    )
    return SignedPast(known, signed_time_s)


def _take_roster(rosters: RosterBook, core: bytes, weights: dict[str, int]) -> None:
    known = rosters.add(core)
    if known is None:
        return
    for plan in known.plans.values():
        for membership in (plan or {}).values():
            key = series_key(membership.series, known.leader_pk)
            least = weights.get(key, membership.weight_millionths)
            weights[key] = min(membership.weight_millionths, least)


def _signed_time(core: bytes, pins: Pins) -> int:
    key = KeyAnnouncement.decode(core)
    pinned = key.party_pk in pins.leaders | pins.helpers
    good = pinned and verify(key.party_pk, key.unsigned(), key.signature)
    return key.not_before if good else 0


def _cores(transport: Transport) -> Iterator[tuple[str, bytes]]:
    create_topics(transport)
    consumer = transport.consumer(f"recover-{secrets.token_hex(6)}", (ROSTERS, TASKS, KEYS))
    try:
        while records := consumer.poll(100, 1.0):
            for record in records:
                try:
                    yield record.topic, unwrap(record.value, _MAX_BYTES[record.topic])[1]
                except ReportRejected:
                    continue
    finally:
        consumer.close()
