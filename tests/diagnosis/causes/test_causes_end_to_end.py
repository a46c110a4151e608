"""Journals replayed by a simulated fleet, released by production parties, found again in the table.

Six standard deviations of hosts live through each injected cause, ninety at least; the week comes
from the simulator's clock, and everything from the window on is the production code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.releases.store import Store
from aggregator.statistics.causes import CauseRow, Trend
from aggregator.statistics.correction import Detector
from diagnosis.detect.findings import Cause, Finding
from diagnosis.detect.journal import encode
from pointillist.cli import main
from pointillist.plan_file import DEFAULT_PATH, default_plan
from privacy.plan import Plan
from simulator.engine.interface import WindowOutcome
from simulator.engine.journals import JournalError, JournalRows, PlayedJournal, cast, load_journals
from simulator.engine.simulation import release_of
from simulator.fleet.fleet_rows import FleetRows
from simulator.outcome.truth import cause_table, truth_cells
from simulator.scenario import Dropout, FailSlow, Faults
from tests.diagnosis.causes.causes_kit import CLASSES, MODEL, WEEK_S, K, as_file, detector
from tests.diagnosis.causes.findings_kit import diagnosis, ended
from tests.engine_kit import CATALOGUE, SEEDED, SmallFleet, scenario

pytestmark = pytest.mark.release

HOSTS = 1_500
START_S = 2_928 * WEEK_S
DEVIATIONS = 6
LEAST_HOSTS = 90
OFFSET_NS = 1_763_000_000_000_000_000


def weekly_plan() -> Plan:
    """The shipped plan's week alone, with the weight that so few hosts need."""
    plan = default_plan()
    (task,) = (task for task in plan.tasks if task.series == "week")
    sections = tuple(replace(one, weight_millionths=250_000) for one in task.sections)
    return replace(plan, tasks=(replace(task, sections=sections),))


def weekly_fleet(weeks: int = 2) -> SmallFleet:
    """1,500 hosts to whom nothing happens but the journals."""
    return SmallFleet(
        scenario(
            HOSTS, start_s=START_S, duration_s=weeks * WEEK_S, step_s=86_400,
            faults=Faults(per_1000_node_days=0.0, incidents_scale=0.0),
            fail_slow=FailSlow(enabled=False), dropout=Dropout(share=0.02, late_share=0.0),
        ),
        weekly_plan(),
    )  # fmt: skip


def hosts_each(fleet: SmallFleet) -> int:
    """Six standard deviations of the released count; ninety at least."""
    (spec,) = fleet.task.sections
    sigma = spec.sigma_1024 / 1024 * HOSTS**0.5 / spec.coordinate_cap
    return max(LEAST_HOSTS, int(np.ceil(DEVIATIONS * sigma)))


def made_journal(cause: Cause) -> PlayedJournal:
    """An hour of an agent that met one incident, and spikes that were none."""
    findings: list[Finding] = [
        diagnosis(cause, at_s=103, incident=False),
        diagnosis(cause, at_s=112),
        ended(diagnosis(cause, at_s=112)),
        diagnosis(Cause.UNKNOWN, onset_s=2_000, at_s=2_004, incident=False),
        ended(diagnosis(Cause.UNKNOWN, onset_s=2_000, at_s=2_004, incident=False), at_s=2_009),
    ]
    return PlayedJournal.of(cause.value, [encode(one, OFFSET_NS) for one in findings])


def play(
    fleet: SmallFleet,
    journals: Sequence[PlayedJournal],
    parts: Sequence[dict[int, int]],
    fidelity: str = "exact",
) -> list[WindowOutcome]:
    """Let each week's hosts live through so many of each journal."""
    rng = np.random.default_rng(11)
    roles = {START_S + at * WEEK_S: cast(HOSTS, one, rng) for at, one in enumerate(parts)}
    inner = FleetRows(CATALOGUE, fleet.task, fleet.model.applications)
    rows = JournalRows(CATALOGUE, fleet.task, inner, tuple(journals), roles)
    return fleet.play(fidelity, replace(SEEDED, block_hosts=512), rows=rows)


def stored(
    outcomes: Sequence[WindowOutcome], root: Path, one: Detector | None = None,
    model: str | None = None,
) -> Path:  # fmt: skip
    """Keep releases as a Leader does."""
    with Store(
        root / "leader" / "store.duckdb", root / "releases", CATALOGUE, detector=one,
        agents_model=model,
    ) as store:  # fmt: skip
        for outcome in outcomes:
            store.write(release_of(outcome))
    return root / "releases"


