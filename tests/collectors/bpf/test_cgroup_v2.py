"""The unified hierarchy on this kernel: in a mount namespace that shows no v1 hierarchy at all.

Controllers stay with v1 on a machine that booted with it, so that the tree has none; ids, names and
cpu.stat's usage need none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.kernel]

SCRIPT = """
import json, subprocess, sys
from pathlib import Path
from collectors.bpf.cgroup_names import hierarchy_of
from collectors.ebpf.ebpf_source import EbpfSource
from tests.bpf_kit import Load, drain

root = Path(sys.argv[1])
mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
for _, path, kind, *_ in reversed(mounts):
    if kind in ("cgroup", "cgroup2"):
        subprocess.run(["umount", "--lazy", path], check=True)
subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], check=True)
group = root / sys.argv[2] / "job"
group.mkdir(parents=True)


def usage_ns():
    rows = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return 1000 * int(dict(rows)["usage_usec"])


source = EbpfSource("libbpf")
source.start()
try:
    # Two share a CPU, so that each is soon seen to come: a task is counted from then on.
    loads = [Load("spin", 0.2, cwd=root), Load("spin", 0.2, cwd=root)]
    loads.append(Load("tcp", 8 << 20, cwd=root))
    for load in loads:
        (group / "cgroup.procs").write_text(str(load.pid))
    drain(source)
    begun_ns = usage_ns()
    for load in loads:
        load.go()
    for load in loads:
        load.wait()
    seen, used_ns = drain(source), usage_ns() - begun_ns
    for load in loads:
        load.end()
    group.rmdir()
    group.parent.rmdir()
    drain(source)
    gone = drain(source)
finally:
    source.stop()
found = hierarchy_of("cpu")
print(json.dumps({
    "path": found.path, "unified": found.unified, "used_ns": used_ns,
    "rows": list(seen.tables["cgroup"].rows),
    "kept": list(gone.tables["cgroup"].rows) if "cgroup" in gone.tables else [],
    "row": seen.row("cgroup", f"/{group.parent.name}/job"),
}))
"""


@pytest.fixture(scope="module")
def unified(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cgroup2")
    repository = Path(__file__).parents[3]
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", SCRIPT, str(folder), f"plst-{os.getpid()}"],
        capture_output=True, text=True, timeout=60, check=False, cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return {**said, "folder": str(folder)}


def test_cgroup_v2_is_what_the_loader_finds_without_v1(unified: dict[str, Any]) -> None:
    assert unified["unified"] is True
    assert unified["path"] == unified["folder"]


def test_cgroup_v2_cpu_time_equals_cpu_stat(unified: dict[str, Any]) -> None:
    row, used_ns = unified["row"], unified["used_ns"]
    assert used_ns > 0.3e9
    assert abs(row["cpu_ns"] - used_ns) <= 0.02 * used_ns + 20_000_000


def test_cgroup_v2_gets_what_its_tasks_did(unified: dict[str, Any]) -> None:
    row = unified["row"]
    assert row["send_bytes"] >= 8 << 20
    assert row["receive_bytes"] >= 8 << 20
    assert row["switches"] > 0
    assert row["page_faults"] > 0
    assert row["throttled_ns"] == 0


def test_cgroup_v2_root_keeps_its_name_and_a_removed_group_goes(unified: dict[str, Any]) -> None:
    assert "/" in unified["rows"]
    assert not [name for name in unified["kept"] if name.startswith(("/plst-", "gone:"))]
