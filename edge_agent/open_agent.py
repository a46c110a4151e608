"""Put a live agent together from its configuration: key, ledger, participant, sources, log."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from collectors.devices.bounded import Spawner
from collectors.devices.devices_source import DevicesSource, GpuUsers
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.ebpf.host_ticks import Limits
from collectors.faults.faults_source import FaultsSource
from collectors.gpu_calls.activity_records import GpuPlaces
from collectors.gpu_calls.gpu_probes import GpuProbesSource
from collectors.gpu_time.gpu_time_source import GpuTimeSource
from collectors.host.host_source import HostSource
from collectors.host.pressure import PressureSource
from collectors.host.rdma import RdmaSource
from collectors.interface import SourceRegistry, UnavailableSource
from collectors.replay.replay_source import ReplaySource
from collectors.steps.steps_source import StepsSource
from kernels.families import FamilyRules
from privacy.noise import NoiseSampler
from privacy.noise_table import LiveSampler
from transport.factory import Side, open_transport
from transport.files import keyfiles
from transport.interface import RETENTION_S, Transport
from wire.catalogue import Catalogue
from wire.fields import host_id
from wire.task import DEMO_DOMAIN
from wire.topics import KEPT

from .agent_runtime import AgentRuntime
from .clock import Clock, SteadyClock, SystemClock, host_clock_of
from .config import AgentConfig
from .host_diagnosis import diagnosis_settings
from .ledger.ledger import Ledger
from .ledger.ledger_db import read_view
from .ledger.ledger_records import LedgerMissing, LedgerNone, LedgerView, no_fault
from .ledger.machine_lock import MachineLock
from .protocol.epochs import Host
from .protocol.participant import Participant
from .protocol.task_check import Gate, ParticipantRules
from .windows.window_accumulator import TaskWindows
from .windows.window_state import DurableAccumulators

LIVE_DOMAIN = "live"


def this_machine(config: AgentConfig) -> bytes:
    """Give what binds key and ledger to this machine. Raises KeyFileRefused without an id."""
    return keyfiles.host_binding(keyfiles.machine_id(), config.host.gpu_uuids)


def load_host(config: AgentConfig, binding: bytes) -> Host:
    """Load the host's identity. Raises KeyFileRefused."""
    signing = keyfiles.load_host_key(config.host.key_file, binding).signing
    return Host(signing, host_id(signing.public_bytes))


def open_ledger(
    config: AgentConfig, binding: bytes, now_s: int, fault_point: Callable[[str], None] = no_fault
) -> Ledger:
    """Open the ledger, or make the key's first one. Raises LedgerRefused, KeyFileRefused."""
    key = keyfiles.load_host_key(config.host.key_file, binding)
    known = key.ledger_exists or config.fence_file.exists()
    if known and not config.ledger_file.exists():
        raise LedgerMissing(f"expected the ledger {config.ledger_file}, of which the key knows")
    files = config.ledger_file, config.fence_file
    # A ledger that the key does not know yet is one whose making was interrupted: it is empty.
    if config.ledger_file.exists():
        ledger = Ledger.open(*files, binding, config.spool, fault_point)
    else:
        me = host_id(key.signing.public_bytes)
        ledger = Ledger.create(*files, [me], binding, now_s, config.spool, fault_point)
    keyfiles.mark_ledger(config.host.key_file, binding)
    with suppress(OSError):  # the key's folder may be read-only once the ledger is marked
        keyfiles.sweep_leftovers(config.host.key_file.parent)
    return ledger


def read_ledger(config: AgentConfig) -> LedgerView:
    """Read the ledger beside an agent. Raises LedgerNone before the first run, LedgerRefused."""
    if not config.ledger_file.exists() and not config.fence_file.exists():
        key = keyfiles.load_host_key(config.host.key_file, this_machine(config))
        if not key.ledger_exists:
            raise LedgerNone(f"{config.ledger_file}: this agent has not run yet")
    return read_view(config.ledger_file)


