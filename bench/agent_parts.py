"""The parts of the agent's benchmark; each gives plain numbers, which a checkpoint can hold."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.agent_host import AgentHost, make_host, running
from bench.agent_measure import bpf_bytes, bpf_cost, bpf_runs, core_percent, look, switches_now
from bench.agent_pairs import Sample, Workload, fitted, pingpong
from bench.agent_peer import PACKAGE, exporter, program
from edge_agent.local.gathering import EVERY_MS
from edge_agent.local.history_db import file_bytes
from tests.fake_nvml_kit import FakeDriver
from transport.embedded.embedded import EmbeddedLog
from wire.topics import EPOCHS, REPORTS

Numbers = dict[str, float]
Say = Callable[[str], None]

SCRAPES_S: Final = (15.0, 1.0)
WARM_S: Final = 65.0
"""Until the first report is sealed and the PLD check's child has ended: once in an agent's life."""
PAIRS: Final = 20
STATISTICS: Final = Path("/proc/sys/kernel/bpf_stats_enabled")
_STATISTICS_S: Final = 10.0
_SETTLE_S: Final = 3.0
_KEPT_S: Final = EVERY_MS / 1e3 + 2
"""Until what was measured is in the history."""
_SAY_EVERY_S: Final = 30.0
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


@contextmanager
def host(measuring: str | None = None) -> Iterator[AgentHost]:
    """Make a host in a folder that goes away, as `make_host` does."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pointillist-bench-") as folder:
        Path(folder).chmod(0o755)
        yield make_host(Path(folder) / "host", measuring=measuring)


def steady(seconds: float, say: Say) -> Numbers:
    """Run the agent, with node_exporters beside it, and measure both."""
    with ExitStack() as stack:
        made = stack.enter_context(host())
        peers = []
        if path := program():
            peers = [stack.enter_context(exporter(path, every_s)) for every_s in SCRAPES_S]
        else:
            say(f"install the package {PACKAGE} to compare with it")
        pid = stack.enter_context(running(made))
        _wait(WARM_S, "warming up", say)
        begun_ns, switches = time.time_ns(), switches_now()
        kept_bytes, early = file_bytes(made.history_file), _wire(made)["reports"]
        before = {one.every_s: look(one.pid) for one in peers}
        first = look(pid)
        _wait(seconds, "the agent at 100 Hz", say)
        last = look(pid)
        after = {one.every_s: look(one.pid) for one in peers}
        ended_ns, switches = time.time_ns(), switches_now() - switches
        span_s = last.at_s - first.at_s
        user, system = core_percent(first, last)
        held = bpf_bytes(pid)
        found: Numbers = {
            "user": user, "system": system, "rss_mib": last.rss_mib,
            "wakeups": (last.sleeps - first.sleeps) / span_s, "switches": switches / span_s,
            "bpf_bytes": held.sampler, "probe_bytes": held.probes, "seconds": span_s,
            "history_mib": (file_bytes(made.history_file) - kept_bytes) / (1 << 20),
            **{f"kernel_{k}": v for k, v in _statistics(pid).items()},
        }  # fmt: skip
        for one in peers:
            name = f"exporter_{one.every_s:g}s"
            found[name] = sum(core_percent(before[one.every_s], after[one.every_s]))
            found[f"{name}_rss_mib"] = after[one.every_s].rss_mib
            found[f"{name}_bytes"] = one.bytes
        time.sleep(_KEPT_S)
        cost = bpf_cost(made.history_file, begun_ns, ended_ns)
        found["bpf"] = cost.percent
        found |= {f"hit_{name}": value for name, value in cost.per_hit_ns.items()}
        found |= {f"rate_{name}": value for name, value in cost.per_s.items()}
        wire = _wire(made)
        return found | wire | {"reports": wire["reports"] - early}


