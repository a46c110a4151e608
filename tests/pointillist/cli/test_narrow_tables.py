"""Tables on a terminal of 80 columns: every cell is whole, or its column is said to be left out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pandas as pd
import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from aggregator.releases.cause_files import CAUSE_MEANINGS
from aggregator.statistics.causes import CauseRow, CauseTable, Trend
from edge_agent.local.view_lines import FamilyStep, HostView, KernelLine, LevelLine, RateEstimate
from pointillist.cli import agent_health, party, query
from pointillist.cli import causes_command as causes
from pointillist.cli.agent_history import _overview
from pointillist.cli.history_view_text import kernel_lines, metric_lines, timed_lines
from pointillist.cli.output import _lines
from pointillist.cli.screen_parts import shortened
from pointillist.plan_file import default_plan, equal_sections
from pointillist.plan_report import catalogue_shapes, plan_report
from pointillist.plan_text import plan_text
from pointillist.play.scenario_play import _adversary_tables, _cause_tables, _mix_tables
from pointillist.play.stage import CellTable, Summary, cell_table, mix_table, print_summary
from pointillist.table import Column, table_lines
from simulator.cell_view import CellView, judged
from transport.process.doctor_checks import CheckVerdict, Finding
from wire.catalogue import Catalogue

WIDTH = 80
KERNEL = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_128x64_32x2_nn_align8>()"
)
CAUSES: Sequence[str] = Catalogue.load().section("hardware_faults").cells
LONGEST = max(CAUSES, key=len)


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command believes that it writes to a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("LINES", "24")


def pieces(text: str) -> Iterator[str]:
    """What of a cell stays on one line: words, and parts of names that are longer."""
    for word in text.split():
        yield from (piece for piece in re.findall(r"\w+?(?:_|$)|\W+|\w+", word) if piece.strip())


def assert_whole(text: str, cells: Iterable[str], width: int = WIDTH) -> None:
    """Assert that no line is too long, nothing ends in a mark, and all of each cell is there."""
    assert max(map(cell_len, text.splitlines())) <= width, text
    assert "…" not in text
    missing = [piece for cell in cells for piece in pieces(cell) if piece not in text]
    assert missing == [], f"cut off: {missing}\n{text}"


def shown(draw: Callable[[Console], object]) -> str:
    """What is drawn on a rich console of 80 columns."""
    out = StringIO()
    draw(Console(file=out, width=WIDTH, force_terminal=False))
    return out.getvalue()


def test_table_folds_before_it_cuts_and_names_what_it_leaves_out() -> None:
    columns = [
        Column("component", folds=True, leaves=1),
        Column("cause of it", folds=True),
        Column("hosts", right=True),
        Column("of all", right=True, leaves=0),
    ]
    rows = [["network", "gpu_thermal_interface_and_sensor", "12,345", "54 %"]]
    wide = table_lines(columns, rows, 80)
    assert len(wide) == 2
    assert_whole("\n".join(wide), rows[0])
    folded = table_lines(columns, rows, 50)
    assert len(folded) > len(wide)
    assert_whole("\n".join(folded), rows[0], 50)
    small = table_lines(columns, rows, 30)
    assert_whole("\n".join(small), [rows[0][1], rows[0][2]], 30)
    assert "left out, as the terminal is narrow: component, of all" in " ".join(
        " ".join(small).split()
    )


def test_table_loses_no_letter_where_hardly_a_column_fits() -> None:
    rows = [["abcdefghijklmnopqrstuvwxyz", "1"], ["日本語のカーネル名", "22"]]
    lines = table_lines([Column("name", folds=True), Column("n", right=True)], rows, 10)
    assert max(map(cell_len, lines)) <= 10
    letters = "".join(one for line in lines[1:] for one in line if one.isalpha())
    assert letters == "".join(row[0] for row in rows)


def widest_causes() -> CauseTable:
    """Every cause of hardware faults, as large as a fleet of 125,000 hosts can make it."""
    rows = tuple(
        CauseRow(
            cause=cause, component="power or cooling", reported=123_456.0, hosts=123_456.0,
            standard_error=1_234.0, low=120_000.0, high=125_000.0, share=0.98765, share_low=0.9,
            share_high=1.0, part=0.54, part_low=0.5, part_high=0.6, false_high=0.0,
            below_noise=False, as_reported="not enough runs" if number % 2 else None,
            trend=Trend.RISING, change=0.1, change_low=0.05, change_high=0.15, q_value=0.0,
        )
        for number, cause in enumerate(CAUSES)
    )  # fmt: skip
    return CauseTable(
        series="eight_weeks", cohort=0, window_start_s=1_770_000_000, window_s=4_838_400,
        section="hardware_faults", n=125_000, rows=rows, corrected=True, correction="corrected",
        by_chance=0.4, scope="hosts", bias_bound=71.0,
    )  # fmt: skip


def test_causes_keep_share_and_trend_on_a_narrow_terminal() -> None:
    table = widest_causes()
    lines = causes.drawn(table, WIDTH)
    text = "\n".join(lines)
    cells = [cell for row in table.shown for cell in (row.cause, "123,456 ± 2,419", "rising")]
    assert_whole(text, [*cells, "120,000 to 125,000"])
    told = text if "54 %" in text else lines[-1]
    assert "54 %" in told or "of all" in told
    assert sum(line.count("rising") for line in lines) == len(table.shown)


def test_query_shows_every_column_of_the_schema_and_of_wide_rows() -> None:
    result = CliRunner().invoke(query.app, ["--schema"])
    assert result.exit_code == 0
    assert_whole(result.output, [*CAUSE_MEANINGS, "rejections", "timestamp[us]"])
    frame = pd.DataFrame({"cell": [KERNEL], "share": [1.5], "cause": [LONGEST]})
    told = _said(lambda: query._print_rows(frame, csv=False, json=False))
    assert_whole(told, [LONGEST, "1.5", KERNEL], len("share  " + KERNEL))
    assert "-- row 1 --" in told


def _said(draw: Callable[[], object]) -> str:
    out = StringIO()
    with contextlib.redirect_stdout(out):
        draw()
    return out.getvalue()


@pytest.mark.parametrize("sections", [None, 10])
def test_plan_says_its_errors_in_full(sections: int | None) -> None:
    catalogue = Catalogue.load()
    if sections is None:
        plan = default_plan()
    else:
        plan = equal_sections({"hosts": 12_500, "scheme": "local"}, 60, sections)
    shapes = catalogue_shapes(default_plan(), catalogue)
    names = {one.name for task in plan.tasks for one in task.sections}
    report = plan_report(plan, {name: shapes.get(name, shapes["kernel_mix"]) for name in names})
    text = plan_text(report, WIDTH)
    errors = [
        f"{value:.4g}" if value < 10_000 else ">9999"
        for task in report.tasks
        for one in (task.sections if sections is None else task.sections[:1])
        for value in one.error_percent.values()
        if value is not None and one.sigma_hosts is None
    ]
    assert_whole(text, errors)
    assert "left out, as the terminal is narrow: sigma_total" in text


def test_query_without_rows_names_its_columns_and_calls_nothing_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    frame = pd.DataFrame(columns=[f"a_long_name_of_column_{number}" for number in range(12)])
    out = StringIO()
    with contextlib.redirect_stderr(out):
        query._print_rows(frame, csv=False, json=False)
    told = out.getvalue()
    assert told.startswith("0 rows of a_long_name_of_column_0, ")
    assert "too wide" not in told
    assert max(map(len, told.splitlines())) <= 80


def history_rows(kind: str) -> Iterator[dict[str, Any]]:
    at = {"unix_ns": 1_770_000_000_000_000_000, "name": KERNEL}
    yield at | {"kind": kind}


def wide_view() -> HostView:
    """Kernels whose names and numbers are as wide as they come."""
    calls = RateEstimate(12_345_678.9, 0.0, 32_245_678.9, 19_599.6, 0.01)
    time = RateEstimate(1e8, 0.0, 2e8, 1e5)
    of = (4_194_303, "trainer-process", KERNEL, "quantize_activation")
    families = {"quantize_activation": 0.1, **{f"family_{n}": 0.01 for n in range(9)}}
    key = "/kubepods.slice/kubepods-burstable-pod1234abcd.slice/cri-0123456789abcdef"
    least = -1.23456e-12
    metric = ("ebpf", "cgroup.run_delay_throttled_ns", key, "nanoseconds")
    return HostView(
        levels=(LevelLine(*metric, 1, least, least, least, least, 0.0),),
        kernels=(
            KernelLine(*of, 0, 10.0, RateEstimate(1e8), time, 1e3, None),
            KernelLine(*of, None, 10.0, calls),
        ),
        steps=(FamilyStep(1_770_000_000 * 10**9, 10**10, 1.0, 1.0, families),),
    )


def test_history_shows_whole_names_and_numbers() -> None:
    text = "\n".join(metric_lines(wide_view().levels))
    assert_whole(text, [wide_view().levels[0].key, "-1.23456e-12", "nanoseconds"])
    assert_whole(
        "\n".join(timed_lines(wide_view())),
        [KERNEL.partition("::")[2], "1,000,000 s", "trainer-process"],
    )
    kernel = "\n".join(kernel_lines(wide_view()))
    assert_whole(kernel, [KERNEL, "123,456,789", "195,996", "trainer-process[4194303]"])
    assert "family" in kernel
    when = datetime.fromtimestamp(1_770_000_000, UTC)
    assert_whole(_overview(["event"], history_rows), ["event", f"{when:%Y-%m-%d %H:%M:%SZ}"])


def test_doctor_and_health_fold_their_reasons() -> None:
    reason = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
    found = [Finding("gpu calls", "capabilities", CheckVerdict.BROKEN, reason, reason)]
    # Both are whole, what was found and below it what to do.
    letters = "".join(_said(lambda: party.show_findings(found)).split())
    assert letters.count("".join(reason.split())) == 2
    body = {
        "checks": [
            {"verdict": "unknown", "check": "bandwidth_device_to_host", "reason": reason * 2}
        ],
        "gpus": [], "healthy": False, "machine": "nd96isr_h100_v5",
    }  # fmt: skip
    assert_whole(agent_health._text(body), ["bandwidth_device_to_host", reason])


def test_lists_of_mappings_are_folded() -> None:
    profile = {"profile": "timesformer_base_h100_by_rule_exchange", "application": "z" * 50}
    text = _lines({"launches": {"profiles": [profile | {"distance": 0.123}]}})
    assert_whole(text, [profile["profile"], "0.123"])
    assert text.count("z") == 50


VIEWS = judged(
    [
        CellView(f"gpu_time/{name}", released, standard_error=0.1234, truth=0.98765)
        for name, released in (
            ("quantize_activation", 0.01), ("communication", 0.98765), ("triton_fused", 0.5),
        )
    ]
)  # fmt: skip


def ended(tables: Sequence[CellTable | str]) -> str:
    return shown(lambda console: print_summary(console, Summary(tables=tables)))


def test_demo_and_simulation_end_with_whole_rows() -> None:
    title = "Applications seen, mean of 1,440 windows, of 12,500 hosts"
    told = ended([cell_table(title, VIEWS, lambda v: f"{v:.2f} %")])
    assert_whole(told, ["< 0.25 %", "0.99 %", "quantize", "communication"])
    mix = shown(lambda console: console.print(mix_table(VIEWS, VIEWS, WIDTH)))
    assert_whole(mix, ["98.77 ±24.19", "communication", "< 25.19"])
    summary = {"section": "kernel_mix_by_model", "windows_released": 123_456}
    assert_whole(ended(_mix_tables(summary, VIEWS)), ["98.77 %", "communication"])
    rows = [{"cause": LONGEST, "true_hosts": 123_456, "shown": "123456 ± 1234"}]
    assert_whole(
        ended(_cause_tables("hardware_faults", rows)),
        [LONGEST.replace("_", " "), "123456 ± 1234", "123,456"],
    )
    refused = "check_words 8, epoch_unknown 8, host_unknown 8, second_report 8"
    found = {
        "cohort": 40, "tricks": [], "faults": [],
        "lies": [{"liars": 8, "lie": "poisoned_share", "moved_of_bound": 1.0, "refused": refused}],
    }  # fmt: skip
    assert_whole(ended(_adversary_tables(found)), [refused])


def test_shortened_name_says_that_it_was_longer() -> None:
    assert shortened("GPU-8a1f", 16) == "GPU-8a1f"
    assert shortened("GPU-8a1f0123456789", 10) == "GPU-8a1f0…"
