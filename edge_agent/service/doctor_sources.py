"""What an agent's doctor says of sources: what can be collected, and what to do where not. What it
claims it tries: programs are loaded and let go, nothing stays attached or changed.
"""

from __future__ import annotations

import mmap
import os
import platform
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from collectors.binaries.perf_ring import PerfRings
from collectors.bpf.perf_events import has_opener
from collectors.bpf.uprobes import UprobeWay, uprobe_way
from collectors.faults.scan import Count, FailedReading, Probe, ReadSmart, State, probes, read_smart
from collectors.gpu_calls.loaders import Loader, choose
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import ADVICE as PROBES_ADVICE
from collectors.gpu_calls.programs import unavailable
from collectors.gpu_time import found_programs
from collectors.gpu_time.gpu_time_source import DEFAULT_SOCKET, MOST_SOCKET_PATH
from collectors.gpu_time.listener import try_out
from collectors.interface import (
    ReportsAbsences,
    Source,
    SourceRegistry,
    SourceUnavailable,
    TriesOut,
    UnavailableSource,
)
from collectors.kernel_files import Tree
from collectors.kernel_log import KMSG, KernelLog, log_failure
from collectors.records.basics import FailureKind, ReadFailure
from collectors.records.gpu_time import TimingState
from edge_agent.config import AUTO, AgentConfig
from edge_agent.host_diagnosis import NAME as DIAGNOSIS
from edge_agent.host_diagnosis import DiagnosisSettings, diagnosis_settings
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.history_tables import HistoryUnavailable
from edge_agent.local.local_rows import clean_name
from edge_agent.local.words import TIMING_ADVICE, cupti_name, timing_said, unnamed_said
from edge_agent.unmeasured import by_reason, clipped, unmeasured
from transport.process.doctor_checks import (
    LONGEST,
    Check,
    CheckVerdict,
    Finding,
    Result,
    absent,
    check,
    examine,
    ok,
)
from transport.process.printable import printable
from transport.process.privileges import CAPABILITIES, SYS_ADMIN
from wire.catalogue import Catalogue
from wire.task import Task

from .doctor import effective_capabilities, library

MEASURED: Final = "measured"
"""The group of what signed tasks ask for."""
_MOST_NAMED: Final = 8
_NAMED_NS: Final = 3600 * 1_000_000_000
_UNNAMED: Final = 0.01
_NAMED_BY_TIME: Final = "GPU time names kernels of its own: docs/gpu-time.md"
_OTHER_KERNEL: Final = "report this line; docs/gpu-probes.md names the kernels that were tried"
_RULES: Final[tuple[tuple[str, str, str], ...]] = (
    # source begins with, reason contains, what to do: the first that fits
    ("ebpf", "refuses", _OTHER_KERNEL),
    ("steps", "refuses", _OTHER_KERNEL),
    ("probes", "refuses", _OTHER_KERNEL),
    ("ebpf", "libbpf", "install libbpf 1.1 or later (Debian, Ubuntu: libbpf1)"),
    ("ebpf", "btf", "use a kernel with CONFIG_DEBUG_INFO_BTF, or install python3-bpfcc"),
    ("ebpf", "", "start the agent as root or by its systemd unit; it needs BTF or python3-bpfcc"),
    ("pressure", "", "boot with psi=1, or use a kernel with CONFIG_PSI"),
    ("rdma", "", "nothing, unless this host has RDMA ports: then load their driver"),
    ("devices", "permi", "let the agent's user open /dev/nvidia*"),
    ("devices", "", "nothing, unless this host has GPUs: then install NVIDIA's driver or amdgpu"),
    ("faults", "", "start the agent as root or by its systemd unit: CAP_SYSLOG reads /dev/kmsg"),
    ("probes", "paranoid", "allow the agent CAP_SYS_ADMIN: a child of it alone keeps it"),
    ("probes", "cap_sys_admin", "allow the agent CAP_SYS_ADMIN: a child of it alone keeps it"),
    ("probes", "attach cookies", PROBES_ADVICE),
    ("probes", "btf", PROBES_ADVICE),
    ("probes", "libbpf", "install libbpf 1.1 or later (Debian, Ubuntu: libbpf1)"),
    ("probes", "table", "correct the table that sources.probes.tables names"),
    ("probes", "", "start the agent as root or by its systemd unit"),
    ("gpu_time", "", "start the agent by its systemd unit, which makes the socket's folder"),
    ("steps", "", "start the agent as root or by its systemd unit; it needs a kernel with BTF"),
    ("replay", "", "set the path of [[sources.replay]] to a readable trace"),
    ("host", "", "mount /proc where the agent runs"),
)
OFF: Final[Mapping[str, str]] = {
    "host": "CPU, memory, disk and network of this host",
    "ebpf": "kernel-level metrics at 100 Hz",
    "gpus": "utilisation, memory, power and temperature of GPUs",
    "faults": "hardware faults",
    "probes": "GPU calls of all processes",
    "gpu_time": "how long GPU kernels ran",
}
"""Switches in [sources] and what is not collected while they are off."""


