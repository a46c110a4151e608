"""From a plan and the catalogue to a task with every bound checked, and to its signed bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from aggregator.protocol.answers import BODY_RETENTION_S
from privacy import calibrate
from privacy.calibrate import WEEK_S, ParameterError
from privacy.plan import HELPER_OUTAGE_S, Plan, PlannedTask
from privacy.signing import SigningKey
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.fields import MAX_EPOCH_S, NO_SIGNATURE, Scheme, TaskId, task_id
from wire.roster import Roster
from wire.task import DEMO_DOMAIN, SectionKind, SectionSpec, Task, TaskTerms

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
    """Resolve bounds, steps and noise of every section.

    Raises      ParameterError naming the bound that does not hold
    """
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
        raise ParameterError(
            "corrupted hosts t",
            f"at least the largest operator ({plan.largest_operator})",
            corrupted,
        )
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
        raise ParameterError(
            "windows", "window_s >= 1 and first <= last", (plan.first_window, plan.last_window)
        )
    lateness_s, retention_s = next(
        (late, kept) for longest, late, kept in _CADENCES if plan.window_s <= longest
    )
    lateness_s = lateness_s if plan.lateness_s is None else plan.lateness_s
    retention_s = retention_s if plan.retention_s is None else plan.retention_s
    least = 0 if plan.domain == DEMO_DOMAIN else MAX_EPOCH_S + lateness_s + HELPER_OUTAGE_S
    if not max(least, lateness_s) <= retention_s <= BODY_RETENTION_S - 86_400:
        raise ParameterError(
            "retention",
            f"{max(least, lateness_s)} s (epoch, lateness, Helper outage) to 6 days",
            retention_s,
        )
    over_s = plan.last_window + plan.window_s + retention_s
    if plan.expiry < over_s:
        raise ParameterError(
            "expiry", f"{over_s} (the retention of the last window) or later", plan.expiry
        )
    return lateness_s, retention_s


def _sections(catalogue: Catalogue, plan: TaskPlan, corrupted: int) -> tuple[SectionSpec, ...]:
    windows = (plan.last_window - plan.first_window) // plan.window_s + 1
    touched = calibrate.windows_touched(plan.window_s, windows)
    honest = 1 if plan.scheme is Scheme.LOCAL else plan.n_min - corrupted
    mu = calibrate.gdp_mu_1e9(plan.epsilon_millionths, plan.delta_1e12)
    return tuple(
        _section(catalogue, plan, name, weight, (touched, mu, honest))
        for name, weight in plan.weights.items()
    )


def _section(
    catalogue: Catalogue, plan: TaskPlan, name: str, weight: int, noise: tuple[int, int, int]
) -> SectionSpec:
    section = catalogue.section(name)
    touched, mu, honest = noise
    cap, bound, q = section.resolve(plan.gpus_per_host, plan.window_s)
    delta_sq = calibrate.sensitivity_sq_steps(cap, bound, q)
    sigma = calibrate.sigma_local_1024(delta_sq, touched, weight, mu, honest)
    calibrate.check_catalogue_sigma(sigma)
    if plan.scheme is Scheme.MASKED:
        calibrate.check_modulus(plan.n_max, cap // q, sigma)
    kind = SectionKind(section.kind)
    return SectionSpec(
        section_id=section.id,
        name=name,
        kind=kind,
        length=section.length,
        coordinate_cap=cap,
        l1_bound=bound,
        m=section.m if kind is SectionKind.INDICATORS else 0,
        q=q,
        weight_millionths=weight,
        rate_millionths=plan.rates.get(name, FULL_RATE),
        sigma_1024=sigma,
    )


def sign_task(task: Task, leader: SigningKey, helper: SigningKey | None) -> tuple[TaskId, bytes]:
    """Sign a task by both parties at once: for a demo, a test or a fleet of one machine.

    helper      None in scheme `local`
    Returns     (task_id, Signed bytes)
    """
    signed = sign_body(labels.TASK, task.encode_body(), leader, helper)
    return task_id(signed.unsigned()), signed.encode()


def sign_roster(roster: Roster, leader: SigningKey, helper: SigningKey | None) -> bytes:
    """Sign a roster by both parties at once."""
    return sign_body(labels.ROSTER, roster.encode_body(), leader, helper).encode()


def sign_body(label: bytes, body: bytes, leader: SigningKey, helper: SigningKey | None) -> Signed:
    """Put both signatures around a body."""
    message = Signed(label, body).unsigned()
    second = NO_SIGNATURE if helper is None else helper.sign(message)
    return Signed(label, body, leader.sign(message), second)


def countersign(signed_bytes: bytes, label: bytes, helper: SigningKey) -> bytes:
    """Add the Helper's signature to bytes that carry the Leader's; the caller has checked them."""
    signed = Signed.decode(signed_bytes, label)
    signature = helper.sign(signed.unsigned())
    return Signed(label, signed.body, signed.sig_leader, signature).encode()
