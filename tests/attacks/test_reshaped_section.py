"""A Leader writes other bounds into a section than the catalogue's: it would ask something else.

With `kernel_mix` capped at 64 ms of 480,000 a host that ran a family for a moment reports as much
as one that ran it all minute, at the same epsilon: the answer says who ran it at all.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from aggregator.enrolment.tasks import (
    build_task,
    check_and_countersign,
    leader_sign,
    task_plan,
    windows_from,
)
from edge_agent.protocol.task_check import Bounds, check_task
from pointillist.plan_file import default_plan
from privacy.calibrate import WEEK_S
from tests.agent_world import T0, World, calibrated
from wire.catalogue import Catalogue
from wire.rejection import ReportRejected
from wire.task import SectionSpec, Task

CATALOGUE = Catalogue.load()
WORLD = World(1)


def shipped(series: str = "minute", **changes: object) -> Task:
    plan = default_plan()
    (planned,) = (task for task in plan.tasks if task.series == series)
    windows = windows_from(planned, T0 // WEEK_S * WEEK_S, 4)
    parties = WORLD.leader.pk, WORLD.helper.pk
    return build_task(CATALOGUE, task_plan(plan, planned, windows, parties, **changes))


def reshaped(task: Task, name: str, **changes: int) -> Task:
    """Change a section, and give it the noise that its new bounds need."""

    def of(spec: SectionSpec) -> SectionSpec:
        return replace(spec, **changes) if spec.name == name else spec  # type: ignore[arg-type]

    return calibrated(replace(task, sections=tuple(map(of, task.sections))))


def agent_takes(task: Task) -> str:
    """Why an agent refuses a task of both signatures, "" when it takes it."""
    try:
        check_task(
            WORLD.sign_task(task), WORLD.pins, Bounds(), now_s=T0,
            domain_allowed="fleet".__eq__, catalogue=CATALOGUE,
        )  # fmt: skip
    except ReportRejected as refusal:
        return str(refusal)
    return ""


def helper_signs(task: Task) -> str:
    """Why the Helper's tool refuses a task that the Leader has signed, "" when it signs."""
    draft = leader_sign(WORLD.sign_task(task), WORLD.leader.signing)
    try:
        check_and_countersign(draft, WORLD.leader.pk, WORLD.helper.signing, now_s=T0)
    except ReportRejected as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("series", ["minute", "day", "week", "eight_weeks"])
@pytest.mark.parametrize("gpus", [1, 8, 72])
def test_tasks_of_the_shipped_catalogue_are_taken(series: str, gpus: int) -> None:
    task = shipped(series, gpus_per_host=gpus)
    assert (agent_takes(task), helper_signs(task)) == ("", "")


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        # Did this host run it at all, for 1 ms, in this minute?
        ("kernel_mix", {"coordinate_cap": 64, "l1_bound": 64, "q": 1}),
        # The same of hosts of two sizes: one section of another count than the others.
        ("kernel_mix", {"coordinate_cap": 60_032, "l1_bound": 60_032, "q": 938}),
        ("application_mix", {"coordinate_cap": 7_500}),
        ("gpu_power", {"coordinate_cap": 2}),
        ("host_cpu", {"coordinate_cap": 64, "l1_bound": 64, "q": 1}),
        ("host_network", {"coordinate_cap": 2_000_000}),
    ],
)
def test_section_of_other_bounds_is_refused_by_agent_and_helper_alike(
    section: str, changes: dict[str, int]
) -> None:
    evil = reshaped(shipped(), section, **changes)
    for refusal in (agent_takes(evil), helper_signs(evil)):
        assert refusal.startswith("catalogue: "), refusal
        assert "(cap, bound, step)" in refusal


def test_indicators_of_other_m_are_refused() -> None:
    evil = reshaped(shipped("week"), "incidents", m=1, l1_bound=64)
    for refusal in (agent_takes(evil), helper_signs(evil)):
        assert "section incidents: (id, kind, length, m)" in refusal


def test_task_of_a_catalogue_that_nobody_has_is_refused_by_its_hash() -> None:
    stranger = replace(shipped(), catalogue_hash=bytes(32))
    for refusal in (agent_takes(stranger), helper_signs(stranger)):
        assert refusal.startswith("catalogue: ")
        assert "got 0000000000000000" in refusal
