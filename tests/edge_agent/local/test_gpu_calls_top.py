"""`agent top` and `agent history` of recorded probe drains: in a terminal, in a pipe, in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions

from collectors.boot_clock import read_point
from collectors.records.gpu_calls import GpuCalls, ProbeGroup
from edge_agent.local.history import History
from edge_agent.local.live_socket import LiveSocket
from edge_agent.local.recent import Recent
from edge_agent.local.view_lines import HostView, ProcessLine, RateEstimate, document
from pointillist import cli
from pointillist.cli import agent_file
from pointillist.cli.calls_screen import calls_page, calls_panels
from pointillist.cli.history_view_text import process_lines
from tests.agent_live import Surroundings, surroundings
from tests.calls_kit import governor_state, gpu_calls, many_calls, sampled_calls
from tests.drain_kit import played, recorded
from tests.integration.test_agent_cli import write_config
from tests.local_kit import BOOT, S, at, flattener
from tests.terminal_kit import Terminal

_CODE = (
    "import pointillist.cli.agent_file as a; a.become_agent = lambda config: None;"
    "from pointillist.cli import main; main()"
)


@pytest.fixture
def made(tmp_path: Path) -> Surroundings:
    made = surroundings(tmp_path)
    made.config.host.state_dir.mkdir(exist_ok=True)
    return made


def view_of(*records: object) -> dict[str, Any]:
    """The live view of an agent that has just drained these."""
    recent = Recent()
    recent.add(flattener().rows("probes", records))
    ends = [one.boottime_ns + one.span_ns for one in records if isinstance(one, GpuCalls)]
    agent = {"sources": ["probes"], "absent": [], "failing": {}}
    shown: dict[str, Any] = document(replace(recent.view(at(max(ends))), agent=agent))
    return shown


def recorded_view() -> dict[str, Any]:
    (calls,) = played(recorded())
    return view_of(calls, governor_state(calls.boottime_ns))


def shows(*texts: str) -> Callable[[str], bool]:
    return lambda picture: all(text in picture for text in texts)


def page(view: dict[str, Any] | None, columns: int, rows: int) -> list[str]:
    console = Console(width=columns, height=rows, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(calls_page(view, "a note", ConsoleDimensions(columns, rows)), height=rows)
    return captured.get().rstrip("\n").split("\n")


def test_top_shows_recorded_gpu_calls_in_a_small_terminal(made: Surroundings) -> None:
    config, live = write_config(made), LiveSocket(made.config.live_socket)

    def serve() -> None:
        live.serve(lambda: [json.dumps(recorded_view())])

    arguments = ("agent", "top", "-c", str(config), "--interval", "0.2")
    with Terminal(80, 24, [sys.executable, "-c", _CODE, *arguments]) as terminal:
        terminal.until(shows("(key g)", "beside the running agent"), serve)
        terminal.press(b"g")
        picture = terminal.until(shows("GPU calls, raw", "GPU→GPU", "all_reduce"), serve)
        text = "\n".join(picture)
        assert len(picture) <= 24
        assert max(cell_len(line) for line in picture) == 80
        # What was recorded: 10,006 launches of one process and 1.164 s, three kernels of it.
        assert "8,594" in text
        assert "2,865" in text
        for part in ("cutlass::Kernel2", "gemm", "attention", "0.41 % of 0.50 %",
                     "launch, copy: 25.0 % of 8 s seen", "not other, synchronise: over the budget",
                     "lost samples 17", "failed", "peak", "unfreed", "oldest"):  # fmt: skip
            assert part in text, part
        terminal.press(b"\t")
        terminal.until(shows("top processes"), serve)
        terminal.press(b"q")
        assert terminal.ended() == (0, True)
    live.close()


@pytest.mark.parametrize("size", [(80, 24), (60, 15), (40, 10), (100, 30), (200, 60), (20, 4)])
def test_gpu_calls_fit_in_every_terminal(size: tuple[int, int]) -> None:
    views: tuple[dict[str, Any] | None, ...] = (
        recorded_view(), view_of(sampled_calls(), governor_state()), view_of(many_calls(60, 9)),
        None, {},
    )  # fmt: skip
    for view in views:
        lines = page(view, *size)
        assert len(lines) <= size[1]
        assert max(cell_len(line) for line in lines) <= size[0]


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_gpu_calls_keep_names_and_titles_whole(columns: int) -> None:
    """Kernels' names have hundreds of characters; all else is whole."""
    text = "\n".join(page(recorded_view(), columns, 30))
    for part in (" process ", "python3-1", "launches/s", "wait %", "peak", "failed",
                 "collective ", "all_reduce ", "by address "):  # fmt: skip
        assert part in text, part


