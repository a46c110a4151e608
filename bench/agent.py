"""What one agent costs its host, beside node_exporter and beside a workload: make bench-agent.

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
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.agent_host import AgentHost, make_host, running
from bench.agent_measure import (
    MIB,
    PACKAGE,
    Median,
    Sample,
    Workload,
    bpf_bytes,
    bpf_cost,
    bpf_runs,
    core_percent,
    exporter,
    fitted,
    look,
    median_of,
    pingpong,
    program,
    switches_now,
)
from bench.parts import Measured, Parts
from bench.record import Figure
from edge_agent.local.gathering import EVERY_MS
from edge_agent.local.history_tables import file_bytes
from pointillist.fleet.party_config_text import MEASURING
from tests.fake_nvml_kit import FakeDriver
from transport.embedded.embedded import EmbeddedLog
from wire.topics import EPOCHS, REPORTS

Numbers = dict[str, float]

SECONDS: Final = 600
GPU_SECONDS: Final = 120
PAIRS: Final = 20
SCRAPES_S: Final = (15.0, 1.0)
WARM_S: Final = 65.0
"""Until the first report is sealed and the PLD check's child has ended: once in an agent's life."""
STATISTICS: Final = Path("/proc/sys/kernel/bpf_stats_enabled")
_STATISTICS_S: Final = 10.0
_SETTLE_S: Final = 3.0
_KEPT_S: Final = EVERY_MS / 1e3 + 2
"""Until what was measured is in the history."""
_SAY_EVERY_S: Final = 30.0
_HOUR_S: Final = 3600
_EMPTY_NS: Final = 90.0
"""An empty program on sched_switch, measured on this kind of machine."""
_SAMPLER: Final = """
import json, time
import edge_agent.live
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
from edge_agent.local.local_rows import CallsRow, GpuTimesRow, MetricRow
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
    recent.add([CallsRow("probes", replace(calls, boottime_ns=at_ns))])
    recent.add([GpuTimesRow("gpu_time", replace(times, boottime_ns=at_ns, processes=timed))])
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
        *_agent(alone, sampler_kib),
        *_bpf(alone, both),
        *(_gpus(gpus) if gpus else ()),
        *_exporter(alone),
        *workload_figures(both),
    ]
    load = statistics.mean([load, os.getloadavg()[0]])
    beside = f"load average {load:.1f} during the run, {seconds} s, {count} pairs"
    return Measured(found, beside=beside)


def beside_generated(kept: Parts) -> Measured:
    """Measure a workload beside an agent of a generated configuration."""
    both = pairs(kept, kept.scaled(PAIRS, 2), MEASURING)
    wanted = ("workload_slowdown", "workload_pairs", "pingpong")
    found = workload_figures(both, goal=1.0)
    return Measured([figure for figure in found if figure.name.startswith(wanted)])


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
    """Run the agent, with node_exporters beside it, and measure both."""
    with ExitStack() as stack:
        made = stack.enter_context(host())
        peers = []
        if path := program():
            peers = [stack.enter_context(exporter(path, every_s)) for every_s in SCRAPES_S]
        else:
            print(f"install the package {PACKAGE} to compare with it")
        pid = stack.enter_context(running(made))
        _wait(WARM_S, "warming up")
        begun_ns, switches = time.time_ns(), switches_now()
        kept_bytes, early = file_bytes(made.history_file), _wire(made)["reports"]
        before = {one.every_s: look(one.pid) for one in peers}
        first = look(pid)
        _wait(seconds, "the agent at 100 Hz")
        last = look(pid)
        after = {one.every_s: look(one.pid) for one in peers}
        ended_ns, switches = time.time_ns(), switches_now() - switches
        span_s = last.at_s - first.at_s
        user, system = core_percent(first, last)
        found: Numbers = {
            "user": user, "system": system, "rss_mib": last.rss_mib,
            "wakeups": (last.sleeps - first.sleeps) / span_s, "switches": switches / span_s,
            "bpf_bytes": bpf_bytes(pid), "seconds": span_s,
            "history_mib": (file_bytes(made.history_file) - kept_bytes) / MIB,
        }  # fmt: skip
        if (each_ns := _statistics(pid)) is not None:
            found["statistics_ns"] = each_ns
        for one in peers:
            used = core_percent(before[one.every_s], after[one.every_s])
            found[f"exporter_{one.every_s:g}s"] = sum(used)
        time.sleep(_KEPT_S)
        found["bpf"], found["page_faults"] = bpf_cost(made.history_file, begun_ns, ended_ns)
        wire = _wire(made)
        return found | wire | {"reports": wire["reports"] - early}


def _statistics(pid: int) -> float | None:
    """Have the kernel time every run for a moment, ns each; it costs, so it is apart."""
    before_text = STATISTICS.read_text()
    try:
        STATISTICS.write_text("1")
    except OSError:
        return None
    try:
        before = bpf_runs(pid)
        time.sleep(_STATISTICS_S)
        after = bpf_runs(pid)
    finally:
        STATISTICS.write_text(before_text)
    runs = sum(after[one][0] - before[one][0] for one in after if one in before)
    spent = sum(after[one][1] - before[one][1] for one in after if one in before)
    return spent / max(runs, 1)


