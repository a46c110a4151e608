"""The agent's configuration: one frozen tree, from TOML; secrets are paths, units end the names.
Exports are off until they are asked for: scrapes are of loopback, pushes beyond it go over TLS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from collectors.gpu_calls.gpu_probes import ProbesSection
from collectors.gpu_time.gpu_time_source import GpuTimeSection
from collectors.steps.steps_source import StepProbe
from transport.factory import TransportTable
from transport.settings.config import build, limited, overlay, read_table

from .journal import LEAST_BYTES as LEAST_JOURNAL_BYTES
from .ledger.ledger_records import SpoolLimits
from .local.history import HistorySection
from .local.live_socket import LEVELS
from .protocol.task_check import Bounds, Pins

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:4318"
_USER: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?"


@dataclass(frozen=True, slots=True)
class ScrapeSection:
    """For a Prometheus on this host: `readers` beside root and the agent's user; 0: a free port."""

    enabled: bool = False
    port: int = limited(9470, low=0, high=65_535)
    readers: tuple[str, ...] = limited((), most=16, form=_USER)


@dataclass(frozen=True, slots=True)
class OtlpSection:
    """This host's numbers for an OpenTelemetry collector, by OTLP over HTTP.

    endpoint     to which /v1/metrics is appended
    every_s      between two messages
    timeout_s    for one request
    most_waiting messages that wait while the collector is away; the oldest go first
    ca_file      authorities for TLS, in place of the system's
    token_file   holds a bearer token; read for each request
    """

    enabled: bool = False
    endpoint: str = DEFAULT_ENDPOINT
    every_s: int = limited(15, low=1, high=3_600)
    timeout_s: int = limited(5, low=1, high=60)
    most_waiting: int = limited(40, low=1, high=1_000)
    ca_file: Path | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
            raise ValueError("endpoint: expected http:// or https:// with a host, got another")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("endpoint: expected no user, query or fragment; token_file has a key")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError("endpoint: expected https:// beyond loopback, got http://")


@dataclass(frozen=True, slots=True)
class ExportSection:
    """Raw numbers of this host for its operator's own monitoring; never for the fleet's parties."""

    prometheus: ScrapeSection = field(default_factory=ScrapeSection)
    otlp: OtlpSection = field(default_factory=OtlpSection)

    @property
    def enabled(self) -> bool:
        return self.prometheus.enabled or self.otlp.enabled


def is_loopback(name: str) -> bool:
    """Say whether a host's name is an address of loopback; names that must be looked up are not."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


LOADERS: Final = ("auto", "libbpf", "bcc")
AUTO: Final = "auto"
DIAGNOSIS_HZ: Final = 100


@dataclass(frozen=True, slots=True)
class HostSection:
    """Who this host is.

    key_file    the host's key, 0600; the ledger's fence lies beside it
    state_dir   ledger, spool and open windows, 0700
    gpus        the model of each GPU, as in the catalogue; empty for a host without GPUs; "auto":
                those that the drivers list when the host joins (`bound_gpus`)
    gpu_uuids   `GPU-...` of each; they and the machine id bind the key to this machine
    user        whom the agent becomes when it is started as root
    """

    key_file: Path
    state_dir: Path
    gpus: tuple[str, ...] | Literal["auto"] = ()
    gpu_uuids: tuple[str, ...] = ()
    user: str = "pointillist-agent"

    def __post_init__(self) -> None:
        if self.gpus == AUTO and self.gpu_uuids:
            raise ValueError('expected no gpu_uuids beside gpus = "auto"')

    @property
    def models(self) -> tuple[str, ...]:
        """The model of each GPU; none as long as "auto" is not settled."""
        return () if self.gpus == AUTO else self.gpus


@dataclass(frozen=True, slots=True)
class TrustSection(Pins):
    """Ed25519 identity keys; `trial`: tasks of a trial (domain "demo") are taken, and no others."""

    trial: bool = False

    def __post_init__(self) -> None:
        Pins.__post_init__(self)
        for name in ("leaders", "helpers", "allow_local", "operators"):
            for key in getattr(self, name):
                if len(key) != 32:
                    raise ValueError(f"{name}: expected keys of 32 bytes, got {len(key)}")
        if not self.leaders or not (self.helpers or self.allow_local):
            raise ValueError("expected at least one Leader and one Helper")


@dataclass(frozen=True, slots=True)
class ReplaySection:
    """A trace that plays as this host's GPU activity."""

    path: Path
    speed: float = 1.0
    loop: bool = True
    every_gpu: bool = False
    application: str | None = None