_PARTS: Final = {
    "memory": "nothing in a virtual machine; else load the EDAC driver of this memory controller",
    "processor": "nothing: this kernel counts no machine checks (it is no x86, or built without)",
    "pcie": "nothing in a virtual machine; else have the firmware leave AER to Linux",
    "storage": "nothing, unless this host has NVMe drives: then load their driver",
    "power": "nothing in a virtual machine; else load the hwmon driver of its power supplies",
    "network": "nothing, unless this host has network cards: then load their driver",
}
_NO_SMART: Final = "run `pointillist agent health` as root: it reads the SMART pages"
_NO_LOG: Final = (
    "start the agent as root or by its systemd unit (CAP_SYSLOG), or kernel.dmesg_restrict=0"
)


_HOST_PIDS: Final = 0xEFFFFFFC
"""PROC_PID_INIT_INO: the inode of the first PID namespace, the same on every kernel."""


def source_advice(name: str, reason: str) -> str:
    found = reason.lower()
    for prefix, word, advice in _RULES:
        if name.startswith(prefix) and word in found:
            return advice
    return "see docs/sources.md for what this source needs"


def source_check(name: str, make: Callable[[], Source]) -> Check:
    """Give the check that tries to start a source, as far as that touches nobody else."""
    return Check("sources", name, partial(_started, name, make))


def _started(name: str, make: Callable[[], Source]) -> Result:
    source = make()
    try:
        reason = source.probe()
        lacks = () if reason is not None else _tried(source)
    except SourceUnavailable as error:
        reason, lacks = str(error), ()
    finally:
        source.stop()
    if reason is not None:
        return _lacking(name, reason)
    without = "; ".join(f"{part.source}: {part.reason}" for part in lacks)
    found = f"can be collected, without {without}" if without else "can be collected"
    return ok(printable(found)[:LONGEST])


def _diagnosed(settings: DiagnosisSettings) -> Result:
    made = settings.start()
    if isinstance(made, UnavailableSource):
        return _lacking(DIAGNOSIS, made.reason)
    made.close()
    return ok("can be collected")


def _tried(source: Source) -> Sequence[UnavailableSource]:
    """Try a source that can start, and give what it lacks. Raises SourceUnavailable."""
    if isinstance(source, TriesOut):
        return source.try_out()
    source.start()
    return source.absent if isinstance(source, ReportsAbsences) else ()


def _lacking(name: str, reason: str) -> Result:
    return absent(printable(reason)[:LONGEST], source_advice(name, reason))


