"""What an agent's doctor looks at beside sources: the machine, its GPUs, what the agent keeps."""

from __future__ import annotations

import ctypes
import errno
import platform
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from collectors.devices.bounded import BoundedReader
from collectors.devices.device_port import DevicesUnavailable
from collectors.devices.nvml import NvmlReader
from edge_agent.bound_gpus import ListedGpu
from edge_agent.config import AUTO, AgentConfig, HostSection
from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.ledger_records import LedgerRefused
from edge_agent.ledger.left_reports import read_left
from edge_agent.local.history_tables import HistoryUnavailable, file_bytes, open_readonly
from edge_agent.open_agent import this_machine
from edge_agent.protocol.eligibility import cohort_faults
from transport.files.keyfiles import KeyFileRefused, load_host_key, machine_id
from transport.process.doctor_checks import (
    Check,
    CheckVerdict,
    Result,
    absent,
    broken,
    check,
    left_by_others,
    not_writable,
    ok,
)
from transport.process.listening import loopback, why_not
from transport.process.printable import printable
from transport.process.privileges import CAPABILITIES, process_status

from .reload import CHOOSE_PORT

LEAST_KERNEL: Final = (5, 11)
"""The first for which the BPF object is made."""
_SPARE_BYTES: Final = 64 << 20
_NO_NVML: Final = "nothing without NVIDIA GPUs; else install their driver"
_RECOVER: Final = "pointillist agent ledger recover"
_AUTO: Final = (
    'write gpus = "auto" below [host] and leave gpu_uuids out; a host that has joined needs a new '
    "key for it (docs/life-cycle.md)"
)
_COPY: Final = (
    "a copied disk? Give it a machine id of its own, then `pointillist agent disown`. "
    "All GPUs changed: a new key (`agent rekey`)"
)
_MISSING: Final = "look for it with nvidia-smi and dmesg; gone for good: a new key (`agent rekey`)"


def effective_capabilities() -> int:
    return int(process_status()["CapEff"], 16)


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """Kernel, capabilities and libraries of this machine; root, release and effective for tests.
    wanted              capabilities that the configured sources ask for; None: no configuration
    started_by_root     who would start the agent; by now it may be somebody else
    """

    root: Path = Path("/")
    wanted: Sequence[str] | None = None
    started_by_root: bool = False
    release: str = ""
    effective: int | None = None

    @check("host", "kernel")
    def _kernel(self) -> Result:
        release = self.release or platform.release()
        found = re.match(r"(\d+)\.(\d+)", release)
        version = (int(found[1]), int(found[2])) if found else (0, 0)
        if platform.system() == "Linux" and version >= LEAST_KERNEL:
            return ok(f"Linux {release}")
        least = ".".join(map(str, LEAST_KERNEL))
        return absent(f"expected Linux {least}, got {release}", f"use Linux {least} or later")

    @check("host", "btf")
    def _btf(self) -> Result:
        do = "use a kernel with CONFIG_DEBUG_INFO_BTF, or install python3-bpfcc"
        return _present(self.root / "sys/kernel/btf/vmlinux", do)

    @check("host", "pressure")
    def _pressure(self) -> Result:
        return _present(self.root / "proc/pressure/cpu", "boot with psi=1")

    @check("host", "capabilities")
    def _capabilities(self) -> Result:
        effective = effective_capabilities() if self.effective is None else self.effective
        asked = sorted(CAPABILITIES if self.wanted is None else self.wanted)
        if not asked:
            return ok("`agent run` keeps none: no configured source asks for one")
        missing = [name for name in asked if not effective >> CAPABILITIES[name] & 1]
        kept = ", ".join(name for name in asked if name not in missing)
        who = "root" if self.started_by_root else "this user"
        line = f"`agent run`, started by {who}, has {kept or 'none'}"
        if not missing:
            needed = "" if self.wanted is not None else ", where a configured source asks for them"
            return ok(f"{line}{needed}")
        return absent(
            f"{line}: without {', '.join(missing)}",
            "this root was not given them: allow them to the service or the container"
            if self.started_by_root
            else "start the agent as root or by its systemd unit",
        )

    @check("host", "libbpf")
    def _libbpf(self) -> Result:
        return library("libbpf.so.1", "install libbpf 1.1 or later (Debian, Ubuntu: libbpf1)")

    @check("host", "nvml")
    def _nvml(self) -> Result:
        found = library("libnvidia-ml.so.1", _NO_NVML)
        if found.verdict is not CheckVerdict.OK:
            return found
        reader = BoundedReader(NvmlReader)
        try:
            devices = reader.open().devices
        except DevicesUnavailable as error:
            return absent(printable(str(error)), _NO_NVML)
        finally:
            reader.close()
        return ok(f"libnvidia-ml.so.1: the driver answers for {devices} GPUs")


def library(soname: str, do: str) -> Result:
    try:
        ctypes.CDLL(soname)
    except OSError as error:
        return absent(str(error), do)
    return ok(soname)


def _present(path: Path, do: str) -> Result:
    try:
        with path.open("rb") as file:
            file.read(1)
    except FileNotFoundError:
        return absent(f"expected {path}, found none", do)
    except OSError as error:
        return absent(f"{path}: {error.strerror}", do)
    return ok(str(path))


def host_gpus(listed: Sequence[ListedGpu] | str, host: HostSection | None) -> Check:
    """Hold GPUs that the driver lists (or why none) against the key's; None: not configured yet."""
    return Check("host", "gpus", partial(_gpus, listed, host))


