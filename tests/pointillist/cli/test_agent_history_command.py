"""`pointillist agent history`: spans that hold nothing, and times that cannot be read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pointillist.cli.agent_history import history
from pointillist.cli.output import CommandError, ExitCode
from tests.agent_live import surroundings
from tests.integration.test_agent_cli import write_config
from tests.local_kit import BOOT, POINT, UNIX, S, flattener, one_of_each


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose history has a few rows, of 2027."""
    from edge_agent.local.history import History

    monkeypatch.setattr("pointillist.cli.agent_file.become_agent", lambda _config: None)
    monkeypatch.setattr("time.time_ns", lambda: UNIX + 3_600 * S)
    made = surroundings(tmp_path)
    made.config.host.state_dir.mkdir()
    kept = History(made.config.history_file, made.config.history)
    kept.note_clock(POINT)
    kept.add(flattener().rows("test", one_of_each(BOOT)))
    kept.close()
    return write_config(made)


@pytest.mark.parametrize(
    ("since", "until", "says"),
    [
        ("5m", "10m", "--until: expected a time after --since"),
        ("1h", "1h", "--until: expected a time after --since"),
        ("2050-01-01", None, "--since: expected a time that has passed, got 2050-01-01 00:00:00Z"),
        ("yesterday", None, "--since: expected 10m, 2h, ISO 8601 or Unix seconds, got 'yesterday'"),
        ("10min", None, "--since: expected 10m"),
        ("-5m", None, "--since: expected 10m"),
        ("1h", "2027-13-40", "--until: expected 10m"),
    ],
)
def test_history_refuses_a_span_that_is_none(
    config: Path, since: str, until: str | None, says: str
) -> None:
    with pytest.raises(CommandError) as refused:
        history(config, since, until)
    assert says in str(refused.value)
    assert refused.value.code is ExitCode.USAGE


def test_history_refuses_two_ways_out(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    with pytest.raises(CommandError, match="name one of them"):
        history(config, parquet=out, json=True)
    assert not out.exists()


def test_history_of_an_empty_span_says_when_there_is_something(
    config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = f"{datetime.fromtimestamp(UNIX // S, UTC):%Y-%m-%d %H:%M}"
    history(config, "10m")
    assert f"nothing in this span; the history has {kept}" in capsys.readouterr().out
    history(config, "10m", parquet=tmp_path / "out.parquet")
    assert f"the history has {kept}" in capsys.readouterr().err
    history(config, "2h")
    assert "nothing" not in capsys.readouterr().out


def test_history_counts_each_kind_unless_one_is_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history(config, "2h")
    table, more = capsys.readouterr().out.split("\n\n")
    head, *kinds = table.splitlines()
    told = dict(line.split(maxsplit=1) for line in kinds)
    kept = f"{datetime.fromtimestamp(UNIX // S, UTC):%Y-%m-%d %H:%M}"
    assert head.split() == ["kind", "rows", "names", "first", "last"]
    assert list(told) == [
        "metric", "activity", "event", "kernel", "process", "gpu_time", "report",
    ]  # fmt: skip
    assert told["kernel"].split() == ["0", "0", "-", "-"]
    assert told["activity"].split()[:2] == ["1", "1"]
    assert told["metric"].count(kept) == 2
    assert "--kind metric" in more
    history(config, "2h", kind="metric")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) - 1 >= int(told["metric"].split()[1]) > 1  # one name may have several keys
    assert "least" in lines[0]


def test_history_of_an_empty_span_is_a_whole_json_document(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history(config, "10m", json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["levels"], shown["events"], shown["kernels"], shown["live"]) == (
        [],
        [],
        [],
        False,
    )
    history(config, "10m", kind="metric", json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["metric"], shown["cut_short"]) == ([], [])


def test_history_as_json_is_the_view_and_with_a_kind_its_rows(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history(config, "2h", json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["unix_ns"] == UNIX + 3_600 * S
    levels = {(level["name"], level["key"]): level for level in shown["levels"]}
    assert levels["queue_depth_bytes", "nvme0"]["last"] == 17.5
    assert (levels["switches", ""]["unit"], levels["switches", ""]["mean"]) == ("/s", 1400)
    assert [event["name"] for event in shown["events"]] == ["hardware_faults"]
    history(config, "2h", kind="activity", json=True)
    shown = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in shown["activity"]] == ["gemm_kernel"]
