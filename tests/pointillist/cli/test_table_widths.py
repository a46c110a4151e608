"""Every table at 60, 80 and 100 columns: no line too long, no cell cut, no column gone unsaid."""

from __future__ import annotations

import ast
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.cells import cell_len
from rich.console import Console

import pointillist
from aggregator.releases.release_files import MEANINGS
from kernels.kernel_mix import FamilyShare, MixMeasure
from kernels.signature_learning import Rate, SignatureEvaluation
from pointillist import table
from pointillist.cli import (
    agent_health,
    agent_history,
    diagnosis,
    kernels,
    keys_command,
    party,
    query,
    signatures_command,
    simulate,
)
from pointillist.cli import causes_command as causes
from pointillist.cli import stragglers as stragglers_text
from pointillist.cli.history_view_text import (
    gpu_time_lines,
    kernel_lines,
    metric_lines,
    timed_lines,
)
from pointillist.cli.output import _lines
from pointillist.cli.screen_parts import grid, left_out, panel
from pointillist.plan_file import default_plan
from pointillist.plan_report import catalogue_shapes, plan_report
from pointillist.plan_text import plan_text
from pointillist.play import scenario_play
from pointillist.play.stage import (
    CellTable,
    Summary,
    cell_table,
    in_hosts,
    mix_table,
    print_summary,
    screen,
    told_line,
)
from pointillist.table import Column, table_lines, terminal_columns
from tests.play_kit import demo_progress
from tests.pointillist.cli.test_narrow_tables import (
    KERNEL,
    LONGEST,
    VIEWS,
    history_rows,
    wide_view,
    widest_causes,
)
from transport.process.doctor_checks import CheckVerdict, Finding
from wire.catalogue import Catalogue

WIDTHS = (60, 80, 100)


def on_console(draw: Callable[[Console], object]) -> str:
    out = StringIO()
    draw(Console(file=out, width=terminal_columns(), force_terminal=True, color_system=None))
    return out.getvalue()


def printed(draw: Callable[[], object]) -> Callable[[], str]:
    """What a function says to stdout."""

    def run() -> str:
        out = StringIO()
        with contextlib.redirect_stdout(out):
            draw()
        return out.getvalue()

    return run


def plan() -> str:
    chosen = default_plan()
    report = plan_report(chosen, catalogue_shapes(chosen, Catalogue.load()))
    return plan_text(report, terminal_columns())


def demo_frame() -> str:
    with tempfile.TemporaryDirectory() as folder:
        progress = demo_progress(Path(folder), VIEWS, refused={"host_unknown": 4})
    return on_console(lambda console: console.print(screen(progress, console)))


def demo_tables() -> tuple[CellTable | str, ...]:
    return cell_table("Applications seen", VIEWS, in_hosts(12_500)), told_line(VIEWS, VIEWS)


def doctor() -> None:
    reason = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
    party.show_findings(
        [
            Finding("gpu calls", "capabilities", CheckVerdict.BROKEN, reason, reason),
            Finding("gpu calls", "counting", CheckVerdict.OK, "CAP_DAC_READ_SEARCH", ""),
        ]
    )


def families() -> str:
    rows = [FamilyShare("quantize_activation", 1_234, 123_456_789, 99.99, 10**12, 99.99, KERNEL)]
    named = [FamilyShare("gemm", 1, 2, 100.0, None, None, KERNEL)]
    return f"{kernels._table(rows)}\n{kernels._table(named)}"


def evaluation() -> str:
    found = {
        f"{measure.value}, variant: 5,000 launches": SignatureEvaluation(
            measure, "job", Rate(1_111, 1_112), Rate(8, 8), Rate(0, 14), 0.999, ((2, 1.0),)
        )
        for measure in MixMeasure
    }
    return signatures_command._table(found)


def judged_methods() -> str:
    row = dict.fromkeys(("macro_f1", "macro_f1_ungated", "accuracy", "detected"), 0.123)
    return diagnosis.summary(
        {
            "figures": [{"name": "false_incidents_per_host_week", "value": 1.5, "unit": "a week"}],
            "absent": {"macro_f1_heldout_with_quiet_hours": "no quiet hour " * 9},
            "tables": {
                "methods": [
                    {"method": "gradient_boosted_trees_of_everything", **row},
                    {"method": "normality", "skipped": "needs more runs than there are " * 4},
                ]
            },
        }
    )


