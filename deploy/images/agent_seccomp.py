"""Print a seccomp profile for agents: a runtime's own one, with what eBPF needs.

python3 agent_seccomp.py [/usr/share/containers/seccomp.json]

Newer runtimes allow bpf() to whoever has CAP_BPF and perf_event_open() to whoever has CAP_PERFMON;
older ones, as Podman 4, ask for CAP_SYS_ADMIN, which the agent does not want. Nothing else changes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DEFAULT = Path("/usr/share/containers/seccomp.json")
NEEDED = {"bpf": "CAP_BPF", "perf_event_open": "CAP_PERFMON"}


def with_ebpf(profile: dict[str, Any]) -> dict[str, Any]:
    """Take both calls out of every rule, and allow each with its own capability."""
    rules = [
        {**rule, "names": [name for name in rule["names"] if name not in NEEDED]}
        for rule in profile["syscalls"]
    ]
    own = [
        {"names": [name], "action": "SCMP_ACT_ALLOW", "includes": {"caps": [capability]}}
        for name, capability in NEEDED.items()
    ]
    return {**profile, "syscalls": [rule for rule in rules if rule["names"]] + own}


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    json.dump(with_ebpf(json.loads(source.read_text(encoding="utf-8"))), sys.stdout, indent=1)
