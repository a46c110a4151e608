"""Ranks of a PyTorch gloo job on CPU, for the system's Python: imports torch once, forks each rank.

Each line on stdin starts a job or steers the running one, see `Launcher`. Nothing of the project
is imported here.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel end this process with its parent.

    A test run that is killed tells nobody to end, and ranks that step on take the CPUs of the next.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os._exit(1)


end_with(int(sys.argv[1]))  # before torch is imported, which takes seconds
torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")

STEP_CPU_S = 0.01


def say(line: dict[str, object]) -> None:
    """One write a line: ranks share the pipe."""
    os.write(1, (json.dumps(line) + "\n").encode())


def rank_main(rank: int, world: int, job: dict[str, Any]) -> None:
    """Join the rank's cgroup, then take steps until told to end."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for file in job["cgroups"][rank]:
        Path(file).write_text(str(os.getpid()), encoding="utf-8")
    weights = torch.rand(192, 192)
    gradient = torch.zeros(20_000)
    steering = Path(job["steering"])
    say({"rank": rank, "pid": os.getpid()})
    dist.barrier()
    steered, plan, steps = 0, dict[str, Any](), 0
    while True:
        if (changed := steering.stat().st_mtime_ns) != steered:
            steered, plan = changed, json.loads(steering.read_text(encoding="utf-8"))
        until = time.thread_time() + STEP_CPU_S * plan.get("work", {}).get(str(rank), 1.0)
        while time.thread_time() < until:
            weights = torch.softmax(weights @ weights.T, dim=1)
        gradient[0] = 1.0 if plan.get("end") else 0.0
        dist.all_reduce(gradient)
        steps += 1
        if float(gradient[0]) > 0:
            break
    dist.barrier()
    say({"rank": rank, "steps": steps})


def main() -> None:
    say({"torch": torch.__version__})
    for line in sys.stdin:
        job = json.loads(line)
        world = len(job["cgroups"])
        children, here = [], os.getpid()
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    end_with(here)
                    rank_main(rank, world, job)
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        say({"ended": codes})


main()
