"""What one agent costs its host, and a workload beside it: make bench-agent.

The agent is the real one in a process of its own, with every source this machine has, the shipped
plan's tasks, noise, ledger, local history and the embedded log.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.agent_host import AgentHost, make_host, running
from bench.agent_measure import (
    MIB,
    Median,
    Sample,
    bpf_bytes,
    bpf_cost,
    core_percent,
    fitted,
    look,
    median_of,
    pingpong,
    run,
)
from bench.parts import Measured, Parts
from bench.record import Figure
from edge_agent.local.gathering import EVERY_MS
from pointillist.fleet.party_config_text import MEASURING
from tests.fake_nvml_kit import FakeDriver

Numbers = dict[str, float]

SECONDS: Final = 600
GPU_SECONDS: Final = 120
PAIRS: Final = 20
WARM_S: Final = 65.0
"""Until the first report is sealed and the PLD check's child has ended: once in an agent's life."""
_SETTLE_S: Final = 3.0
_KEPT_S: Final = EVERY_MS / 1e3 + 2
"""Until what was measured is in the history."""
_SAY_EVERY_S: Final = 30.0
_EMPTY_NS: Final = 90.0
"""An empty program on sched_switch, measured on this kind of machine."""
_SAMPLER: Final = """
import json, time
import edge_agent.open_agent
from collectors.boot_clock import boottime_ns
from collectors.ebpf.ebpf_source import EbpfSource
from pointillist.cli.agent_run import settle
def kib():
    text = open("/proc/self/status").read()
    return int(text.split("VmRSS:")[1].split()[0])
settle()
before = kib()
source = EbpfSource()
source.start()
for _ in range(5):
    time.sleep(1)
    for record in source.drain(boottime_ns()):
        pass
settle()
print(json.dumps(kib() - before))
"""

_VIEW: Final = """
import json, time
from dataclasses import replace
from collectors.boot_clock import ClockPoint
from edge_agent.local.local_rows import MetricRow, RecordRow
from edge_agent.local.recent import Recent
from edge_agent.local.view_lines import pieces
from pointillist.cli.agent_run import settle
from tests.calls_kit import many_calls
from tests.gpu_times_kit import BOOT, S, gpu_times
PROCESSES, KERNELS, METRICS, ANSWERS = 64, 50, 2_000, 30
def kib():
    return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0])
