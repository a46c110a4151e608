"""Run as a program, as root: BCC's loader on a kernel whose perf takes no uprobes.

python -m tests.collectors.gpu_calls.attaching LIBRARY CALLER: attaches, has CALLER launch, says
what was counted and what the kernel lists, waits for a line, detaches and lists once more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from collectors.bpf import libbpf
from collectors.gpu_calls import programs_bcc
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.records.gpu_calls import ProbeGroup
from tests.probes_kit import attachments, now_ns

LAUNCHES = 1009


def listed() -> list[str]:
    return [event for event, _ in libbpf.listed()]


def main(library: str, caller: str) -> None:
    table = ProbeTable.load()
    programs = programs_bcc.GpuPrograms(table)
    launches = [one for one in attachments(Path(library), table) if one.group is ProbeGroup.LAUNCH]
    programs.attach(1, library, launches)
    subprocess.run([caller, "threads", "1", str(LAUNCHES)], check=True, stdout=subprocess.DEVNULL)
    calls = {row.call: row.calls for row in programs.drain(now_ns()).calls}
    print(json.dumps({"events": listed(), "calls": calls}), flush=True)
    sys.stdin.readline()
    programs.close()
    print(json.dumps({"events": listed()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