def test_gpu_calls_at_80x24_show_each_part_even_of_a_busy_host() -> None:
    crowd = many_calls(60, 9)
    text = "\n".join(page(view_of(crowd, governor_state()), 80, 24))
    for title in ("processes, the busiest 4 of 60", "kernels, the busiest 5 of 540", "copies",
                  "collectives"):  # fmt: skip
        assert title in text
    assert len([line for line in text.split("\n") if line.startswith("│ 10")]) == 4
    assert text.count(" gemm ") == 5 + 1, "five rows of kernels, and the family below them"


def test_gpu_calls_show_the_error_only_of_what_was_sampled() -> None:
    exact = "\n".join(page(view_of(gpu_calls()), 120, 30))
    assert "seen %" not in exact
    sampled = "\n".join(page(view_of(sampled_calls(), governor_state()), 120, 30))
    assert "seen %" in sampled
    (row,) = [line for line in sampled.split("\n") if "paged_attention_v2" in line]
    assert row.split()[1:4] == ["250", "24.5", "25.0"]


def test_gpu_calls_say_when_nothing_is_seen() -> None:
    assert "no GPU call was seen" in "\n".join(page(None, 80, 24))
    assert calls_panels(document(HostView()), 80) == []


def test_gpu_calls_say_what_is_seen_when_groups_are_dropped() -> None:
    state = replace(governor_state(), in_turns=(), dropped={ProbeGroup.COPY: "over the budget"})
    text = "\n".join(page(view_of(gpu_calls(), state), 80, 24))
    assert "all seen of name, memory; not copy: over the budget" in text
    wide = "\n".join(page(view_of(gpu_calls(), state), 200, 24))
    assert "without a kernel name: 12.5 % as their handles were made before" in wide
    state = replace(state, dropped={})
    assert "every call is seen" in "\n".join(page(view_of(gpu_calls(), state), 80, 24))


@pytest.mark.parametrize("width", [60, 80, 160])
def test_gpu_calls_in_a_pipe_keep_process_ids_whole(width: int) -> None:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        for part in calls_panels(recorded_view(), width):
            console.print(part)
    text = captured.get()
    assert text.count("31041") >= 4, "one process and its three kernels"
    assert "8,594" in text


def test_gpu_calls_of_a_hostile_name_are_text() -> None:
    calls = gpu_calls()
    named = tuple(one._replace(kernel="[red]k[/]\x1b]0;t\x07") for one in calls.kernels)
    hostile = GpuCalls(BOOT, S, calls.processes, named)
    text = "\n".join(page(view_of(hostile), 120, 30))
    assert "[red]k[/]" in text
    assert "\x1b]0" not in text


def test_history_command_shows_gpu_calls_and_writes_parquet(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, point = write_config(made), read_point()
    history = History(made.config.history_file)
    history.note_clock(point)
    for calls in played(recorded()):
        recent = GpuCalls(point.boottime_ns - 2 * S, S, calls.processes, calls.kernels)
        history.add(flattener().rows("probes", [recent]))
    history.close()

    monkeypatch.setattr(agent_file, "become_agent", lambda _config: None)

    def shown(*arguments: str) -> str:
        words = ["pointillist", "agent", "history", "-c", str(config), *arguments]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    text = shown("--since", "5m", "--kind", "kernel") + shown("--since", "5m", "--kind", "process")
    for part in ("GPU kernel", "cutlass::Kernel2", "copies host_to_device", "all_reduce on 0xc0100",
                 "never freed", "failed 3 times with"):  # fmt: skip
        assert part in text, part
    assert text.index("GPU calls of python3-1[31041]") < text.index("GPU calls of python3-8[31048]")
    document = json.loads(shown("--since", "5m", "--kind", "process", "--json"))
    assert {row["application"] for row in document["process"]} == {"llm_training"}
    out = made.folder / "calls.parquet"
    shown("--since", "5m", "--kind", "process", "--parquet", str(out))
    table = parquet.read_table(out).to_pylist()
    assert sum(row["seen"] for row in table) == sum(
        row.launches for drain in recorded() for row in drain.launches
    )
    copied = [copy for row in table for copy in row["copies"]]
    recorded_bytes = sum(row.bytes for drain in recorded() for row in drain.copies)
    assert sum(copy["bytes"] for copy in copied) == recorded_bytes
    assert all(copy["log2_bins"] for copy in copied)


def test_history_summary_is_bounded() -> None:
    def lines(count: int) -> list[str]:
        return process_lines(HostView(processes=tuple(map(_process_line, range(count)))))

    assert lines(1) == ["GPU calls of p0[0]: 0.0 launches/s, waits 0.0 % in 1 s"]
    told = lines(100)
    assert sum("GPU calls of" in line for line in told) == 20
    assert told[-1] == "and 80 more processes: --kind process --json has them"


def _process_line(number: int) -> ProcessLine:
    return ProcessLine(number, f"p{number}", "", "", "", "", 1.0, RateEstimate(float(number)), 0.0)
