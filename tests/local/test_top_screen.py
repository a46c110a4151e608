"""The host's page of `agent top`: numbers are whole on every terminal."""

from __future__ import annotations

import pytest
from rich.console import Console, ConsoleDimensions

from edge_agent.local.proc_processes import ProcessUse
from edge_agent.local.proc_view import DiskUse, HostView, LinkUse
from pointillist.cli.top_screen import screen

_HOST = HostView(
    cpu_percent={"user": 60.0, "idle": 40.0},
    cpus_percent=(60.0,),
    run_queue={"running": 31.0, "blocked": 2.0, "load_1m": 12.75},
    pressure={"cpu some": 98.3, "memory some": 100.0},
    softirqs_per_s={"HRTIMER": 12_345.0},
    memory_bytes={"total": 1 << 34, "available": 1 << 33, "cached": 0, "swap_used": 0},
    disks=(DiskUse("nvme10n1", 1.5e9, 999e6, 98.0, 123.45),),
    links=(LinkUse("enp193s0f0np0", 12.5e9, 11e9, 17.0),),
    processes=(ProcessUse(4194303, "training-loop-of-a-long-name", 1587.5, 99.8, 80 << 30),),
    span_s=1.0,
)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (140, 40)])
def test_top_screen_cuts_names_and_no_numbers(width: int, height: int) -> None:
    console = Console(width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen(_HOST, None, "", ConsoleDimensions(width, height)))
    shown = captured.get()
    for part in ("4194303", "1587.5", "99.8", "31, 2", "12.75", "cpu some", "100", "98", "17"):
        assert part in shown, part
