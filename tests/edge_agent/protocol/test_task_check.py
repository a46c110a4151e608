"""The agent's check of a task: every weakening that a signed task could carry is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import pytest

from edge_agent.protocol.task_check import Accepted, Bounds, Gate, Pins, check_task
from privacy.calibrate import MAX_SIGMA_1024
from privacy.errors import ParameterError
from tests.agent_world import T0, Party, World, calibrated, make_section
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.fields import Scheme
from wire.rejection import Reason, ReportRejected
from wire.task import SectionSpec, Task

WORLD = World(1)


def check(
    signed: bytes,
    *,
    pins: Pins | None = None,
    bounds: Bounds | None = None,
    now_s: int = T0,
    versions: dict[str, int] | None = None,
    others: Iterable[Task] = (),
    gate: Gate | None = None,
    catalogue: Catalogue | None = None,
) -> Accepted:
    return check_task(
        signed, pins or WORLD.pins, bounds or Bounds(), now_s=now_s,
        domain_allowed={"fleet", "operator"}.__contains__, versions=versions or {},
        others=others, gate=gate, catalogue=catalogue,
    )  # fmt: skip


def good(**changes: object) -> Task:
    return WORLD.task(domain="fleet", **changes)  # type: ignore[arg-type]


def refused(task: Task, **options: object) -> Reason:
    with pytest.raises(ReportRejected) as caught:
        check(WORLD.sign_task(task), **options)  # type: ignore[arg-type]
    return caught.value.reason


def altered(task: Task, **section: int) -> Task:
    """Alter the first section without calibrating anew."""
    first = dataclasses.replace(task.sections[0], **section)  # type: ignore[arg-type]
    return dataclasses.replace(task, sections=(first, *task.sections[1:]))


def test_check_task_accepts_what_is_calibrated_to_the_bit() -> None:
    task = good()
    assert check(WORLD.sign_task(task)).task == task


def test_check_task_refuses_sigma_one_unit_too_low() -> None:
    task = good()
    low = altered(task, sigma_1024=task.sections[0].sigma_1024 - 1)
    assert refused(low) is Reason.SIGMA_LOW


@pytest.mark.parametrize(
    "claim",
    [
        {"mu_1e9": 10**12},
        {"n_max": 2000, "n_min": 1600, "t": 200},
        {"last_window": T0 + 60},
    ],
    ids=["mu", "cohort", "windows"],
)
def test_check_task_derives_what_a_task_may_not_claim(claim: dict[str, int]) -> None:
    """A claimed mu changes nothing; a larger cohort or fewer windows calibrate other noise."""
    task = good()
    claimed = dataclasses.replace(task, **claim)  # type: ignore[arg-type]
    weak = altered(calibrated(claimed), sigma_1024=calibrated(claimed).sections[0].sigma_1024 - 1)
    assert refused(weak) is Reason.SIGMA_LOW


def _tiny_noise(task: Task) -> Task:
    section = make_section(600_000, bound=1000, q=1000)
    return calibrated(dataclasses.replace(task, n_max=100, n_min=100, t=10, sections=(section,)))


@pytest.mark.parametrize(
    ("weaken", "reason"),
    [
        (lambda t: dataclasses.replace(t, t=99), Reason.CORRUPTED_BOUND),
        (lambda t: dataclasses.replace(t, n_min=450, t=300), Reason.CORRUPTED_BOUND),
        (lambda t: dataclasses.replace(t, n_max=99, n_min=80, t=10), Reason.N_MIN_BOUND),
        (lambda t: dataclasses.replace(t, n_max=10**6, n_min=10**6, t=10**5), Reason.N_MIN_BOUND),
        (lambda t: dataclasses.replace(t, epsilon_millionths=4_000_000), Reason.BUDGET),
        (lambda t: dataclasses.replace(t, delta_1e12=2_000), Reason.BUDGET),
        (lambda t: altered(t, l1_bound=10**9, coordinate_cap=10**9), Reason.COORDINATE_BOUND),
        (lambda t: dataclasses.replace(t, min_operators=2), Reason.OPERATORS),
        (lambda t: dataclasses.replace(t, domain="demo"), Reason.DEMO_TASK),
        (lambda t: dataclasses.replace(t, domain="unheard-of"), Reason.FIELD),
        (lambda t: dataclasses.replace(t, expiry=T0), Reason.TASK_EXPIRED),
    ],
)
def test_check_task_refuses_each_weakening(weaken: Callable[[Task], Task], reason: Reason) -> None:
    assert refused(weaken(good())) is reason


def test_check_task_refuses_a_vector_that_wraps() -> None:
    section = make_section(600_000, bound=60_000_000, q=1000)
    task = calibrated(dataclasses.replace(good(), n_max=150_000, n_min=120_000, t=15_000,
                                          sections=(section,)))  # fmt: skip
    assert refused(task) is Reason.MODULUS


def test_check_task_refuses_noise_that_a_sampler_would_saturate() -> None:
    local = Pins(WORLD.pins.leaders, WORLD.pins.helpers, WORLD.pins.leaders)
    task = altered(good(scheme=Scheme.LOCAL, helper_pk=b""), sigma_1024=MAX_SIGMA_1024 + 1)
    assert refused(task, pins=local) is Reason.MODULUS
    check(WORLD.sign_task(altered(task, sigma_1024=MAX_SIGMA_1024)), pins=local)


def test_check_task_refuses_noise_below_two_steps() -> None:
    task = calibrated(dataclasses.replace(good(), sections=(make_section(600_000, bound=1000),)))
    assert refused(altered(task, sigma_1024=2_047)) is Reason.SIGMA_LOW


def test_check_task_refuses_an_older_version() -> None:
    assert refused(good(version=2), versions={"minute": 3}) is Reason.TASK_SUPERSEDED
    assert check(WORLD.sign_task(good(version=3)), versions={"minute": 3}).task.version == 3


def test_check_task_refuses_weights_above_one() -> None:
    assert (
        refused(good(weight=600_000), others=[good(series="day", weight=400_001)]) is Reason.WEIGHT
    )
    check(WORLD.sign_task(good(weight=600_000)), others=[good(series="day", weight=400_000)])


def test_check_task_refuses_another_catalogue() -> None:
    assert refused(good(), catalogue=Catalogue.load()) is Reason.CATALOGUE


def test_check_task_refuses_unpinned_and_forging_parties() -> None:
    leader, helper = Party(), Party()
    stranger = World(1, leader=leader, helper=WORLD.helper)
    foreign = World(1, leader=WORLD.leader, helper=helper)
    assert _reason(stranger.sign_task(stranger.task(domain="fleet"))) is Reason.LEADER_UNPINNED
    assert _reason(foreign.sign_task(foreign.task(domain="fleet"))) is Reason.HELPER_UNPINNED
    body = good().encode_body()
    assert _reason(World(1, leader=leader).sign(labels.TASK, body)) is Reason.TASK_SIGNATURE
    by_leader_alone = WORLD.sign(labels.TASK, body, local=True)
    assert _reason(by_leader_alone) is Reason.TASK_SIGNATURE
    twice = Signed.decode(WORLD.sign_task(good()), labels.TASK)
    swapped = dataclasses.replace(twice, sig_leader=twice.sig_helper, sig_helper=twice.sig_leader)
    assert _reason(swapped.encode()) is Reason.TASK_SIGNATURE


def _reason(signed: bytes) -> Reason:
    with pytest.raises(ReportRejected) as caught:
        check(signed)
    return caught.value.reason


def test_check_task_takes_scheme_local_only_where_it_is_allowed() -> None:
    task = good(scheme=Scheme.LOCAL, helper_pk=b"")
    assert refused(task) is Reason.LOCAL_NOT_ALLOWED
    allowed = Pins(WORLD.pins.leaders, WORLD.pins.helpers, WORLD.pins.leaders)
    assert check(WORLD.sign_task(task), pins=allowed).task.h == 1
    weak = altered(task, sigma_1024=good().sections[0].sigma_1024)
    assert refused(weak, pins=allowed) is Reason.SIGMA_LOW


def test_check_task_asks_the_gate_about_everything_a_week_composes() -> None:
    asked: list[int] = []

    def closed(sections: Iterable[object], epsilon: int, delta: int) -> float:
        asked.append(len(list(sections)))
        raise ParameterError("epsilon of a week", "less", epsilon + delta)

    day = good(series="day", window_s=86_400, weight=100_000)
    assert refused(good(), others=[day], gate=closed) is Reason.BUDGET
    assert asked == [2]


def test_check_task_sections_are_checked_one_by_one() -> None:
    sections: tuple[SectionSpec, ...] = tuple(
        make_section(100_000, section_id=k + 1) for k in range(3)
    )
    task = calibrated(dataclasses.replace(good(), sections=sections))
    check(WORLD.sign_task(task))
    last = dataclasses.replace(task.sections[2], sigma_1024=task.sections[2].sigma_1024 - 1)
    assert (
        refused(dataclasses.replace(task, sections=(*task.sections[:2], last))) is Reason.SIGMA_LOW
    )