def sources_of(
    config: AgentConfig,
    catalogue: Catalogue,
    spawner: Spawner | None = None,
    users: GpuUsers | None = None,
) -> SourceRegistry:
    """List the configured sources. `spawner` begins readers of drivers, None: this process, without
    keys; `users` tells, over reloads too, who uses which GPU.
    """
    registry = SourceRegistry()
    users = users or GpuUsers()
    if config.sources.host:
        registry.register("host", lambda: HostSource(catalogue))
    if config.sources.gpus:
        bound = config.host.gpu_uuids
        registry.register(
            "devices", lambda: DevicesSource(spawner=spawner, users=users, bound=bound)
        )
    if config.sources.faults:
        registry.register("faults", FaultsSource)
    if config.sources.ebpf:
        loader, hz, rhythm = config.sources.loader, config.sources.ebpf_hz, config.diagnosis.enabled
        limits = Limits(tick_ns=1_000_000_000 // hz)
        registry.register(
            "ebpf", lambda: EbpfSource(loader, limits, rhythm=rhythm), (loader, hz, rhythm)
        )
        registry.register("pressure", PressureSource)
        registry.register("rdma", RdmaSource)
    if config.sources.probes.enabled:
        registry.register(
            "probes",
            lambda: GpuProbesSource(
                config.sources.probes,
                catalogue,
                GpuPlaces(len(config.host.models), users),
                config.kernel_names_file,
                loader=config.sources.loader,
            ),
            (config.sources.probes, config.sources.loader),
        )
    if config.sources.gpu_time.enabled:
        registry.register(
            "gpu_time",
            lambda: GpuTimeSource(config.sources.gpu_time, len(config.host.models), users),
            config.sources.gpu_time,
        )
    if config.diagnosis.enabled and config.sources.ebpf and config.diagnosis.steps:
        steps = config.diagnosis.steps
        registry.register("steps", lambda: StepsSource(steps), steps)
    rules = FamilyRules.load()
    for number, replay in enumerate(config.sources.replay):
        play = partial(ReplaySource, classifier=rules, gpus=len(config.host.models))
        registry.register(f"replay-{number}", partial(play, **asdict(replay)), replay)
    return registry


def task_rules(
    config: AgentConfig, catalogue: Catalogue, domain: str = "", gate: Gate | None = None
) -> ParticipantRules:
    """Give what this host takes of tasks; without a domain that of its configuration."""
    domain = domain or (DEMO_DOMAIN if config.trust.trial else LIVE_DOMAIN)
    return ParticipantRules(config.trust, config.bounds, domain, gate, catalogue)


def noise_sampler() -> NoiseSampler:
    """Give the sampler of a live host: the operating system's generator, asked for each report."""
    return LiveSampler(secrets.token_bytes)


def open_agent(
    config: AgentConfig,
    *,
    domain: str = LIVE_DOMAIN,
    sampler: NoiseSampler | None = None,
    gate: Gate | None = None,
    transport: Transport | None = None,
    clock: Clock | None = None,
    fault_point: Callable[[str], None] = no_fault,
    spawner: Spawner | None = None,
    users: GpuUsers | None = None,
) -> tuple[AgentRuntime, list[UnavailableSource]]:
    """Open everything a live agent needs; give it with the sources that this machine lacks.

    domain      "live", or "demo" of an agent whose configuration says trust.trial: it serves demo
                tasks only; any other refuses them and seeded noise
    gate        the PLD check of a week at acceptance (loads dp-accounting, seconds)
    spawner     made before this process opened any key; None: made here, before the key is opened
    users       who uses which GPU; hand the same to a reload's `sources_of`
    Raises      KeyFileRefused, LedgerRefused, TransportUnavailable, ValueError
    """
    sampler = sampler or noise_sampler()
    clock = SteadyClock(clock or SystemClock())
    if sampler.seeded and domain != DEMO_DOMAIN:
        raise ValueError("seeded noise protects nobody: it is for the domain demo alone")
    if spawner is None and config.sources.gpus:
        spawner = Spawner()
    binding = this_machine(config)
    now_s = clock.unix_ms() // 1000
    host = load_host(config, binding)
    catalogue = Catalogue.load()
    rules = task_rules(config, catalogue, domain, gate)
    config.host.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    ledger = open_ledger(config, binding, now_s, fault_point)
    try:
        view = ledger.view([host.host_id])
        participant = Participant([host], view, sampler, secrets.token_bytes, rules)
        log = transport or open_transport(
            config.transport.settings, Side.AGENT, retention_s=RETENTION_S, keep=KEPT
        )
        running, absent = sources_of(config, catalogue, spawner, users).start_all()
        settings = diagnosis_settings(config)
        diagnosis = None if settings is None else settings.start()
        if isinstance(diagnosis, UnavailableSource):
            absent.append(diagnosis)
            diagnosis = None
        windows = TaskWindows(
            catalogue,
            config.host.models,
            DurableAccumulators(config.windows_file),
            lambda: host_clock_of(clock),
        )
    except BaseException:
        ledger.close()
        raise
    runtime = AgentRuntime(
        participant,
        ledger,
        log,
        windows,
        running,
        diagnosis=diagnosis,
        clock=clock,
        name=f"agent-{host.host_id.hex()}",
        log_name=config.transport.settings.place,
        machine=None if domain == DEMO_DOMAIN else MachineLock(config.host.state_dir),
        fault_point=fault_point,
    )
    return runtime, absent