def _statistics(pid: int) -> Numbers:
    """Have the kernel time every run for a moment; it costs, so it is no part of the rest."""
    before_text = STATISTICS.read_text()
    try:
        STATISTICS.write_text("1")
    except OSError:
        return {}
    try:
        before = bpf_runs(pid)
        time.sleep(_STATISTICS_S)
        after = bpf_runs(pid)
    finally:
        STATISTICS.write_text(before_text)
    runs = sum(after[one][0] - before[one][0] for one in after if one in before)
    spent = sum(after[one][1] - before[one][1] for one in after if one in before)
    return {"ns_per_run": spent / max(runs, 1), "runs_per_s": runs / _STATISTICS_S}


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


def eight_gpus(seconds: float, say: Say) -> Numbers:
    """Run the agent with the fake NVML's eight GPUs, looked at once a second."""
    if shutil.which("gcc") is None:
        say("install gcc, to build the fake NVML")
        return {}
    with host() as made:
        driver = FakeDriver(made.folder)
        (made.folder / "scenario").chmod(0o644)
        with running(made, driver.environment) as pid:
            _wait(WARM_S, "warming up", say)
            first = look(pid)
            _wait(seconds, "the agent with eight GPUs", say)
            last = look(pid)
    user, system = core_percent(first, last)
    wakeups = (last.sleeps - first.sleeps) / (last.at_s - first.at_s)
    assert "devices" not in _absent(made), "expected the fake NVML to be read"
    return {"user": user, "system": system, "family_mib": last.family_mib, "wakeups": wakeups}


def _absent(made: AgentHost) -> str:
    return made.log_file.read_text() if made.log_file.exists() else ""


def sampler(_seconds: float, say: Say) -> Numbers:
    """Give what loading the eBPF source adds to a process that has the agent's modules."""
    say("what the 100 Hz sampler occupies")
    done = subprocess.run(
        [sys.executable, "-c", _SAMPLER], capture_output=True, text=True, check=True
    )
    return {"added_kib": float(json.loads(done.stdout))}


def pairs(
    done: list[Numbers],
    keep: Callable[[list[Numbers]], None],
    say: Say,
    count: int = PAIRS,
    measuring: str | None = None,
) -> list[Numbers]:
    """Measure the workloads with and without the agent, two pairs to a start of it.

    done        pairs of an earlier run; `keep` is called after every two
    measuring   what the agent measures, as `make_host` has it
    """
    fit = fitted()
    while len(done) < count:
        with host(measuring) as made:
            off = [_both(fit)]
            with running(made) as pid:
                time.sleep(_SETTLE_S)
                begun_ns = time.time_ns()
                on = [_both(fit), _both(fit)]
                ended_ns = time.time_ns()
                sizes = {"bpf_bytes": float(bpf_bytes(pid).sampler)}
                time.sleep(_KEPT_S)
            cost = bpf_cost(made.history_file, begun_ns, ended_ns)
            off.append(_both(fit))
        sizes |= {"bpf": cost.percent, "hit": cost.per_hit_ns.get("on_sched_switch", 0.0)}
        for without, with_agent in zip(off, on, strict=True):
            done.append(_pair(without, with_agent) | sizes)
        keep(done)
        say(f"pairs: {len(done)} of {count}")
    return done


def _both(fit: Workload) -> tuple[Sample, Sample]:
    return fit.run(), pingpong()


def _pair(without: tuple[Sample, Sample], with_agent: tuple[Sample, Sample]) -> Numbers:
    found: Numbers = {}
    for name, off, on in zip(("work", "pingpong"), without, with_agent, strict=True):
        for when, sample in (("off", off), ("on", on)):
            found |= {f"{name}_{when}_{key}": value for key, value in asdict(sample).items()}
    return found


def _wait(seconds: float, what: str, say: Say) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        say(f"{what}: {left:.0f} s to go")
        time.sleep(min(left, _SAY_EVERY_S))


__all__ = ["PAIRS", "eight_gpus", "pairs", "sampler", "steady"]
