"""From a plan and the catalogue to a checked task; tasks and rosters as signed files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from aggregator.protocol.directory import PinnedParties
from aggregator.protocol.interfaces import BODY_RETENTION_S
from privacy import calibrate
from privacy.calibrate import WEEK_S
from privacy.errors import ParameterError
from privacy.plan import HELPER_OUTAGE_S, Plan, PlannedTask
from privacy.signing import SigningKey, verify
from transport.files.own_names import files_ending
from wire import labels
from wire.catalogue import Catalogue, CatalogueError, Section
from wire.catalogue_match import describe, match_task
from wire.envelope import SIGNED_OVERHEAD_BYTES, Signed
from wire.fields import (
    MAX_EPOCH_S,
    MAX_ROSTER_BODY,
    NO_SIGNATURE,
    ROSTER_BEGINS_DAYS,
    Scheme,
    TaskId,
    need_time,
    need_within,
    task_id,
)
from wire.rejection import Reason, ReportRejected
from wire.roster import EntryAnswer, Roster
from wire.task import DEMO_DOMAIN, SectionSpec, Task, TaskTerms

from .roster_review import NO_EVIDENCE, RosterEvidence, review_roster

FULL_RATE: Final = calibrate.MILLION

# Lateness and retention of a cadence: the longest window for which they hold, in seconds.
_CADENCES: Final = (
    (3600, 30, 6 * 3600),
    (86_400, 2 * 3600, 8 * 3600),
    (1 << 62, 24 * 3600, 30 * 3600),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan(TaskTerms):
    """What a person decides about a task; the rest follows from the catalogue.

    weights        section name -> weight in millionths of a host's budget
    gpus_per_host  the largest GPU count of a host in the cohort: bounds are per host
    rates          section name -> measurement rate in millionths, where it is not all windows
    t              None: 10 % of the roster, or the largest operator when that is more
    """

    version: int = 1
    domain: str = "fleet"
    scheme: Scheme = Scheme.MASKED
    lateness_s: int | None = None
    retention_s: int | None = None
    weights: Mapping[str, int]
    rates: Mapping[str, int] = field(default_factory=dict)
    gpus_per_host: int
    epsilon_millionths: int = calibrate.EPSILON_MILLIONTHS
    delta_1e12: int = calibrate.DELTA_1E12
    t: int | None = None
    largest_operator: int = 0
    min_operators: int = 3
    helper_pk: bytes = b""


def task_plan(
    plan: Plan, task: PlannedTask, windows: range, parties: tuple[bytes, bytes], **changes: Any
) -> TaskPlan:
    """Take from a plan what one of its tasks asks for; any field of the answer may be changed.

    windows     starts of its windows, Unix seconds
    parties     identity keys of Leader and Helper, the second b"" in scheme `local`
    """
    last = windows[-1]
    asked = TaskPlan(
        series=task.series,
        scheme=Scheme(plan.scheme),
        window_s=task.window_s,
        first_window=windows[0],
        last_window=last,
        lateness_s=task.lateness_s,
        retention_s=task.retention_s,
        weights={section.name: section.weight_millionths for section in task.sections},
        rates={section.name: section.rate_millionths for section in task.sections},
        gpus_per_host=plan.gpus_per_host,
        epsilon_millionths=plan.epsilon_millionths,
        delta_1e12=plan.delta_1e12,
        n_max=plan.hosts,
        n_min=plan.n_min,
        t=plan.t,
        min_operators=plan.min_operators,
        leader_pk=parties[0],
        helper_pk=parties[1],
        expiry=last + task.window_s + task.retention_s,
    )
    return replace(asked, **changes)


def windows_from(task: PlannedTask, start: int, weeks: int) -> range:
    """Starts of a planned task's windows from `start` on; of an open-ended one, for so long."""
    first = -(-start // task.window_s) * task.window_s
    windows = task.windows or max(1, weeks * WEEK_S // task.window_s)
    return range(first, first + windows * task.window_s, task.window_s)


def build_task(catalogue: Catalogue, plan: TaskPlan) -> Task:
    """Resolve every section; raises ParameterError naming the bound that does not hold."""
    corrupted = plan.t
    if corrupted is None:
        corrupted = max(-(-plan.n_max // 10), plan.largest_operator)
    _check_cohort(plan, corrupted)
    lateness_s, retention_s = _times(plan)
    task = Task(
        **{term.name: getattr(plan, term.name) for term in fields(TaskTerms)},
        lateness_s=lateness_s,
        retention_s=retention_s,
        sections=_sections(catalogue, plan, corrupted),
        mu_1e9=calibrate.gdp_mu_1e9(plan.epsilon_millionths, plan.delta_1e12),
        t=corrupted,
        catalogue_hash=catalogue.hash,
    )
    return Task.decode_body(task.encode_body())


def _check_cohort(plan: TaskPlan, corrupted: int) -> None:
    if plan.largest_operator > corrupted:
        least = f"at least the largest operator ({plan.largest_operator})"
        raise ParameterError("corrupted hosts t", least, corrupted)
    calibrate.honest_hosts(plan.n_max, plan.n_min, corrupted)
    if not plan.weights:
        raise ParameterError("sections", "at least one", 0)
    calibrate.check_weights(list(plan.weights.values()))
    if (plan.scheme is Scheme.LOCAL) != (plan.helper_pk == b""):
        raise ParameterError("helper_pk", "a Helper's key, and none in scheme local", plan.scheme)
    if plan.domain == "fleet" and plan.scheme is Scheme.MASKED and plan.min_operators < 3:
        raise ParameterError("min_operators of a fleet task", "at least 3", plan.min_operators)


def _times(plan: TaskPlan) -> tuple[int, int]:
    if plan.window_s < 1 or plan.last_window < plan.first_window:
        got = plan.first_window, plan.last_window
        raise ParameterError("windows", "window_s >= 1 and first <= last", got)
    for window in (plan.first_window, plan.last_window):
        need_time(window, "a window's start")
    lateness_s, retention_s = next(
        (late, kept) for longest, late, kept in _CADENCES if plan.window_s <= longest
    )
    lateness_s = lateness_s if plan.lateness_s is None else plan.lateness_s
    retention_s = retention_s if plan.retention_s is None else plan.retention_s
    least = 0 if plan.domain == DEMO_DOMAIN else MAX_EPOCH_S + lateness_s + HELPER_OUTAGE_S
    if not max(least, lateness_s) <= retention_s <= BODY_RETENTION_S - 86_400:
        expected = f"{max(least, lateness_s)} s (epoch, lateness, Helper outage) to 6 days"
        raise ParameterError("retention", expected, retention_s)
    over_s = plan.last_window + plan.window_s + retention_s
    if plan.expiry < over_s:
        expected = f"{over_s} (the retention of the last window) or later"
        raise ParameterError("expiry", expected, plan.expiry)
    return lateness_s, retention_s


def _sections(catalogue: Catalogue, plan: TaskPlan, corrupted: int) -> tuple[SectionSpec, ...]:
    windows = (plan.last_window - plan.first_window) // plan.window_s + 1
    touched = calibrate.windows_touched(plan.window_s, windows)
    honest = 1 if plan.scheme is Scheme.LOCAL else plan.n_min - corrupted
    mu = calibrate.gdp_mu_1e9(plan.epsilon_millionths, plan.delta_1e12)
    found = []
    for name, weight in plan.weights.items():
        section = catalogue.section(name)
        cap, bound, q = section.resolve(plan.gpus_per_host, plan.window_s)
        delta_sq = calibrate.sensitivity_sq_steps(cap, bound, q)
        sigma = calibrate.sigma_local_1024(delta_sq, touched, weight, mu, honest)
        calibrate.check_catalogue_sigma(sigma)
        if plan.scheme is Scheme.MASKED:
            calibrate.check_modulus(plan.n_max, cap // q, sigma)
        terms = section.id, name, section.kind, section.length, cap, bound, section.m, q
        rate = plan.rates.get(name, FULL_RATE)
        found.append(SectionSpec(*terms, weight, rate, sigma))
    return tuple(found)


def sign_task(task: Task, leader: SigningKey, helper: SigningKey | None) -> tuple[TaskId, bytes]:
    """Sign a task by both parties at once: for a demo, a test or a fleet of one machine.

    helper      None in scheme `local`
    Returns     (task_id, Signed bytes)
    """
    signed = sign_body(labels.TASK, task.encode_body(), leader, helper)
    return task_id(signed.unsigned()), signed.encode()


def sign_roster(roster: Roster, leader: SigningKey, helper: SigningKey | None) -> bytes:
    return sign_body(labels.ROSTER, roster.encode_body(), leader, helper).encode()


def sign_body(label: bytes, body: bytes, leader: SigningKey, helper: SigningKey | None) -> Signed:
    message = Signed(label, body).unsigned()
    second = NO_SIGNATURE if helper is None else helper.sign(message)
    return Signed(label, body, leader.sign(message), second)


def countersign(signed_bytes: bytes, label: bytes, helper: SigningKey) -> bytes:
    """Add the Helper's signature to bytes that carry the Leader's; the caller has checked them."""
    signed = Signed.decode(signed_bytes, label)
    signature = helper.sign(signed.unsigned())
    return Signed(label, signed.body, signed.sig_leader, signature).encode()


def label_of(content: bytes) -> bytes:
    """Which of the signed messages a file holds; raises ReportRejected for any other."""
    for label in (labels.TASK, labels.ROSTER, labels.ENTRY_ANSWER):
        if content[:16] == label:
            return label
    raise ReportRejected(Reason.VERSION, "a task, roster or entry answer", content[:16].hex())


def leader_sign(content: bytes, leader: SigningKey) -> bytes:
    """Put the Leader's signature under a draft; a Helper's signature does not survive it."""
    signed = Signed.decode(content, label_of(content))
    signature = leader.sign(signed.unsigned())
    return Signed(signed.label, signed.body, signature).encode()


def check_and_countersign(
    content: bytes,
    leader_pk: bytes,
    helper: SigningKey,
    *,
    evidence: RosterEvidence = NO_EVIDENCE,
    catalogue: Catalogue | None = None,
    now_s: float | None = None,
    tell: Callable[[Mapping[str, int | float]], None] = lambda _: None,
) -> tuple[bytes, dict[str, Any]]:
    """Check the Leader's signature and the contents, then sign.

    evidence    what a roster is held against
    catalogue   what a task's sections are held against; without it the shipped one
    tell        is given a roster's counts before anything is signed or refused for them
    Returns     (signed bytes, what was signed, in words)
    Raises      ReportRejected, ParameterError
    """
    now_s = time.time() if now_s is None else now_s
    label = label_of(content)
    signed = Signed.decode(content, label)
    if not verify(leader_pk, signed.unsigned(), signed.sig_leader):
        reason = Reason.TASK_SIGNATURE if label == labels.TASK else Reason.ROSTER_SIGNATURE
        raise ReportRejected(reason, "the pinned Leader's signature", "another")
    said: dict[str, Any] = {}
    body = _decoded(label, signed.body)
    if isinstance(body, Task):
        catalogue = catalogue or Catalogue.load()
        check_task(body, catalogue)
        body.need_timely(now_s)
        if (body.leader_pk, body.helper_pk) != (leader_pk, helper.public_bytes):
            raise ReportRejected(Reason.TASK_SIGNATURE, "this Leader and Helper", "others")
    elif isinstance(body, Roster):
        parties = PinnedParties(leader_pk, helper.public_bytes, evidence.fleet)
        said |= review_roster(body, evidence, parties, now_s, tell)
    if not isinstance(body, Task):
        need_within(body.effective_from, now_s, ROSTER_BEGINS_DAYS, "effective_from")
    both = countersign(content, label, helper)
    return both, _summary(Signed.decode(both, label), body, catalogue) | said


def check_task(task: Task, catalogue: Catalogue) -> None:
    """Hold a task to its catalogue, and recompute noise from the task's own numbers.

    Raises      ReportRejected (catalogue), ParameterError naming the bound
    """
    try:
        match_task(catalogue, task)
    except CatalogueError as error:
        raise ReportRejected(Reason.CATALOGUE, "the catalogue's sections", error) from error
    if calibrate.gdp_mu_1e9(task.epsilon_millionths, task.delta_1e12) < task.mu_1e9:
        raise ParameterError("mu", "what epsilon and delta allow", task.mu_1e9)
    local = task.scheme is Scheme.LOCAL
    honest = 1 if local else calibrate.honest_hosts(task.n_max, task.n_min, task.t)
    touched = calibrate.windows_touched(task.window_s, task.windows)
    for section in task.sections:
        cap, bound, weight = section.coordinate_cap, section.l1_bound, section.weight_millionths
        delta_sq = calibrate.sensitivity_sq_steps(cap, bound, section.q)
        least = calibrate.sigma_local_1024(delta_sq, touched, weight, task.mu_1e9, honest)
        if section.sigma_1024 < least:
            expected = f"at least {least}/1024 steps"
            raise ParameterError(f"sigma of {section.name}", expected, section.sigma_1024)
        calibrate.check_catalogue_sigma(section.sigma_1024)
        if not local:
            calibrate.check_modulus(task.n_max, section.cap_steps, section.sigma_1024)


def summary(content: bytes, catalogue: Catalogue | None = None) -> dict[str, Any]:
    """What a signed file says, for people and scripts; a task in units of its catalogue."""
    label = label_of(content)
    signed = Signed.decode(content, label)
    return _summary(signed, _decoded(label, signed.body), catalogue)


_Body = Task | Roster | EntryAnswer


def _decoded(label: bytes, body: bytes) -> _Body:
    if label == labels.ROSTER:
        return Roster.decode_body(body)
    return EntryAnswer.decode_body(body) if label == labels.ENTRY_ANSWER else Task.decode_body(body)


def _summary(signed: Signed, body: _Body, catalogue: Catalogue | None) -> dict[str, Any]:
    signatures = {
        "signed_by_leader": signed.sig_leader != NO_SIGNATURE,
        "signed_by_helper": signed.sig_helper != NO_SIGNATURE,
    }
    match body:
        case Roster():
            return {"kind": "roster"} | roster_counts(body) | signatures
        case EntryAnswer():
            found = {"kind": "entry", "host_id": body.entry.host_id.hex()}
            return found | {"roster_version": body.roster_version} | signatures
        case Task():
            catalogue = catalogue or Catalogue.load()
            return _task_summary(body, task_id(signed.unsigned()), catalogue) | signatures


def roster_counts(roster: Roster, **more: int) -> dict[str, Any]:
    """What a roster says; `more` stands behind its hosts."""
    operators = Counter(entry.operator for entry in roster.entries)
    return {
        "version": roster.version,
        "fleet": None if roster.fleet is None else roster.fleet.name,
        "effective_from": roster.effective_from,
        "hosts": len(roster.entries),
        **more,
        "operators": len(operators),
        "largest_operator": max(operators.values(), default=0),
    }


def _task_summary(task: Task, identity: bytes, catalogue: Catalogue) -> dict[str, Any]:
    def plain(*names: str) -> dict[str, Any]:
        return {name: getattr(task, name) for name in names}

    try:
        matched, differs = match_task(catalogue, task), None
    except CatalogueError as error:
        matched, differs = None, str(error)
    gpus = None if matched is None else matched.gpus
    found: Sequence[Section | None] = matched.sections if matched else [None] * len(task.sections)
    units = ["base units" if known is None else known.unit for known in found]
    sections: list[Mapping[str, Any]] = [
        {
            "name": section.name,
            "asks": describe(section, unit, task.window_s, gpus, known),
            "unit": unit,
            "cap": section.coordinate_cap,
            "bound": section.l1_bound,
            "step": section.q,
            "kind": section.kind.value,
            "length": section.length,
            "weight": section.weight_millionths / 10**6,
            "sigma_steps": section.sigma_1024 / 1024,
            "bound_steps": section.bound_steps,
        }
        for section, unit, known in zip(task.sections, units, found, strict=True)
    ]
    return {
        "kind": "task",
        "task_id": identity.hex(),
        **plain("series", "version", "domain"),
        "scheme": task.scheme.value,
        "leader": task.leader_pk.hex(),
        "helper": task.helper_pk.hex() or None,
        **plain("window_s", "first_window", "last_window"),
        "windows_per_week": calibrate.windows_touched(task.window_s, task.windows),
        "epsilon": task.epsilon_millionths / 10**6,
        "delta": task.delta_1e12 / 10**12,
        **plain("n_max", "n_min", "t", "min_operators", "expiry", "d"),
        "catalogue": task.catalogue_hash.hex(),
        "differs_from_catalogue": differs,
        "gpus": gpus,
        "sections": sections,
    }


TASK_SUFFIX = ".task"
ROSTER_SUFFIX = ".roster"
ENTRY_SUFFIX = ".entry"
MAX_FILE_BYTES = MAX_ROSTER_BODY + SIGNED_OVERHEAD_BYTES


class SignedFolder:
    """`NAME.roster` and `NAME.task` files; rosters come first, each file once per content."""

    def __init__(self, folder: Path, *, entries: bool = False) -> None:
        """Look into `folder`; `entries` asks for `NAME.entry` files too, after the others."""
        self._folder = folder
        self._suffixes = (ROSTER_SUFFIX, TASK_SUFFIX, *([ENTRY_SUFFIX] if entries else []))
        self._seen: dict[Path, tuple[int, int]] = {}

    def new_files(self) -> Iterator[tuple[Path, bytes]]:
        for suffix in self._suffixes:
            yield from sorted(self._changed(suffix), key=lambda found: (_version(*found), found[0]))

    def _changed(self, suffix: str) -> Iterator[tuple[Path, bytes]]:
        for path in files_ending(self._folder, suffix):
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size)
            if self._seen.get(path) == mark or status.st_size > MAX_FILE_BYTES:
                continue
            content = path.read_bytes()  # one that cannot be read is looked at again
            self._seen[path] = mark
            yield path, content


def _version(path: Path, content: bytes) -> int:
    """The version a file says it has: only an order, for nothing is verified yet."""
    try:
        if path.suffix == TASK_SUFFIX:
            return Task.decode_body(Signed.decode(content, labels.TASK).body).version
        if path.suffix == ENTRY_SUFFIX:
            return 0
        return Roster.decode_body(Signed.decode(content, labels.ROSTER).body).version
    except ReportRejected:
        return 0