def source_findings(registry: SourceRegistry, config: AgentConfig) -> Iterator[Finding]:
    """Ask every registered source whether it can run here, and name those switched off."""
    registered = list(registry)
    checks = [source_check(name, partial(registry.make, name)) for name in registered]
    settings = diagnosis_settings(config, keep=False)
    if settings is not None:
        checks.append(Check("sources", DIAGNOSIS, partial(_diagnosed, settings)))
    yield from examine(*checks, failures=[SourceUnavailable])
    for switch, off in OFF.items():
        section = getattr(config.sources, switch, None)
        if switch not in registered and getattr(section, "enabled", section) is False:
            name = switch if section is False else f"{switch}.enabled"
            advice = f"sources.{name} = true in the configuration"
            yield Finding("sources", switch, CheckVerdict.ABSENT, f"switched off: {off}", advice)


def measured_findings(
    config: AgentConfig,
    tasks: Iterable[Task],
    sources: Iterable[Finding],
    *,
    has_gpus: bool,
    catalogue: Catalogue,
) -> Iterator[Finding]:
    """Hold what signed tasks ask for against the findings of sources; has_gpus: named or not."""
    known = [finding for finding in sources if finding.group == "sources"]
    running = [finding.name for finding in known if finding.verdict is CheckVerdict.OK]
    absent = [UnavailableSource(f.name, f.found) for f in known if f.verdict is not CheckVerdict.OK]
    bound = "the drivers' GPUs" if config.host.gpus == AUTO else "the GPUs of host.gpus"
    any_task = False
    for task in sorted(tasks, key=lambda one: one.series):
        any_task = True
        found = unmeasured(task, config, running, absent, has_gpus=has_gpus, catalogue=catalogue)
        for reason, gaps in by_reason(found).items():
            names = ", ".join(gap.section for gap in gaps)
            expected = all(gap.expected for gap in gaps)
            verdict = CheckVerdict.ABSENT if expected else CheckVerdict.UNMEASURED
            advice = "nothing: it is as it should be" if expected else _MEASURE
            yield Finding(MEASURED, task.series, verdict, f"{names} {reason}", advice)
        scaled = clipped(task, config, catalogue)
        if scaled is not None:
            advice = "ask who signs the tasks for a plan with gpus_per_host of this host"
            yield Finding(MEASURED, task.series, CheckVerdict.UNMEASURED, scaled, advice)
        if not found and scaled is None:
            line = f"all {len(task.sections)} sections, of {bound}"
            yield Finding(MEASURED, task.series, CheckVerdict.OK, line)
    if not any_task:
        line = "no signed task is on the log: nothing is asked so far"
        yield Finding(MEASURED, "tasks", CheckVerdict.OK, line)


_MEASURE: Final = "put the source above right, or switch it on in agent.toml: docs/sources.md"


def fault_checks(
    root: Path = Path("/"), log: Path = KMSG, smart: ReadSmart = read_smart
) -> list[Check]:
    """Give the checks of hardware faults; tests have a file system and a log of their own."""
    tree = Tree(root)
    return [
        Check("faults", "kernel_log", partial(_log, log)),
        *(Check("faults", n, partial(_part, n, probe, tree)) for n, probe in probes(smart).items()),
    ]


def _log(path: Path) -> Result:
    try:
        KernelLog(path, from_now=True).close()
    except OSError as error:
        return absent(log_failure(path, error).reason, _NO_LOG)
    return ok(f"{path}: XID, AER, machine checks, links, disks, file systems")


def _part(name: str, probe: Probe, tree: Tree) -> Result:
    found = list(probe(tree))
    read = sorted({finding.name for finding in found if isinstance(finding, Count | State)})
    missed = [finding for finding in found if isinstance(finding, FailedReading)]
    if missed:
        gap: ReadFailure = missed[0].gap
        also = f"; read: {', '.join(read)}" if read else ""
        denied = gap.kind is FailureKind.NO_PERMISSION and name == "storage"
        return absent(
            clean_name(f"{len(missed)} not read, as {gap.reason}{also}"),
            _NO_SMART if denied else f"look at {missed[0].subject}",
        )
    if not read:
        return absent("nothing to read here", _PARTS[name])
    return ok(f"{', '.join(read)} of {len({finding.subject for finding in found})}")