@dataclass(frozen=True, slots=True)
class SourcesSection:
    """What the agent measures; a source that this machine lacks is left out with one line.

    gpus      utilisation, memory, power and temperature of this host's GPUs
    faults    hardware faults, from sysfs and the kernel's log
    ebpf      kernel-level host metrics for the local view, through `loader`
    ebpf_hz   snapshots of them a second; diagnosis asks for 100
    loader    of `ebpf` and `probes`: `libbpf`, `bcc`, or `auto`: libbpf where it serves, else BCC
    probes    GPU calls of all processes
    gpu_time  how long kernels ran, of processes that load the library
    """

    host: bool = True
    gpus: bool = True
    faults: bool = True
    ebpf: bool = False
    ebpf_hz: int = limited(DIAGNOSIS_HZ, low=1, high=DIAGNOSIS_HZ)
    loader: str = limited("auto", choices=LOADERS)
    probes: ProbesSection = field(default_factory=ProbesSection)
    gpu_time: GpuTimeSection = field(default_factory=GpuTimeSection)
    replay: tuple[ReplaySection, ...] = ()

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the configured sources need of root's rights; psutil and a file need none."""
        wanted = ["CAP_BPF", "CAP_PERFMON"] if self.ebpf or self.probes.enabled else []
        # Other users' containers: their files behind /proc/PID/root, their batch job's variables.
        wanted += ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] if self.probes.enabled else []
        return (*wanted, "CAP_SYSLOG") if self.faults else tuple(wanted)


@dataclass(frozen=True, slots=True)
class DiagnosisSection:
    """Why was it slow: spikes of step times and their causes; asks for `sources.ebpf`. It watches
    cgroups by pattern whatever they do, and `steps`, functions whose calls end a step or are one.
    """

    enabled: bool = True
    watch: tuple[str, ...] = ()
    steps: tuple[StepProbe, ...] = ()
    journal_bytes: int = limited(16 << 20, low=LEAST_JOURNAL_BYTES)
    former_keys: ClassVar[Mapping[str, str]] = {
        "model": "leave it out, there are no learned models: the hand rules speak"
    }


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """The agent's own counters for Prometheus, on loopback; port 0 takes a free one."""

    enabled: bool = True
    port: int = limited(9469, low=0, high=65_535)


@dataclass(frozen=True, slots=True)
class LogSection:
    level: str = limited("info", choices=LEVELS)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    host: HostSection
    transport: TransportTable
    trust: TrustSection
    bounds: Bounds = field(default_factory=Bounds)
    spool: SpoolLimits = field(default_factory=SpoolLimits)
    sources: SourcesSection = field(default_factory=SourcesSection)
    diagnosis: DiagnosisSection = field(default_factory=DiagnosisSection)
    history: HistorySection = field(default_factory=HistorySection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    export: ExportSection = field(default_factory=ExportSection)
    log: LogSection = field(default_factory=LogSection)

    def __post_init__(self) -> None:
        if self.diagnosis.enabled and self.sources.ebpf and self.sources.ebpf_hz != DIAGNOSIS_HZ:
            raise ValueError(
                f"diagnosis.enabled: expected sources.ebpf_hz = {DIAGNOSIS_HZ} beside it, got "
                f"{self.sources.ebpf_hz}"
            )

    @property
    def ledger_file(self) -> Path:
        return self.host.state_dir / "ledger.sqlite"

    @property
    def fence_file(self) -> Path:
        return self.host.key_file.with_name(f"{self.host.key_file.name}.fence")

    @property
    def gpus_file(self) -> Path:
        """Which GPUs the key is bound to, where `host.gpus` is "auto"."""
        return self.host.key_file.with_name(f"{self.host.key_file.name}.gpus")

    @property
    def windows_file(self) -> Path:
        return self.host.state_dir / "open-windows.sqlite"

    @property
    def history_file(self) -> Path:
        return self.host.state_dir / "history.sqlite"

    @property
    def journal_file(self) -> Path:
        return self.host.state_dir / "diagnoses.jsonl"

    @property
    def kernel_names_file(self) -> Path:
        return self.host.state_dir / "kernel-names.sqlite"

    @property
    def live_socket(self) -> Path:
        return self.host.state_dir / "live.sock"


def load_config(path: Path | None, overrides: Mapping[str, Any] | None = None) -> AgentConfig:
    """Read a file; None: the command line says all there is. Raises ConfigError, OSError."""
    where = "command line" if path is None else str(path)
    table = {} if path is None else read_table(path)
    return build(AgentConfig, overlay(table, overrides or {}), f"{where}: ")