def stragglers() -> str:
    rank = {
        "rank": 1_023, "stage": 12, "verdict": "slow", "cause": "compute_and_waiting_for_input",
        "z": 1_234.5, "excess_percent": 1_234.5, "excess_ms_per_step": 12_345.6,
        "slow_steps": 123_456, "compared_steps": 123_456, "slow_steps_of_run_percent": 99.0,
        "others_waited_ms_per_step": 123_456.7, "waited_ms_per_step": 123_456.7, "from_step": None,
        "name": "system.slice/a-container-of-a-job-0123456789abcdef",
    }  # fmt: skip
    told = {
        "ranks": [rank], "slow_links": [], "stages": [], "uneven_stages": [], "first_step": 0,
        "uneven_input_stages": [], "calls": 9, "calls_out_of_order": 0, "steps": 9, "last_step": 8,
        "remarks": [],
    }  # fmt: skip
    return stragglers_text.text(told, every=True)


def simulation_end(console: Console) -> None:
    summary = {"section": "kernel_mix_by_model", "windows_released": 123_456}
    rows = [{"cause": LONGEST, "true_hosts": 123_456, "shown": "123456 ± 1234"}]
    lie = {
        "liars": 8, "lie": "poisoned_share", "moved_of_bound": 1.0,
        "refused": "check_words 8, epoch_unknown 8, host_unknown 8, second_report 8",
    }  # fmt: skip
    trick = {"trick": "two_batches_of_one_window", "answer": "refused", "sums": 1}
    fault = {
        "fault": "mass_restart_of_hosts", "size": 0.4, "released_percent": 60.0, "true_sums": True
    }  # fmt: skip
    found = {"cohort": 40, "lies": [lie], "tricks": [trick], "faults": [fault]}
    tables = [
        *scenario_play._mix_tables(summary, VIEWS),
        *scenario_play._cause_tables("hardware_faults", rows),
        *scenario_play._adversary_tables(found),
    ]
    print_summary(console, Summary(tables=tables))


def query_rows() -> None:
    cells = pd.DataFrame({"cell": ["gpu_time/gemm"], "share": [0.123456], "q_value": [1e-300]})
    query._print_rows(cells, csv=False, json=False)
    wide = pd.DataFrame({name: ["some words that are long " * 3] for name in MEANINGS})
    query._print_rows(wide, csv=False, json=False)


def health() -> str:
    check = {"verdict": "unknown", "check": "bandwidth_device_to_host", "reason": "word " * 40}
    return agent_health._text(
        {"checks": [check], "gpus": [], "healthy": False, "machine": "nd96isr_h100_v5"}
    )


def status() -> str:
    batch = {
        "series": "eight_weeks", "window_start": 1_770_000_000, "cohort": 0, "hosts": 12_500,
        "state": "waits for the Helper", "outcome": "suppressed: too few hosts",
    }  # fmt: skip
    return _lines({"fingerprint": "ab" * 16, "rejected": ["a reason"] * 20, "batches": [batch]})


def events(kind: str) -> Iterator[Mapping[str, Any]]:
    yield {
        "unix_ns": 1_770_000_000_123_000_000, "source": "faults", "name": "hardware_fault",
        "key": "gpu_hbm3_memory", "detail": f"{kind} {KERNEL} " * 2,
    }  # fmt: skip


TABLES: Mapping[str, Callable[[], str]] = {
    "demo": demo_frame,
    "demo's end": lambda: on_console(
        lambda console: print_summary(console, Summary(tables=demo_tables()))
    ),
    "mix": lambda: on_console(
        lambda console: console.print(mix_table(VIEWS, [], console.width) or "")
    ),
    "simulation's end": lambda: on_console(simulation_end),
    "scenarios": printed(lambda: simulate._list(json=False)),
    "causes": lambda: "\n".join(causes.drawn(widest_causes(), terminal_columns())),
    "plan": plan,
    "query": printed(query_rows),
    "schema": printed(lambda: query._print_schema(json=False)),
    "doctor": printed(doctor),
    "health": health,
    "kernels": families,
    "signatures": evaluation,
    "diagnosis": judged_methods,
    "stragglers": stragglers,
    "status": status,
    "keys": lambda: keys_command._row({"file": "a.key", "kind": "host", "reason": "word " * 40}),
    "history, metrics": lambda: "\n".join(metric_lines(wide_view().levels)),
    "history, activity": lambda: "\n".join(timed_lines(wide_view())),
    "history, kernels": lambda: "\n".join(kernel_lines(wide_view())),
    "history, GPU time": lambda: "\n".join(gpu_time_lines(wide_view(), 1)),
    "history, events": lambda: "\n".join(agent_history._event_lines(events, None)),  # type: ignore[arg-type]
    "history": lambda: agent_history._overview(["event"], history_rows),
}