_TURNS: Final = {
    UprobeWay.MULTI: "so that probes can take turns",
    UprobeWay.EVENTS: "so that few functions are probed, and launches alone take turns",
}
_CAPABILITIES: Final = {**CAPABILITIES, "CAP_SYS_ADMIN": SYS_ADMIN}


def load_probes(loader: str = Loader.AUTO) -> str:
    """Load what counts GPU calls, let it go, and name the loader. Raises SourceUnavailable."""
    chosen = choose(ProbeTable.load(), Loader(loader))
    chosen.programs.try_out(dear=True)
    PerfRings(mmap.PAGESIZE).close()  # by which programs are found
    return chosen.loader


@dataclass(frozen=True, slots=True)
class CallProbes:
    """What seeing GPU calls needs; tests have a root and rights of their own.

    load        tries the programs and names their loader; raises SourceUnavailable
    way         how this kernel attaches; raises SourceUnavailable
    """

    root: Path = Path("/")
    effective: int | None = None
    load: Callable[[], str] = load_probes
    way: Callable[[], UprobeWay] = uprobe_way

    @check("gpu calls", "kernel")
    def _kernel(self) -> Result:
        reason = unavailable()
        if reason is not None:
            return absent(reason, source_advice("probes", reason))
        turns = _TURNS[self.way()]
        return ok(f"Linux {platform.release()}: {self.way()}, {turns}")

    @check("gpu calls", "counting")
    def _counting(self) -> Result:
        without = "no GPU call is seen, other sources go on"
        found = self._needs(self._capabilities(), "calls are counted", without)
        if found.verdict is not CheckVerdict.OK:
            return found
        try:  # no version of a kernel says whether the programs load
            return ok(f"{found.found}: the programs load here, by {self.load()}")
        except SourceUnavailable as error:
            line = printable(f"{error}: {without}")[:LONGEST]
            return absent(line, source_advice("probes", line))

    def _capabilities(self) -> tuple[str, ...]:
        with suppress(SourceUnavailable):  # the check above says it
            if self.way() is UprobeWay.EVENTS:
                return "CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"
        return "CAP_BPF", "CAP_PERFMON"

    @check("gpu calls", "containers")
    def _containers(self) -> Result:
        which = "libraries of other users and inside containers are"
        return self._needs(("CAP_SYS_PTRACE",), f"{which} found", f"{which} not found")

    @check("gpu calls", "batch jobs")
    def _batch_jobs(self) -> Result:
        return self._needs(
            ("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"),
            "a job is known by its cgroup and by its environment",
            "a job is known by its cgroup alone",
        )

    @check("gpu calls", "process ids")
    def _process_ids(self) -> Result:
        """Counts come with the host's process ids: inside a PID namespace they name nobody."""
        if (self.root / "proc/self/ns/pid").stat().st_ino == _HOST_PIDS:
            return ok("they are the host's")
        found = "in a PID namespace of its own: counts cannot be told whose they are"
        return absent(found, "share the host's PID namespace (hostPID)")

    def _needs(self, names: Sequence[str], with_them: str, without: str) -> Result:
        have = self.effective
        if have is None:
            have = effective_capabilities() | has_opener() << SYS_ADMIN
        missing = [name for name in names if not have >> _CAPABILITIES[name] & 1]
        if not missing:
            return ok(with_them)
        lacking = " and ".join(missing)
        do = f"start the agent as root or by its systemd unit, allowed {lacking}"
        return absent(f"without {lacking}: {without}", do)


