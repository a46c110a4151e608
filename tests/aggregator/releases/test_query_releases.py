"""Readers: filters, SQL that can only read the folder, and `pointillist query`."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from aggregator.releases.packs import mark_new
from aggregator.releases.releases import (
    QueryForbidden,
    QueryRefused,
    moment,
    query,
    read_causes,
    read_releases,
)
from aggregator.releases.store import Store
from pointillist.cli import main
from pointillist.cli.output import ExitCode
from pointillist.cli.query import default_folder
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, true_steps, window

N = 12_000
TASK = make_task()
VECTOR = true_steps(TASK, N, {("kernel_mix", "gpu_time/gemm"): 0.5 * N * 8 * 60_000})


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three released windows, and the Leader's file open all the while."""
    root = tmp_path_factory.mktemp("fleet")
    with Store(root / "leader" / "store.duckdb", root / "releases", CATALOGUE) as store:
        for start in (86_280, 86_340, 86_400):
            store.write(window(TASK, VECTOR, N, start))
        yield root


@pytest.fixture
def folder(fleet: Path) -> Path:
    return fleet / "releases"


def test_read_releases_filters_by_section_and_time(folder: Path) -> None:
    everything = read_releases(folder)
    assert everything.window_start.nunique() == 3
    assert set(everything.section) == {spec.name for spec in TASK.sections}
    some = read_releases(
        folder, series="every-kind", section="incidents", since=86_340, until=86_400
    )
    assert set(some.section) == {"incidents"}
    assert some.window_start.unique().tolist() == [datetime(1970, 1, 1, 23, 59)]  # noqa: DTZ001
    assert read_releases(folder, series="no such series").empty
    assert read_releases(folder, since="1970-01-02").window_start.nunique() == 1


def test_read_releases_of_a_new_store_has_the_columns(tmp_path: Path, folder: Path) -> None:
    mark_new(tmp_path)
    empty = read_releases(tmp_path)
    assert empty.empty
    assert set(empty.columns) == set(read_releases(folder).columns)
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_releases(tmp_path / "elsewhere")


def test_moment_reads_every_way_to_say_a_time() -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    bare = noon.replace(tzinfo=None)
    assert moment(noon) == bare
    assert moment("2026-03-01T13:00:00+01:00") == bare
    assert moment("2026-03-01 12:00") == bare
    assert moment(noon.timestamp()) == bare
    assert moment(date(2026, 3, 1)) == bare.replace(hour=0)


def test_query_reads_releases_and_the_latest_window(folder: Path) -> None:
    rows = query("SELECT count(DISTINCT window_start) AS w FROM releases", folder)
    assert rows.w[0] == 3
    latest = query("SELECT * FROM latest", folder)
    assert latest.window_start.nunique() == 1
    assert latest[latest.below_noise].value.isna().all()
    assert latest[~latest.below_noise].value.notna().all()
    assert (~latest.below_noise).sum() == 3  # two of them say how many hosts measured


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{folder}/x.parquet'",
        "ATTACH '{leader}'",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW releases",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT 1; SELECT 2",
        "",
        "SELECT * FROM read_text('{folder}/../leader/store.duckdb')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM 'https://example.org/x.parquet'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/x.parquet'",
    ],
)
def test_query_can_only_read_the_folder(sql: str, fleet: Path, folder: Path) -> None:
    before = set(fleet.rglob("*.parquet"))
    with pytest.raises(QueryRefused):
        query(sql.format(folder=folder, leader=fleet / "leader" / "store.duckdb"), folder)
    assert set(fleet.rglob("*.parquet")) == before


def test_query_says_what_is_wrong_with_sql(folder: Path) -> None:
    with pytest.raises(QueryRefused, match="shere") as caught:
        query("SELECT shere FROM releases", folder)
    assert not isinstance(caught.value, QueryForbidden)


def test_query_works_where_the_path_needs_quoting(tmp_path: Path) -> None:
    folder = tmp_path / "it's [a] *folder*"
    with Store(tmp_path / "s.duckdb", folder, CATALOGUE) as store:
        store.write(window(TASK, VECTOR, N))
    assert len(read_releases(folder)) > 0