class Told:
    """What `pointillist causes --json` says of the newest week."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, folder: Path, *options: str) -> dict[str, Any]:
        line = ["pointillist", "causes", "--folder", str(folder), "--json", *options]
        self._monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        (table,) = json.loads(self._capsys.readouterr().out)
        assert isinstance(table, dict)
        return table


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    return Told(monkeypatch, capsys)


INJECTED = (
    Cause.CPU_CONTENTION, Cause.CGROUP_THROTTLING, Cause.MEMORY_PRESSURE, Cause.DISK_IO,
    Cause.NIC_CROSS_TRAFFIC, Cause.NIC_LIMIT_OR_LOSS, Cause.UNKNOWN,
)  # fmt: skip


def test_replayed_causes_are_found_again_in_the_released_table(tmp_path: Path, told: Told) -> None:
    fleet = weekly_fleet()
    each, journals = hosts_each(fleet), [made_journal(cause) for cause in INJECTED]
    assert each >= LEAST_HOSTS
    usual = dict.fromkeys(range(len(journals)), each)
    outcomes = play(fleet, journals, [usual, usual | {3: 3 * each}])
    folder, held = stored(outcomes, tmp_path), []
    for week, outcome in zip(("2026-02-12", "2026-02-19"), outcomes, strict=True):
        table = told(folder, "--week", week)
        rows = {row["cause"]: row for row in table["rows"]}
        measured_off = table["n"] - outcome.reporting  # counted under the noise of a cell
        assert abs(measured_off) < 4 * table["rows"][0]["standard_error"]
        assert outcome.reporting > 0.95 * HOSTS
        for cause, struck in zip(CLASSES, outcome.truth, strict=False):
            row = rows[cause.value]
            assert struck > 0.9 * each if cause in INJECTED else struck == 0
            assert abs(row["hosts"] - struck) < 4 * row["standard_error"], (week, cause)
            assert not (row["below_noise"] and struck), (week, cause)
            held.append(row["low"] <= struck <= row["high"])
    assert sum(held) >= 23  # of 26; 24.7 expected
    assert rows["disk_io"]["trend"] == "rising"
    assert next(iter(rows)) == "disk_io"
    steady = [row["trend"] for name, row in rows.items() if name != "disk_io"]
    assert steady.count(Trend.STEADY) >= 10


def confused(one: Detector, each: int, rng: np.random.Generator) -> dict[int, int]:
    """How many hosts' agents say what, of hosts with the injected causes and of quiet ones."""
    rates, said = one.rates(WEEK_S), np.zeros(K, dtype=np.int64)
    for cause in INJECTED:
        row = rates.detection[CLASSES.index(cause)]
        said += rng.multinomial(each, [*row, max(1 - row.sum(), 0)])[:K]
    quiet = HOSTS - each * len(INJECTED)
    said += rng.binomial(quiet, rates.false_alarm)
    return {at: int(count) for at, count in enumerate(said) if count}


def test_confused_agents_are_corrected_to_what_truly_struck(tmp_path: Path, told: Told) -> None:
    fleet, one = weekly_fleet(weeks=1), detector(runs=400, right=0.6)
    each = hosts_each(fleet)
    parts = confused(one, each, np.random.default_rng(6))
    outcomes = play(fleet, [made_journal(cause) for cause in CLASSES], [parts], "masked")
    folder = stored(outcomes, tmp_path, one, MODEL)
    table = told(folder)
    assert table["corrected"]
    truth = {cause.value: each * (cause in INJECTED) for cause in CLASSES}
    errors = [(row["hosts"] - truth[row["cause"]]) / row["standard_error"] for row in table["rows"]]
    assert max(map(abs, errors)) < 3.5
    assert np.mean(np.square(errors)) < 2.2
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps(as_file(one)))
    again = told(folder, "--rates", str(rates), "--agents-model", MODEL)
    assert again["rows"] == table["rows"]
    plain = told(folder, "--rates", str(rates), "--agents-model", "another")
    why = f"not corrected: the rates are of model {MODEL}, the agents run another"
    assert plain["correction"] == why
    reported = {row["cause"]: row["hosts"] for row in plain["rows"]}
    assert sum(reported[cause.value] for cause in INJECTED) < 0.85 * each * len(INJECTED)