class Watched:
    """Notes every table that is laid out, and asserts that it has all that it was given."""

    def __init__(self) -> None:
        self._place = table._placed
        self.lines: list[str] = []
        self.left_out: list[str] = []

    def __call__(self, columns: Any, rows: Any, width: int, *, heads_fold: bool) -> Any:
        placed, gone = self._place(columns, rows, width, heads_fold=heads_fold)
        self.left_out += gone
        for place, row in enumerate(rows):
            for at, column in enumerate(columns):
                if column.head in gone:
                    continue
                parts = [
                    part for owner, line in placed if owner == place for a, part in line if a == at
                ]
                assert _letters("".join(parts)).endswith(_letters(row[at])), (column.head, row[at])
        for at, column in enumerate(columns):
            heads = [part for owner, line in placed if owner is None for a, part in line if a == at]
            if column.head not in gone and heads:
                assert _letters("".join(heads)) == _letters(column.head)
        self.lines += ["  ".join(part for _, part in line).rstrip() for _, line in placed]
        return placed, gone


def _letters(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_table_is_whole_on_a_terminal_of_this_width(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(table, "_placed", watched)
    text = TABLES[name]()
    assert max(map(cell_len, text.splitlines())) <= width, text
    assert "…" not in text
    for line in watched.lines:
        assert line.strip() in text, line
    # The frame of the demo's screen stands within the sentence that names columns.
    words = text.replace("│", " ").split()
    assert not watched.left_out or "eft out, as the terminal is narrow:" in " ".join(words)
    for head in watched.left_out:
        assert all(any(word in told for told in words) for word in head.split()), head


def test_cell_that_is_cut_or_column_that_vanishes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above notices what it is for."""
    columns, rows = [Column("name", folds=True), Column("n", leaves=0)], [["abc" * 40, "1" * 50]]
    monkeypatch.setattr(table, "_folded", lambda text, width: [text[:width]])
    with pytest.raises(AssertionError):
        Watched()(columns, rows, 30, heads_fold=True)


def test_table_with_no_room_for_a_column_gives_each_cell_a_line() -> None:
    columns = [Column("section"), *(Column(f"column {n}", right=True) for n in range(8))]
    rows = [["kernel_mix", *("12,345.678" for _ in range(8))] for _ in range(2)]
    lines = table_lines(columns, rows, 40)
    assert lines[:2] == ["section   kernel_mix", "column 0  12,345.678"]
    assert lines.count("") == 1
    assert sum("12,345.678" in line for line in lines) == 16


def test_panel_names_the_columns_that_it_has_no_room_for() -> None:
    columns = (
        Column("pid"),
        Column("application", from_width=100),
        Column("memory", from_width=90),
    )
    table_of_one = grid(columns, ["1"], width=80)
    console = Console(file=StringIO(), width=80)
    console.print(panel("processes", table_of_one, left_out(columns, 80)))
    assert isinstance(console.file, StringIO)
    assert "no room: application, memory" in console.file.getvalue()
    console = Console(file=StringIO(), width=24)
    console.print(panel("processes", table_of_one, left_out(columns, 80)))
    assert isinstance(console.file, StringIO)
    assert "…" in console.file.getvalue().splitlines()[-1]


def test_tables_are_laid_out_in_one_place() -> None:
    """Panels of `agent top` and progress bars alone use rich's own tables."""
    root = Path(pointillist.__file__).parent
    users = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "rich.table"
    }
    assert users == {
        "cli/host_panels.py", "cli/screen_parts.py", "play/stage.py",
    }  # fmt: skip


def test_a_fold_leaves_dates_times_and_options_whole() -> None:
    assert table._folded("2026-11-23 07:29:00Z", 17) == ["2026-11-23", "07:29:00Z"]
    assert table._folded("of --helper-transcript", 20) == ["of", "--helper-transcript"]
    assert table._folded("gpu_thermal_or_power", 12) == ["gpu_thermal_", "or_power"]


def test_a_command_in_backticks_is_whole_where_there_is_room() -> None:
    advice = "start NTP or PTP: `systemctl enable --now systemd-timesyncd`."
    assert table._folded(advice, 45) == [
        "start NTP or PTP:", "`systemctl enable --now systemd-timesyncd`.",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80])
def test_what_to_do_stands_below_a_finding_where_it_has_no_room_beside_it(width: int) -> None:
    columns = [Column("name"), Column("found", folds=True), Column("do", folds=True, below=True)]
    rows = [["clock", "words " * 9, "`systemctl enable --now systemd-timesyncd`"], ["a", "b", ""]]
    lines = table_lines(columns, rows, width)
    assert "    `systemctl enable --now systemd-timesyncd`" in lines
    assert "left out" not in "\n".join(lines)
    assert "do" in table_lines(columns, rows, 120)[0]
    narrow = table_lines([*columns, Column("n" * 30)], [[*row, "1" * 20] for row in rows], 24)
    assert "timesyncd" in "".join("".join(narrow).split())
