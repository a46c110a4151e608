"""The host's page of `agent top`: numbers are whole on every terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions

from edge_agent.local.proc_view import DiskUse, LinkUse, ProcessSample, ProcView
from pointillist.cli.agent_top import View, screen

_HOST = ProcView(
    cpu_percent={"user": 60.0, "idle": 40.0},
    cpus_percent=(60.0,),
    run_queue={"running": 31.0, "blocked": 2.0, "load_1m": 12.75},
    pressure={"cpu some": 98.3, "memory some": 100.0},
    softirqs_per_s={"HRTIMER": 12_345.0},
    memory_bytes={"total": 1 << 34, "available": 1 << 33, "cached": 0, "swap_used": 0},
    disks=(DiskUse("nvme10n1", 1.5e9, 999e6, 98.0, 123.45),),
    links=(LinkUse("enp193s0f0np0", 12.5e9, 11e9, 17.0),),
    processes=(ProcessSample(4194303, "training-loop-0", 1587.5, 99.8, 80 << 30),),
    span_s=1.0,
)


_NOTE = "no configuration: this host's /proc alone (--config names one)"
_VIEW: dict[str, Any] = {
    "agent": {
        "next_send_s": 3.0, "published": 1, "queued": 0, "transport_up": True,
        "refused": {"no_roster": 2_100},
    },
    "reports": [
        {"series": "minute", "window_s": 60, "ends_in_s": 9.0, "bytes": 900, "scheme": "shares",
         "sections": [{"name": "kernel_mix", "noise": 12.0, "unit": "ms", "cells": []}]},
    ],
    "levels": [
        {"source": "devices", "name": "gpu.utilisation_percent", "key": "GPU-1", "last": 97.0},
    ],
}  # fmt: skip
_SIZES = [(60, 24), (60, 40), (80, 24), (100, 30), (140, 40), (200, 50)]


def shown(width: int, height: int, view: View | None, host: ProcView = _HOST) -> list[str]:
    console = Console(width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen(host, view, _NOTE, ConsoleDimensions(width, height)))
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), _SIZES)
def test_top_screen_cuts_no_numbers(width: int, height: int) -> None:
    text = "\n".join(shown(width, height, None))
    least = ("4194303", "1587.5", "99.8", "31, 2", "12.75", "98", "17")
    for part in (*least, *(("cpu some", "100") if width >= 80 else ())):
        assert part in text, part


def test_top_screen_shows_the_next_report_in_units_that_people_read() -> None:
    sections = [
        {"name": "host_cpu", "noise": 28_848_984.0, "unit": "millionths of full scale",
         "cells": [{"cell": "user", "value": 903_226}]},
        {"name": "kernel_mix", "noise": 1_153_959.0, "unit": "GPU-ms", "cells": []},
    ]  # fmt: skip
    view = {**_VIEW, "reports": [{**_VIEW["reports"][0], "sections": sections}]}
    text = "\n".join(shown(200, 50, view))
    assert "host_cpu: user 90.3 %  ± 2,885 % each" in text
    assert "kernel_mix: 0  ± 1,154 GPU-s each" in text


@pytest.mark.parametrize(("width", "height"), _SIZES)
def test_top_screen_shows_whole_names_and_words(width: int, height: int) -> None:
    """A comm has at most 15 characters; no title or word of our own is cut either."""
    lines = shown(width, height, None)
    assert any("training-loop-0 " in line for line in lines)
    assert any(" pid process " in line for line in lines)
    ours = [line for line in lines if "nvme" not in line and "enp193" not in line]
    assert not [line for line in ours if "…" in line]
    assert all(word in " ".join(lines).replace("│", "") for word in _NOTE.split())


@pytest.mark.parametrize(("width", "height"), _SIZES)
def test_top_screen_has_no_empty_panel(width: int, height: int) -> None:
    """What is empty is a line of the sources, and the processes have the rows."""
    many = replace(_HOST, processes=tuple(replace(_HOST.processes[0], pid=n) for n in range(60)))
    lines = shown(width, height, None, many)
    text = "\n".join(lines)
    assert "─ GPU ─" not in text
    assert "about to leave, " not in text
    assert "GPU: no device source has a fresh value" in text
    assert "nothing is about to leave this host" in text
    assert len(lines) == height
    assert not [line for line in lines if set(line) <= {" ", "│"}]


@pytest.mark.parametrize(("width", "height"), _SIZES)
def test_top_screen_shows_gpus_and_the_next_report_beside_an_agent(width: int, height: int) -> None:
    text = "\n".join(shown(width, height, _VIEW))
    assert "GPU-1" in text
    assert " 97 " in text
    assert "the report about to leave, ± 1 sigma" in text
    assert "published 1, waiting 0" in text
    assert "not sent so far, by reason: no_roster 2,100" in text
    assert "no device source" not in text