calls, times = many_calls(PROCESSES, 1), gpu_times()
timed = [
    times.processes[0]._replace(process=one.process._replace(pid=10_000 + one.process.pid))
    for one in calls.processes[:KERNELS // len(times.processes[0].kernels)]
]
recent = Recent()
for second in range(10):
    at_ns = BOOT + second * S
    recent.add([RecordRow("probes", replace(calls, boottime_ns=at_ns))])
    recent.add([RecordRow("gpu_time", replace(times, boottime_ns=at_ns, processes=timed))])
    recent.add(MetricRow(at_ns, S, "host", f"m{n}", "k", "ns", 1.0) for n in range(METRICS))
def answer():
    begun = time.process_time()
    b"".join(map(str.encode, pieces(recent.view(ClockPoint(BOOT + 10 * S, BOOT, 0)))))
    return 1e3 * (time.process_time() - begun)
settle()
before = kib()
spent = sorted(answer() for _ in range(ANSWERS))
print(json.dumps({"ms": spent[ANSWERS // 2], "kib": kib() - before}))
"""

_LOADED: Final = """
import sys
import pointillist.cli.agent
from pointillist.cli import agent_run, main
agent_run.load = lambda options: sys.exit(0)
sys.argv = ["pointillist", "agent", "run"]
try:
    main()
except SystemExit:
    agent_run.settle()
print(open("/proc/self/status").read().split("VmRSS:")[1].split()[0])
"""


def measure(kept: Parts) -> Measured:
    """Measure what is missing; give the figures of all that this machine could run."""
    if os.geteuid() != 0:
        raise SystemExit("expected root: the agent is measured with eBPF, as it runs in production")
    seconds, count = kept.scaled(SECONDS, 20), kept.scaled(PAIRS, 2)
    load = os.getloadavg()[0]
    sampler_kib = kept.get("sampler", _sampler)["added_kib"]
    alone = kept.get("steady", lambda: steady(seconds))
    gpus = kept.get("gpus", lambda: eight_gpus(kept.scaled(GPU_SECONDS, 20)))
    both = pairs(kept, count)
    found = [
        *_agent(alone, sampler_kib, both),
        *(_gpus(gpus) if gpus else ()),
        *workload_figures(both),
    ]
    load = statistics.mean([load, os.getloadavg()[0]])
    beside = f"load average {load:.1f} during the run, {seconds} s, {count} pairs"
    return Measured(found, beside=beside)


def beside_generated(kept: Parts) -> Measured:
    """Measure a workload beside an agent of a generated configuration."""
    both = pairs(kept, kept.scaled(PAIRS, 2), MEASURING)
    return Measured(workload_figures(both, goal=1.0))


def view(kept: Parts) -> Measured:
    """Measure what an answer to `agent top` costs where much was measured."""
    del kept  # it takes seconds
    command = [sys.executable, "-c", _VIEW]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    spent = json.loads(done.stdout)
    what = "an answer of 64 processes, 50 timed kernels, 2,000 metrics"
    return Measured([
        Figure("view_answer_ms", spent["ms"], f"ms of CPU time for {what}", 20.0),
        Figure("view_answer_mb", spent["kib"] * 1024 / 1e6, f"MB of memory for {what}", 2.0),
    ])  # fmt: skip


def loaded(kept: Parts) -> Measured:
    """Measure what `agent run` holds before it reads its configuration."""
    del kept  # it takes a second
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True
    )
    mb = int(done.stdout) * 1024 / 1e6
    return Measured(
        [Figure("agent_run_import_mb", mb, "MB of memory, all of `agent run` imported")]
    )


@contextmanager
def host(measuring: str | None = None) -> Iterator[AgentHost]:
    """Make a host in a folder that goes away, as `make_host` does."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pointillist-bench-") as folder:
        Path(folder).chmod(0o755)
        yield make_host(Path(folder) / "host", measuring=measuring)


def _sampler() -> Numbers:
    """Give what loading the eBPF source adds to a process that has the agent's modules."""
    done = subprocess.run(
        [sys.executable, "-c", _SAMPLER], capture_output=True, text=True, check=True
    )
    return {"added_kib": float(json.loads(done.stdout))}


def steady(seconds: float) -> Numbers:
    with host() as made, running(made) as pid:
        _wait(WARM_S, "warming up")
        begun_ns, first = time.time_ns(), look(pid)
        _wait(seconds, "the agent at 100 Hz")
        last, ended_ns = look(pid), time.time_ns()
        user, system = core_percent(first, last)
        held = bpf_bytes(pid)
        time.sleep(_KEPT_S)
        bpf = bpf_cost(made.history_file, begun_ns, ended_ns)
    return {
        "user": user, "system": system, "rss_mib": last.rss_mib, "bpf_bytes": held, "bpf": bpf,
    }  # fmt: skip


def eight_gpus(seconds: float) -> Numbers:
    """Run the agent with the fake NVML's eight GPUs, looked at once a second."""
    if shutil.which("gcc") is None:
        print("install gcc, to build the fake NVML")
        return {}
    with host() as made:
        driver = FakeDriver(made.folder)
        (made.folder / "scenario").chmod(0o644)
        with running(made, driver.environment) as pid:
            _wait(WARM_S, "warming up")
            first = look(pid)
            _wait(seconds, "the agent with eight GPUs")
            last = look(pid)
        assert "devices" not in made.log_file.read_text(), "expected the fake NVML to be read"
    user, system = core_percent(first, last)
    return {"user": user, "system": system, "family_mib": last.family_mib}


def pairs(kept: Parts, count: int = PAIRS, measuring: str | None = None) -> list[Numbers]:
    """Measure the workloads with and without the agent, two pairs to a start of it.

    kept        has the pairs of an earlier run, and gets each two
    measuring   what the agent measures, as `make_host` has it
    """
    done: list[Numbers] = (kept.begun("pairs") or {}).get("done", [])
    load = fitted()

    def both() -> tuple[Sample, Sample]:
        return run(*load), pingpong()

    while len(done) < count:
        with host(measuring) as made:
            off = [both()]
            with running(made):
                time.sleep(_SETTLE_S)
                begun_ns = time.time_ns()
                on = [both(), both()]
                ended_ns = time.time_ns()
                time.sleep(_KEPT_S)
            bpf = bpf_cost(made.history_file, begun_ns, ended_ns)
            off.append(both())
        for without, beside in zip(off, on, strict=True):
            work, worst = (
                100 * (b.wall_s / w.wall_s - 1) for w, b in zip(without, beside, strict=True)
            )
            switch_ns = 1e9 * (beside[1].wall_s - without[1].wall_s) / beside[1].switches
            done.append({"work": work, "pingpong": worst, "switch_ns": switch_ns, "bpf": bpf})
        kept.keep("pairs", {"done": done})
        print(f"pairs: {len(done)} of {count}", flush=True)
    return done


def _wait(seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        print(f"{time.strftime('%H:%M:%S')} {what}: {left:.0f} s to go", flush=True)
        time.sleep(min(left, _SAY_EVERY_S))


def _agent(steady: Numbers, sampler_kib: float, both: list[Numbers]) -> list[Figure]:
    """Give what the agent takes, and what a switch of the ping-pong costs more beside it."""
    of_core, both_ways = "percent of a core", steady["user"] + steady["system"]
    maps_mib = steady["bpf_bytes"] / MIB + sampler_kib / 1024
    under_load = median_of([one["bpf"] for one in both])
    switch_ns = median_of([one["switch_ns"] for one in both])
    return [
        Figure("agent_core_percent_100hz", steady["user"], of_core, 0.25),
        Figure("agent_core_percent_with_system_calls", both_ways, of_core),
        Figure("agent_rss_mib", steady["rss_mib"], "MiB", 120.0),
        Figure("bpf_maps_and_sampler_mib", maps_mib, "MiB", 4.0),
        Figure("bpf_core_percent_100hz", steady["bpf"], of_core),
        Figure("bpf_core_percent_at_workload", under_load.value, of_core),
        *_spread("bpf_ns_per_context_switch", switch_ns, "ns", "ns", 200.0, _EMPTY_NS),
    ]


def _gpus(gpus: Numbers) -> list[Figure]:
    name, both_ways = "agent_core_percent_with_8_gpus", gpus["user"] + gpus["system"]
    return [
        Figure(name, gpus["user"], "percent of a core"),
        Figure(f"{name}_and_system_calls", both_ways, "percent of a core"),
        Figure("agent_and_reader_mib_with_8_gpus", gpus["family_mib"], "MiB, shared pages once"),
    ]


def workload_figures(both: list[Numbers], goal: float = 0.5) -> list[Figure]:
    """Give what the agent takes from its neighbours.

    goal    for the workload with network traffic, percent
    """
    median, interval = "percent, median of pairs", "percent, 95 % interval"
    work, worst = (median_of([one[of] for one in both]) for of in ("work", "pingpong"))
    return [
        *_spread("workload_slowdown_percent", work, median, interval, goal),
        Figure("workload_pairs", len(both), "pairs"),
        *_spread("pingpong_slowdown_percent", worst, median, interval),
    ]


def _spread(
    name: str, found: Median, unit: str, of_interval: str, *judged: float | None
) -> Iterator[Figure]:
    yield Figure(name, found.value, unit, *judged)
    yield Figure(f"{name}_low", found.low, of_interval)
    yield Figure(f"{name}_high", found.high, of_interval)
