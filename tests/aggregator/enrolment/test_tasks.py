"""From a plan to a task: noise as calibrated, bounds named, signatures checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.enrolment.tasks import (
    TaskPlan,
    build_task,
    check_and_countersign,
    check_task,
    leader_sign,
    sign_task,
)
from aggregator.protocol.directory import Directory, PinnedParties
from privacy.errors import ParameterError
from tests.protocol_kit import T0, signing_key
from tests.wire.test_catalogue_file import TOY
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.fields import Scheme
from wire.rejection import Reason, ReportRejected

LEADER, HELPER = signing_key("leader"), signing_key("helper")
PARTIES = PinnedParties(LEADER.public_bytes, HELPER.public_bytes)

PLAN = TaskPlan(
    series="minute",
    window_s=60,
    first_window=T0,
    last_window=T0 + 60 * 20_000,
    weights={"kernel_mix": 100_000},
    gpus_per_host=8,
    n_max=12_500,
    n_min=10_000,
    t=1250,
    leader_pk=LEADER.public_bytes,
    helper_pk=HELPER.public_bytes,
    expiry=T0 + 10**8,
)


def test_task_carries_the_noise_of_the_worked_default() -> None:
    task = build_task(Catalogue.load(), PLAN)
    (section,) = task.sections
    sigma_in_bounds = section.sigma_1024 / 1024 / section.bound_steps
    assert sigma_in_bounds == pytest.approx(9.6552, abs=5e-4)
    assert task.d == 2 + section.length
    check_task(task, Catalogue.load())


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"t": 1000}, "corrupted hosts t"),
        ({"t": 6000, "n_min": 10_000}, "honest hosts"),
        ({"largest_operator": 3000}, "corrupted hosts t"),
        ({"n_min": 13_000}, "n_min"),
        ({"weights": {"kernel_mix": 1_000_001}}, "sum of weights"),
        ({"weights": {}}, "sections"),
        ({"min_operators": 2}, "min_operators"),
        ({"retention_s": 100}, "retention"),
        ({"retention_s": 8 * 86_400}, "retention"),
        ({"helper_pk": b""}, "helper_pk"),
        ({"n_max": 10**6, "n_min": 800_000, "t": 10**5, "window_s": 60}, None),
    ],
)
def test_plan_that_breaks_a_bound_is_refused_by_name(
    changes: dict[str, object], bound: str | None
) -> None:
    plan = replace(PLAN, **changes)  # type: ignore[arg-type]
    if bound is None:
        build_task(Catalogue.load(), plan)
        return
    with pytest.raises(ParameterError, match=bound):
        build_task(Catalogue.load(), plan)


def test_t_covers_the_largest_operator_by_itself() -> None:
    task = build_task(Catalogue.load(), replace(PLAN, t=None, largest_operator=2000))
    assert task.t == 2000


def test_helper_refuses_to_countersign_too_little_noise_or_a_foreign_leader() -> None:
    task = build_task(Catalogue.load(), PLAN)
    weak = replace(task, sections=(replace(task.sections[0], sigma_1024=4000),))
    draft = Signed(labels.TASK, weak.encode_body()).encode()
    with pytest.raises(ParameterError, match="sigma of kernel_mix"):
        check_and_countersign(leader_sign(draft, LEADER), LEADER.public_bytes, HELPER)
    good = Signed(labels.TASK, task.encode_body()).encode()
    with pytest.raises(ReportRejected, match="task_signature"):
        check_and_countersign(leader_sign(good, HELPER), LEADER.public_bytes, HELPER)
    good = leader_sign(good, LEADER)
    signed, said = check_and_countersign(good, LEADER.public_bytes, HELPER, now_s=T0)
    assert said["signed_by_helper"]
    assert (said["leader"], said["helper"]) == (
        LEADER.public_bytes.hex(), HELPER.public_bytes.hex(),
    )  # fmt: skip
    assert Directory(PARTIES).add_task(signed, T0).task == task


def refusal(directory: Directory, content: bytes, now_s: float = T0) -> Reason:
    with pytest.raises(ReportRejected) as caught:
        directory.add_task(content, now_s)
    return caught.value.reason


def test_directory_refuses_tasks_unsigned_expired_older_or_with_another_window() -> None:
    task = build_task(Catalogue.load(), PLAN)
    directory = Directory(PARTIES)
    _, good = sign_task(replace(task, version=2), LEADER, HELPER)
    assert refusal(directory, good[:-64] + bytes(64)) is Reason.TASK_SIGNATURE
    assert refusal(directory, good[:-128] + bytes(64) + good[-64:]) is Reason.TASK_SIGNATURE
    assert refusal(directory, good, task.expiry) is Reason.TASK_EXPIRED
    known = directory.add_task(good, T0)
    assert directory.add_task(good, T0) is known
    assert refusal(directory, sign_task(task, LEADER, HELPER)[1]) is Reason.TASK_SUPERSEDED
    slower = replace(task, version=3, window_s=120, first_window=0, last_window=120 * 10**7)
    assert refusal(directory, sign_task(slower, LEADER, HELPER)[1]) is Reason.FIELD


def test_local_task_needs_no_helper() -> None:
    plan = replace(PLAN, scheme=Scheme.LOCAL, helper_pk=b"")
    task = build_task(Catalogue.load(), plan)
    _, signed = sign_task(task, LEADER, None)
    parties = PinnedParties(LEADER.public_bytes, b"")
    assert Directory(parties).add_task(signed, T0).task.h == 1


def test_task_of_the_catalogue_before_is_still_signed_and_served() -> None:
    former = Catalogue.load().former
    assert former is not None
    weights = {"host_cpu": 100_000, "kernel_mix": 100_000}
    task = build_task(former, replace(PLAN, weights=weights))
    draft = leader_sign(Signed(labels.TASK, task.encode_body()).encode(), LEADER)
    signed, said = check_and_countersign(draft, LEADER.public_bytes, HELPER, now_s=T0)
    assert (said["gpus"], said["differs_from_catalogue"]) == (8, None)
    assert [section["asks"] for section in said["sections"]] == [
        "1,000,000 millionths of full scale a host and minute, in steps of 15,625",
        "480,000 GPU-ms a host and minute (8 GPUs), in steps of 7,500",
    ]
    assert Directory(PARTIES, catalogue=Catalogue.load()).add_task(signed, T0).task == task


def test_running_helper_refuses_what_an_older_tool_has_signed() -> None:
    task = build_task(Catalogue.load(), PLAN)
    (section,) = task.sections
    evil = replace(task, sections=(replace(section, coordinate_cap=64, l1_bound=64, q=1),))
    _, signed = sign_task(evil, LEADER, HELPER)
    with pytest.raises(ReportRejected, match=r"catalogue: .*as of hosts of"):
        Directory(PARTIES, catalogue=Catalogue.load()).add_task(signed, T0)


def test_task_of_a_catalogue_of_ones_own_needs_its_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('format = 2\nextends = "default"\n' + TOY)
    own = Catalogue.load(path)
    task = build_task(own, replace(PLAN, weights={"toy": 100_000}))
    draft = leader_sign(Signed(labels.TASK, task.encode_body()).encode(), LEADER)
    with pytest.raises(ReportRejected, match="expected a task of catalogue"):
        check_and_countersign(draft, LEADER.public_bytes, HELPER)
    _, said = check_and_countersign(draft, LEADER.public_bytes, HELPER, catalogue=own, now_s=T0)
    assert said["sections"][0]["name"] == "toy"
