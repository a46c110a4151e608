"""Checks of the machine: kernel, capabilities, libraries, clock."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from collectors.devices.bounded import BoundedReader
from collectors.devices.device_port import DevicesUnavailable, Inventory
from collectors.devices.nvml import NvmlReader
from transport.process.doctor_findings import Check, CheckVerdict, Finding
from transport.process.machine_findings import clock
from transport.process.printable import printable
from transport.process.privileges import CAPABILITIES, process_status

LEAST_KERNEL: Final = (5, 11)
"""The first for which the BPF object is made."""


def host_checks(
    root: Path = Path("/"), wanted: Sequence[str] | None = None, *, started_by_root: bool = False
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks.

    root                stands for the file system's, so that a test can have its own
    wanted              capabilities that the configured sources ask for; None: no configuration
    started_by_root     who would start the agent as the doctor was started; by now it may be
                        somebody else
    """
    btf, psi = root / "sys/kernel/btf/vmlinux", root / "proc/pressure/cpu"
    no_btf = "use a kernel with CONFIG_DEBUG_INFO_BTF, or install python3-bpfcc"
    no_nvml = "nothing without NVIDIA GPUs; else install their driver"
    no_libbpf = "install libbpf 1.1 or later (Debian, Ubuntu: libbpf1)"
    yield "host", "kernel", kernel
    yield "host", "btf", lambda: _present(btf, "btf", no_btf)
    yield "host", "pressure", lambda: _present(psi, "pressure", "boot with psi=1")
    yield "host", "capabilities", lambda: capabilities(wanted, started_by_root)
    yield "host", "libbpf", lambda: library("libbpf", "libbpf.so.1", no_libbpf)
    yield "host", "nvml", lambda: nvml(no_nvml)
    yield "host", "clock", clock


def kernel(release: str | None = None) -> Finding:
    """Check that the kernel is new enough for every program."""
    release = release or platform.release()
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if platform.system() == "Linux" and version >= LEAST_KERNEL:
        return Finding("host", "kernel", CheckVerdict.OK, f"Linux {release}")
    least = ".".join(map(str, LEAST_KERNEL))
    line, advice = f"expected Linux {least}, got {release}", f"use Linux {least} or later"
    return Finding("host", "kernel", CheckVerdict.ABSENT, line, advice)


def capabilities(
    wanted: Sequence[str] | None, started_by_root: bool, effective: int | None = None
) -> Finding:
    """Say which capabilities `agent run`, started as the doctor was, will have.

    wanted      what the configured sources ask for; None: whatever a source may ask for
    effective   this process's set, by default as the kernel has it. The agent keeps what of it is
                wanted, so that the answer is the same before and after root is given up
    """
    name = "capabilities"
    if effective is None:
        effective = int(process_status()["CapEff"], 16)
    asked = sorted(CAPABILITIES) if wanted is None else sorted(wanted)
    if not asked:
        line = "`agent run` keeps none: no configured source asks for one"
        return Finding("host", name, CheckVerdict.OK, line)
    missing = [capability for capability in asked if not effective >> CAPABILITIES[capability] & 1]
    kept = ", ".join(capability for capability in asked if capability not in missing)
    who = "root" if started_by_root else "this user"
    line = f"`agent run`, started by {who}, has {kept or 'none'}"
    if not missing:
        needed = "" if wanted is not None else ", where a configured source asks for them"
        return Finding("host", name, CheckVerdict.OK, f"{line}{needed}")
    line = f"{line}: without {', '.join(missing)}"
    advice = (
        "this root was not given them: allow them to the service or the container"
        if started_by_root
        else "start the agent as root or by its systemd unit"
    )
    return Finding("host", name, CheckVerdict.ABSENT, line, advice)


def library(name: str, soname: str, do: str) -> Finding:
    """Check that a library can be loaded."""
    try:
        ctypes.CDLL(soname)
    except OSError as error:
        return Finding("host", name, CheckVerdict.ABSENT, str(error), do)
    return Finding("host", name, CheckVerdict.OK, soname)


def nvml(do: str) -> Finding:
    """Check that NVIDIA's driver answers: its library may be there without it."""
    found = library("nvml", "libnvidia-ml.so.1", do)
    reader = BoundedReader(NvmlReader)
    try:
        return found if found.verdict is not CheckVerdict.OK else _answering(reader.open())
    except DevicesUnavailable as error:
        return Finding("host", "nvml", CheckVerdict.ABSENT, printable(str(error)), do)
    finally:
        reader.close()


def _answering(inventory: Inventory) -> Finding:
    line = f"libnvidia-ml.so.1: the driver answers for {inventory.devices} GPUs"
    return Finding("host", "nvml", CheckVerdict.OK, line)


def _present(path: Path, name: str, do: str) -> Finding:
    try:
        with path.open("rb") as file:
            file.read(1)
    except FileNotFoundError:
        return Finding("host", name, CheckVerdict.ABSENT, f"expected {path}, found none", do)
    except OSError as error:
        return Finding("host", name, CheckVerdict.ABSENT, f"{path}: {error.strerror}", do)
    return Finding("host", name, CheckVerdict.OK, str(path))