def test_host_with_three_causes_tells_of_all(tmp_path: Path) -> None:
    fleet = weekly_fleet(weeks=1)
    lines = [
        encode(ended(diagnosis(cause, onset_s=1_000 * at, at_s=1_000 * at + 12)), OFFSET_NS)
        for at, cause in enumerate((Cause.DISK_IO, Cause.UNKNOWN, Cause.CPU_CONTENTION))
    ]
    (outcome,) = play(fleet, [PlayedJournal.of("three", lines)], [{0: 900}], "masked")
    table = stored_table(outcome)
    truth = outcome.truth.max()
    for row in table[:3]:
        assert abs(row.hosts - truth) < 4.5 * row.standard_error


def stored_table(outcome: WindowOutcome) -> tuple[CauseRow, ...]:
    """The released rows of one outcome, with the simulator's truth beside them left out."""
    rows = cause_table(truth_cells(outcome, CATALOGUE), "incidents")
    return tuple(row.row for row in rows if row.row is not None)


SCENARIO = """
format = 1
name = "weeks"
hosts = 1500
start = 2026-02-12T00:00:00Z
duration_s = 1209600
step_s = 86400
fidelity = "masked"
[[shape]]
gpu_model = "H100"
[faults]
per_1000_node_days = 0
incidents_scale = 0
[fail_slow]
enabled = false
"""
PLAN = """
[[task]]
series = "week"
window_s = 604_800
lateness_s = 86_400
retention_s = 108_000
[task.weights]
incidents = 0.25
"""


def test_simulate_lets_hosts_live_journals_and_causes_shows_them(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weeks.toml").write_text(SCENARIO)
    shipped = DEFAULT_PATH.read_text()
    (tmp_path / "plan.toml").write_text(shipped[: shipped.index("[[task]]")] + PLAN)
    journals, out = tmp_path / "journals", tmp_path / "run"
    journals.mkdir()
    for cause in (Cause.DISK_IO, Cause.GPU_SHARED):
        line = encode(ended(diagnosis(cause)), OFFSET_NS)
        (journals / f"{cause}.jsonl").write_bytes(line + b"\n")
    options = ("--plan", str(tmp_path / "plan.toml"), "--journals", str(journals))
    more = ("--section", "incidents", "--processes", "1", "--out", str(out), "--json")
    monkeypatch.setattr(
        sys, "argv", ["pointillist", "simulate", str(tmp_path / "weeks.toml"), *options, *more]
    )
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert not end.value.code, shown.err
    truth = {
        row["cause"]: row["true_hosts"] for row in json.loads(shown.out)["causes"]["incidents"]
    }
    table = told(out / "releases")
    assert {row["cause"] for row in table["rows"] if not row["below_noise"]} >= {
        "disk_io", "gpu_shared",
    }  # fmt: skip
    for row in table["rows"]:
        struck = truth.get(row["cause"], 0)
        assert (struck > 110) == (row["cause"] in {"disk_io", "gpu_shared"})
        assert abs(row["hosts"] - struck) < 4.5 * row["standard_error"]
        assert row["trend"] == "no change beyond noise"


def test_journals_are_read_from_a_folder(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="got 0"):
        load_journals(tmp_path)
    whole = encode(diagnosis(), OFFSET_NS)
    (tmp_path / "one.jsonl").write_bytes(whole + b"\n" + whole[:50] + b"\n")
    (tmp_path / "two.jsonl").write_bytes(b"\n".join([whole, encode(ended(diagnosis()), OFFSET_NS)]))
    one, two = load_journals(tmp_path)
    assert (one.name, len(one.lines), one.damaged) == ("one", 1, 1)
    assert (two.name, two.span_s) == ("two", 19)
    (tmp_path / "two.jsonl").write_bytes(b"x" * 200_000)
    with pytest.raises(JournalError, match=r"two\.jsonl: expected 1"):
        load_journals(tmp_path)


def test_journal_that_does_not_fit_a_fleet_is_refused() -> None:
    fleet = weekly_fleet(weeks=1)
    late = ended(diagnosis(), at_s=8 * 86_400)
    long = PlayedJournal.of("long", [encode(diagnosis(), OFFSET_NS), encode(late, OFFSET_NS)])
    inner = FleetRows(CATALOGUE, fleet.task, fleet.model.applications)
    with pytest.raises(JournalError, match="long: expected a journal of at most 604800 s"):
        JournalRows(CATALOGUE, fleet.task, inner, (long,), {})
    with pytest.raises(JournalError, match="at most 10 hosts"):
        cast(10, {0: 6, 1: 5}, np.random.default_rng(1))