def _wire(made: AgentHost) -> Numbers:
    """Sum the bytes of what the agent published."""
    sizes: dict[str, list[int]] = {EPOCHS: [], REPORTS: []}
    with EmbeddedLog(made.folder / "log") as log:
        consumer = log.consumer(f"bench-{time.time_ns()}", [EPOCHS, REPORTS])
        while page := consumer.poll(1_000, 0.0):
            for record in page:
                sizes[record.topic].append(len(record.key) + len(record.value))
        consumer.close()
    reports = sizes[REPORTS]
    return {
        "reports": len(reports),
        "report_bytes": sum(reports) / max(len(reports), 1),
        "epoch_bytes": sum(sizes[EPOCHS]) / max(len(sizes[EPOCHS]), 1),
    }


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
    fit = fitted()
    while len(done) < count:
        with host(measuring) as made:
            off = [_both(fit)]
            with running(made):
                time.sleep(_SETTLE_S)
                begun_ns = time.time_ns()
                on = [_both(fit), _both(fit)]
                ended_ns = time.time_ns()
                time.sleep(_KEPT_S)
            percent, _ = bpf_cost(made.history_file, begun_ns, ended_ns)
            off.append(_both(fit))
        for without, with_agent in zip(off, on, strict=True):
            done.append(_pair(without, with_agent) | {"bpf": percent})
        kept.keep("pairs", {"done": done})
        print(f"pairs: {len(done)} of {count}", flush=True)
    return done


def _both(fit: Workload) -> tuple[Sample, Sample]:
    return fit.run(), pingpong()


def _pair(without: tuple[Sample, Sample], with_agent: tuple[Sample, Sample]) -> Numbers:
    found: Numbers = {}
    for name, off, on in zip(("work", "pingpong"), without, with_agent, strict=True):
        for when, sample in (("off", off), ("on", on)):
            found |= {f"{name}_{when}_{key}": value for key, value in asdict(sample).items()}
    return found


def _wait(seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        print(f"{time.strftime('%H:%M:%S')} {what}: {left:.0f} s to go", flush=True)
        time.sleep(min(left, _SAY_EVERY_S))


def _agent(steady: Numbers, sampler_kib: float) -> list[Figure]:
    seconds, both_ways = steady["seconds"], steady["user"] + steady["system"]
    wire = steady["report_bytes"] * steady["reports"] / seconds + steady["epoch_bytes"] / _HOUR_S
    maps_mib = steady["bpf_bytes"] / MIB + sampler_kib / 1024
    return [
        Figure("agent_core_percent_100hz", steady["user"], "percent of a core", 0.25),
        Figure("agent_core_percent_with_system_calls", both_ways, "percent of a core"),
        Figure("agent_rss_mib", steady["rss_mib"], "MiB", 120.0),
        Figure("bpf_maps_and_sampler_mib", maps_mib, "MiB", 4.0),
        Figure("wakeups_per_second", steady["wakeups"], "voluntary switches/s"),
        Figure("wire_bytes_per_second", wire, "bytes/s"),
        Figure("report_bytes", steady["report_bytes"], "bytes"),
        Figure("history_mib_per_hour", steady["history_mib"] * _HOUR_S / seconds, "MiB"),
    ]


def _bpf(steady: Numbers, both: list[Numbers]) -> list[Figure]:
    """Give what programs cost; the ns a switch of the ping-pong costs more beside the agent."""
    under_load = median_of([one["bpf"] for one in both])
    extra = median_of([
        1e9 * (one["pingpong_on_wall_s"] - one["pingpong_off_wall_s"]) / one["pingpong_on_switches"]
        for one in both
    ])  # fmt: skip
    found = [
        Figure("bpf_core_percent_100hz", steady["bpf"], "percent of a core"),
        Figure("host_switches_per_second", steady["switches"], "switches/s"),
        Figure("host_page_faults_per_second", steady["page_faults"], "faults/s"),
        Figure("bpf_core_percent_at_workload", under_load.value, "percent of a core"),
        *_spread("bpf_ns_per_context_switch", extra, "ns", "ns", 200.0, _EMPTY_NS),
    ]
    if "statistics_ns" in steady:
        found.append(Figure("bpf_statistics_ns_per_event", steady["statistics_ns"], "ns"))
    return found


def _gpus(gpus: Numbers) -> list[Figure]:
    name, both_ways = "agent_core_percent_with_8_gpus", gpus["user"] + gpus["system"]
    return [
        Figure(name, gpus["user"], "percent of a core"),
        Figure(f"{name}_and_system_calls", both_ways, "percent of a core"),
        Figure("agent_and_reader_mib_with_8_gpus", gpus["family_mib"], "MiB, shared pages once"),
    ]


def _exporter(steady: Numbers) -> list[Figure]:
    return [
        Figure(f"node_exporter_core_percent_{every}", steady[key], "percent of a core")
        for every in ("1s", "15s")
        if (key := f"exporter_{every}") in steady
    ]


def workload_figures(both: list[Numbers], goal: float = 0.5) -> list[Figure]:
    """Give what the agent takes from its neighbours.

    goal    for the workload with network traffic, percent
    """
    median, interval = "percent, median of pairs", "percent, 95 % interval"
    work, worst = _slowdown(both, "work", "wall_s"), _slowdown(both, "pingpong", "wall_s")
    cpu = _slowdown(both, "work", "cpu_s")
    return [
        *_spread("workload_slowdown_percent", work, median, interval, goal),
        *_spread("workload_cpu_slowdown_percent", cpu, "percent of its CPU time", interval),
        Figure("workload_pairs", len(both), "pairs"),
        *_spread("pingpong_slowdown_percent", worst, median, interval),
    ]


def _spread(
    name: str,
    found: Median,
    unit: str,
    of_interval: str,
    goal: float | None = None,
    floor: float | None = None,
) -> Iterator[Figure]:
    yield Figure(name, found.value, unit, goal, floor)
    yield Figure(f"{name}_low", found.low, of_interval)
    yield Figure(f"{name}_high", found.high, of_interval)


def _slowdown(both: list[Numbers], load: str, clock: str) -> Median:
    return median_of([
        100 * (one[f"{load}_on_{clock}"] / one[f"{load}_off_{clock}"] - 1) for one in both
    ])  # fmt: skip
