"""The table of faults: every case has a test, every point is in the code, the page says the same.

And the oracle: it tells each way in which a fleet may have gone wrong.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.scale_faults import withstood
from tests.fault_cases import CASES, case, written
from tests.fault_oracle import Evidence, SealedReport, judge
from tests.fault_points import find, watched
from tests.ledger_hosts import LedgerHosts
from tests.protocol_kit import T0, Fleet

ROOT = Path(__file__).resolve().parents[2]
CODE = ("aggregator", "edge_agent", "transport", "tests/upgrade", "tests/fault")
AT_LEAST = 24


def test_cases_are_as_many_as_promised() -> None:
    assert len({one.name for one in CASES}) == len(CASES) >= AT_LEAST


@pytest.mark.parametrize("name", [one.name for one in CASES])
def test_case_has_a_test(name: str) -> None:
    role = name.removesuffix("-disk-full")
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    marked = re.compile(f'fault_case\\("{name}"\\)')
    assert any(
        marked.search(text) or ('fault_case(f"{role}-disk-full")' in text and f'"{role}"' in text)
        for text in texts
    )


def test_points_are_in_the_code() -> None:
    texts = [path.read_text() for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    for point in (point for one in CASES for point in one.points):
        role, _, step = point.partition("@")
        if not step:
            find(point.partition(" ")[0])
            continue
        if role == "upgrade":  # put together of its test's parameters
            continue
        if role == "leader" and step.startswith(("before ", "after ")):
            step = f"class {step.split()[1]}"
        assert any(step in text for text in texts), point


def test_page_has_the_table_of_cases() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert page == written(page), "python -m tests.fault_cases writes it"


def test_point_is_noted_when_it_is_reached_and_only_then() -> None:
    point = "aggregator.leader.intake:Intake._count of duplicate"
    with watched([point]) as watch:
        owner, name = find("aggregator.leader.intake:Intake._count")
        with pytest.raises(AttributeError):
            getattr(owner, name)(None, "window_late", None)
        assert point not in watch.reached
        with pytest.raises(AttributeError):
            getattr(owner, name)(None, "duplicate", None)
    assert point in watch.reached


# The oracle


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """One window of nine hosts, released as it should be."""
    folder = tmp_path_factory.mktemp("released")
    hosts = LedgerHosts(folder / "hosts")
    fleet = Fleet(hosts.world, folder)
    epochs, reports = hosts.report(T0)
    fleet.send_epochs(epochs)
    fleet.send(reports)
    fleet.close_window()
    found = hosts.evidence(folder, [(w.window_start_s, w.vector) for w in fleet.store.written], {})
    fleet.state.close()
    fleet.helper_state.close()
    hosts.close()
    shutil.copy(folder / "helper.sqlite", folder / "other.sqlite")
    with closing(sqlite3.connect(folder / "other.sqlite")) as other, other:
        other.execute("DELETE FROM chain")
    return found


def test_oracle_finds_nothing_where_all_is_right(released: Evidence) -> None:
    verdict = judge(released)
    assert (verdict.problems, verdict.windows, verdict.released) == ([], 1, 9)
    assert (verdict.windows_lost, verdict.reports_lost_or_double) == (0, 0)


def _another(report: SealedReport, **changes: object) -> SealedReport:
    return replace(report, report_id=b"another report..", **changes)  # type: ignore[arg-type]


def _quiet(report: SealedReport) -> SealedReport:
    return replace(report, noise=np.zeros_like(report.noise))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda f: replace(f, spent=frozenset(list(f.spent)[1:])), "1 unpaid"),
        (lambda f: replace(f, stored=[*f.stored, (T0, (1, 2))]), "two vectors"),
        (lambda f: replace(f, stored=[]), "the store has windows"),
        (lambda f: replace(f, sealed=f.sealed[1:]), "1 unsealed"),
        (lambda f: replace(f, sealed=[*f.sealed, f.sealed[0]]), "one id"),
        (lambda f: replace(f, sealed=[*f.sealed, _another(f.sealed[0])]), "1 reports left out"),
        (
            lambda f: replace(f, sealed=[*f.sealed, _another(f.sealed[0], window=T0 + 60)]),
            "windows without an end",
        ),
        (lambda f: replace(f, sealed=[*f.sealed, _another(f.sealed[0], waits=True)]), "waits"),
        (lambda f: replace(f, sealed=[_quiet(f.sealed[0]), *f.sealed[1:]]), "not the drawn noise"),
        (lambda f: replace(f, helper=f.helper.with_name("other.sqlite")), "no such release"),
    ],
    ids=["unpaid", "two vectors", "unstored", "stranger", "one id", "left out", "endless", "waits",
         "other noise", "transcripts"],
)  # fmt: skip
def test_oracle_tells_what_is_wrong(released: Evidence, wrong: object, told: str) -> None:
    verdict = judge(wrong(released))  # type: ignore[operator]
    assert re.search(told, " ".join(verdict.problems)), verdict


def test_loss_with_a_reason_is_no_problem(released: Evidence) -> None:
    gone = [_another(released.sealed[0], gone="expired")]
    late = [replace(one, report_id=b"a later report..", gone="") for one in gone]
    found = replace(released, sealed=[*released.sealed, *gone, *late], refused={"window_late": 1})
    verdict = judge(found)
    assert (verdict.problems, verdict.lost) == ([], {"expired": 1, "refused": 1})
    repeated = judge(replace(found, refused={"duplicate": 9}))
    assert repeated.reports_lost_or_double == 1


def outcome(reached: list[str], *, passed: bool = True) -> dict[str, object]:
    return {"cases": ["messages-truncated"], "reached": reached, "passed": passed}


def test_case_is_withstood_when_passed_tests_reached_all_its_points() -> None:
    points = list(case("messages-truncated").points)
    whole = [outcome(points[:1]), outcome(points[1:])]
    assert withstood(whole) == ["messages-truncated"]
    assert withstood(whole[:1]) == []
    assert withstood([*whole, outcome([], passed=False)]) == []