def _gpus(listed: Sequence[ListedGpu] | str, host: HostSection | None) -> Result:
    there = () if isinstance(listed, str) else listed
    found = f"the driver lists {len(there)}: {', '.join(gpu.model for gpu in there)}"
    if host is None or host.gpus == AUTO:
        if not there:
            return ok("none; no driver lists one")
        more = "" if host is None else "; the host's key is bound to them when it joins"
        return ok(f"{found}{more}")
    uuids = [uuid.strip().lower() for uuid in host.gpu_uuids]
    named = len(uuids) == len(host.models)
    bound = dict(zip(uuids, host.models, strict=False)) if named else {}
    here = {gpu.uuid.strip().lower(): gpu.model for gpu in there}
    missing = [f"{model} {uuid}" for uuid, model in bound.items() if uuid not in here]
    if isinstance(listed, str):
        if not host.models:
            return ok("none; no driver lists one")
        found = f"the key is bound to {len(host.models)}, no driver lists one: {listed}"
        return Result(CheckVerdict.UNMEASURED, found, "install their driver, or name none")
    if here and bound and not bound.keys() & here.keys():
        return broken(f"{found}; the key is bound to {len(bound)}, none of these", _COPY)
    if missing:
        found = f"{found}; bound to the key and missing: {', '.join(missing)}: unmeasured"
        return Result(CheckVerdict.UNMEASURED, found, _MISSING)
    if bound == here:
        return ok(f"{found}; the key is bound to them")
    return absent(f"{found}; the key is not bound to these: no time of theirs is reported", _AUTO)


@dataclass(frozen=True, slots=True)
class AgentState:
    """What an agent keeps: identity, ledger, folders. One started by root makes its own folder."""

    config: AgentConfig
    started_by_root: bool = False

    @check("agent", "machine id")
    def _machine(self) -> Result:
        try:
            machine_id()
        except KeyFileRefused as error:
            return broken(*error.parts)
        return ok("present")

    @check("agent", "key")
    def _key(self) -> Result:
        path = self.config.host.key_file
        if not path.exists():
            do = "`pointillist keys generate host`, then `pointillist agent join`"
            return broken(f"expected {path}, found none", do)
        try:
            load_host_key(path, this_machine(self.config))
        except KeyFileRefused as error:
            found, way = error.parts
            return broken(found, way or "`pointillist keys check`, or a new identity and a join")
        fence = self.config.fence_file
        closed = not_writable(fence.parent, ": the ledger's fence is there")
        closed = closed or left_by_others([fence] if fence.exists() else [])
        return closed or ok(f"{path} belongs to this machine")

    @check("agent", "ledger")
    def _ledger(self) -> Result:
        file = self.config.ledger_file
        if not file.exists():
            if self.config.fence_file.exists():
                return broken(f"expected {file}, of which the fence knows", _RECOVER)
            return ok("none yet; the first start makes it")
        try:
            view = read_view(file)
        except LedgerRefused as error:
            return broken(str(error), _RECOVER)
        return ok(f"{len(view.series)} series known")

    @check("agent", "cohorts")
    def _cohorts(self) -> Result | None:
        file = self.config.ledger_file
        if not file.exists():
            return None
        try:
            faults = cohort_faults(read_view(file), read_left(file).tasks, int(time.time()))
        except LedgerRefused:
            return None  # as `ledger` says
        if not faults:
            return ok("no series waits for hosts")
        found = "; ".join(f"{series}: {why}" for series, why in faults.items())
        return absent(found, "nothing is sent, and nothing spent, until roster and task fit")

    @check("agent", "state folder")
    def _state_folder(self) -> Result:
        folder = self.config.host.state_dir
        if self.started_by_root and not folder.exists():
            return ok(f"{folder}: none yet; the first start makes it")
        if not folder.is_dir():
            do = f"start the agent once as root, or make {folder}, 0700"
            return broken(f"expected {folder}, found none", do)
        if (closed := not_writable(folder) or left_by_others(folder.iterdir())) is not None:
            return closed
        spare = shutil.disk_usage(folder).free
        line = f"{folder}, {spare >> 20} MiB free"
        if spare < _SPARE_BYTES:
            return broken(line, "make room: a ledger that cannot be written spends nothing")
        return ok(line)

    @check("agent", "history")
    def _history(self) -> Result:
        config, file = self.config.history, self.config.history_file
        if not config.enabled:
            return absent("switched off", "history.enabled = true in the configuration")
        if not file.exists():
            return ok("none yet; the agent makes it")
        try:
            open_readonly(file).close()
        except HistoryUnavailable as error:
            return absent(str(error), f"move {file} away")
        return ok(f"{file_bytes(file) >> 20} of at most {config.max_bytes >> 20} MiB")

    @check("agent", "counters")
    def _counters(self) -> Result:
        section = self.config.metrics
        if not section.enabled or section.port == 0:
            return ok("on a free port, see the log" if section.enabled else "off")
        taken = why_not(loopback(), section.port, CHOOSE_PORT)
        if taken is None:
            return ok(f"port {section.port} on loopback is free")
        if taken.errno == errno.EADDRINUSE and self.config.live_socket.exists():
            return ok(f"port {section.port} is served; an agent runs")
        return absent(str(taken), taken.hint)