@dataclass(frozen=True, slots=True)
class KernelNames:
    """Which launches of the last hour had no kernel name, as the agent's history tells."""

    history: Path
    unix_ns: Callable[[], int] = time.time_ns

    @check("gpu calls", "kernel names")
    def _named(self) -> Result:
        if not self.history.exists():
            return ok("no agent has counted launches here yet")
        try:
            return self._of_hour()
        except HistoryUnavailable as error:
            return absent(str(error), "see agent, history")

    def _of_hour(self) -> Result:
        launches, unnamed = 0.0, Counter[str]()
        since_ns = self.unix_ns() - _NAMED_NS
        with HistoryReader(self.history) as reader:
            for row in reader.rows("metric", since_ns, name="probes.launches"):
                launches += row["value"]
            for row in reader.rows("metric", since_ns, name="probes.unnamed"):
                unnamed[row["key"]] += round(row["value"])
        if not launches:
            return ok("no launch was counted in the last hour")
        shares = {why: count / launches for why, count in unnamed.items()}
        found = f"of {launches:,.0f} launches of the last hour"
        if said := unnamed_said(shares):
            line = f"{found} {said}"
            few = sum(shares.values()) <= _UNNAMED
            return ok(line) if few else absent(line, _NAMED_BY_TIME)
        return ok(f"{found} each had a name")


@dataclass(frozen=True, slots=True)
class GpuTime:
    """What timing GPU programs needs; tests have programs and a library of their own."""

    socket: Path = DEFAULT_SOCKET
    look: Callable[[], found_programs.FoundPrograms] = found_programs.gpu_programs
    file: Path | None = None

    @check("gpu time", "library")
    def _library(self) -> Result:
        path = self.file or found_programs.library_file()
        if not path.is_file():
            return absent(f"expected {path}, found none", "use a machine of x86-64 or arm64")
        closed = [folder for folder in path.parents if not folder.stat().st_mode & stat.S_IXOTH]
        if not path.stat().st_mode & stat.S_IROTH:
            closed.append(path)
        if closed:
            why = f"programs of other users cannot read it, as {closed[-1]} is closed to them"
            return absent(f"{path}: {why}", "install Pointillist where every user may read it")
        return library(str(path), "install Pointillist anew")

    @check("gpu time", "socket")
    def _listening(self) -> Result:
        path, length = self.socket, len(os.fsencode(self.socket))
        if length > MOST_SOCKET_PATH:
            found = f"{path}: expected at most {MOST_SOCKET_PATH} bytes, got {length}"
            return absent(found, "set a shorter sources.gpu_time.socket")
        if path.is_socket():
            return ok(f"{path} is there")
        if not path.parent.is_dir():
            do = f"start the agent by its systemd unit, or make {path.parent} for the agent's user"
            return absent(f"expected the folder {path.parent}, found none", do)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            do = f"`chown` {path.parent} to the agent's user"
            return absent(f"{path.parent} is not this user's to write", do)
        try_out(path)
        return ok(f"{path}: an agent can listen there")

    @check("gpu time", "programs")
    def _programs(self) -> Result:
        looked = self.look()
        timed, missing, do = list[str](), list[str](), ""
        for program in looked.programs:
            state, name = program_state(program), f"{program.name}[{program.process.pid}]"
            header = program.state.header if program.state is not None else {}
            if state in {TimingState.MEASURED, TimingState.STARTING}:
                cupti = cupti_name(header["cupti_version"]) if header else ""
                timed.append(f"{name} with CUPTI {cupti or 'of no version yet'}")
            else:
                missing.append(f"{name}: {timing_said(state, header['error'] if header else 0)}")
                do = do or TIMING_ADVICE.get(state, "")
        parts = [f"attached: {_listed(timed)}"] if timed else []
        parts += [f"not timed: {_listed(missing)}"] if missing else []
        if looked.hidden:
            many = "process" if looked.hidden == 1 else "processes"
            parts.append(f"{looked.hidden} {many} of others may not be looked into")
        found = "; ".join(parts) or "no program uses a GPU now"
        return absent(found, do) if do else ok(found)


def program_state(program: found_programs.GpuProgram) -> TimingState:
    """Tell whether a program is timed, from what /proc and its library say."""
    if not program.attached:
        return TimingState.NO_LIBRARY
    if program.state is None:
        return TimingState.UNKNOWN
    return found_programs.timing_state(program.state)


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - _MOST_NAMED
    return ", ".join(every[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