class Shell:
    """Runs `pointillist` as the entry point does, in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capture = patch, capture

    def __call__(self, *arguments: str, folder: Path | None = None) -> tuple[int, str, str]:
        """Return (exit code, stdout, stderr)."""
        words = [*arguments, *([] if folder is None else ["--folder", str(folder)])]
        self._patch.setattr("sys.argv", ["pointillist", "query", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capture.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def test_query_command_prints_json_csv_and_a_table(run: Shell, folder: Path) -> None:
    sql = "SELECT cell, share, released_at FROM latest WHERE cell LIKE 'gpu_time/%' ORDER BY cell"
    code, out, _ = run(sql, "--json", folder=folder)
    rows = json.loads(out)
    assert code == 0
    gemm = next(row for row in rows if row["cell"] == "gpu_time/gemm")
    assert gemm["share"] == pytest.approx(0.5, rel=1e-3)
    assert gemm["released_at"].startswith("1970-01-02T00:01:02")
    assert next(row for row in rows if row["cell"] == "gpu_time/conv")["share"] is None
    code, out, _ = run(sql, "--csv", folder=folder)
    assert (code, out.splitlines()[0]) == (0, "cell,share,released_at")
    code, out, err = run(sql, folder=folder)
    assert code == 0
    assert "gpu_time/gemm" in out
    assert "–" in out
    assert err == f"{len(rows)} rows\n"


@pytest.mark.parametrize(
    ("sql", "plain"),
    [
        ("1/0", None),
        ("'nan'::DOUBLE", None),
        ("'-inf'::FLOAT", None),
        ("'infinity'::TIMESTAMP", None),
        ("[1/0, 2]", [None, 2.0]),
        ("{'x': [0/0], 'y': 1}", {"x": [None], "y": 1}),
    ],
)
def test_what_is_no_finite_number_is_missing_in_every_form(
    sql: str, plain: object, run: Shell, folder: Path
) -> None:
    asked = f"SELECT {sql} AS x, 1 AS y"
    assert json.loads(run(asked, "--json", folder=folder)[1]) == [{"x": plain, "y": 1}]
    flat = "" if plain is None else json.dumps(plain)
    assert list(csv.reader(run(asked, "--csv", folder=folder)[1].splitlines()))[1] == [flat, "1"]
    assert run(asked, folder=folder)[1].splitlines()[1].rpartition(" ")[0].strip() == (flat or "–")


def test_query_command_explains_itself(run: Shell, folder: Path) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "SELECT section, name, share" in out.replace("\n", " ")
    code, out, _ = run("--schema", "--json")
    columns = [row["column"] for row in json.loads(out) if row["view"] == "releases"]
    causes = [row["column"] for row in json.loads(out) if row["view"] == "causes"]
    assert set(causes) == set(read_causes(folder).columns)
    assert (code, columns[:2]) == (0, ["series", "cohort"])
    assert set(columns) == set(read_releases(folder).columns)
    code, out, _ = run("--schema")
    assert (code, "standard error of value" in " ".join(out.split())) == (0, True)


def test_query_command_checks_that_every_window_ended(
    run: Shell, folder: Path, tmp_path: Path
) -> None:
    code, out, err = run("--check", folder=folder)
    assert (code, out) == (0, "")
    assert "every window" in err
    copy = shutil.copytree(folder, tmp_path / "copy")
    (lost,) = copy.glob("series=*/date=*/*T235900Z*.parquet")
    lost.unlink()
    code, out, err = run("--check", "--json", folder=copy)
    assert (code, len(json.loads(out))) == (ExitCode.FAILED, 1)
    assert "no end" in err
    assert run("--check", folder=tmp_path / "none")[0] == ExitCode.USAGE


def test_query_command_ends_with_the_documented_code(
    run: Shell, folder: Path, tmp_path: Path
) -> None:
    assert run(folder=folder)[0] == ExitCode.USAGE
    assert run("SELECT nonsense", folder=folder)[0] == ExitCode.USAGE
    assert run("SELECT 1", "--csv", "--json", folder=folder)[0] == ExitCode.USAGE
    code, _, err = run("SELECT 1", folder=tmp_path / "nowhere")
    assert (code, "no folder" in err) == (ExitCode.USAGE, True)
    code, _, err = run("DROP VIEW releases", "--json", folder=folder)
    assert (code, "only read" in json.loads(err)["error"]) == (ExitCode.REFUSED, True)


def test_query_command_finds_the_newest_run_here(
    run: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, name in ((200, "old"), (100, "new")):
        folder = tmp_path / "runs" / name / "leader" / "releases"
        folder.mkdir(parents=True)
        mark_new(folder)
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    monkeypatch.chdir(tmp_path)
    assert default_folder() == Path("runs/new/leader/releases")
    assert run("SELECT 1 AS one", "--json")[:2] == (0, '[\n  {\n    "one": 1\n  }\n]\n')


@pytest.mark.parametrize("columns", ["80", "20"])
def test_query_command_escapes_what_a_terminal_would_act_on(
    columns: str, run: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    sql = "SELECT chr(27) || ']0;title' || chr(7) AS cell, 'x' AS other FROM releases LIMIT 1"
    code, out, _ = run(sql, folder=folder)
    assert code == 0
    assert "\x1b" not in out
    assert r"\x1b]0;title\x07" in out


def test_query_command_shows_every_column_of_rows_too_wide_for_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sql = "SELECT * FROM releases LIMIT 2"
    monkeypatch.setattr("sys.argv", ["pointillist", "query", sql, "--folder", str(folder)])
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("-- row")] == ["1", "2"]
    names = {line.split()[0] for line in lines}
    assert {"series", "share_low", "below_noise", "rejections"} <= names
    narrow = "SELECT cell, n_hosts FROM releases LIMIT 2"
    monkeypatch.setattr("sys.argv", ["pointillist", "query", narrow, "--folder", str(folder)])
    with pytest.raises(SystemExit):
        main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert (head.split(), len(rows)) == (["cell", "n_hosts"], 2)
