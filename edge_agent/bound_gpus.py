"""`gpus = "auto"`: the GPUs of a host, looked up once, when its key is bound to them. One that is
missing later is still counted, one that is added waits for a new key: a roster knows the parts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from collectors.devices.device_port import DeviceReading, DevicesUnavailable, gpu_class
from collectors.devices.devices_source import default_readers
from transport.files import keyfiles
from transport.files.private_files import read_bounded
from transport.process.printable import printable
from wire.catalogue import Catalogue
from wire.roster import MAX_HARDWARE_IDS

from .config import AUTO, AgentConfig

_FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 16
_PCI: Final = Path("/sys/bus/pci/devices")
_GPU_PARTS: Final = (("0x10de", "0x0300"), ("0x10de", "0x0302"), ("0x1002", "0x1200"))
"""(vendor, class) of NVIDIA's GPUs and of AMD's accelerators, without the programming interface."""


class GpusUnready(Exception):
    """This machine has GPUs that no driver lists: a key bound now would be bound to none."""


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A GPU that a driver lists: its class in the catalogue, and `GPU-<uuid>`."""

    model: str
    uuid: str


def read_gpus() -> list[DeviceReading]:
    """Look at each GPU of this host, in its driver's order. Raises DevicesUnavailable."""
    reasons = []
    for reader in default_readers():
        try:
            inventory = reader.open()
            if inventory.devices:
                return [reader.read(index, ()) for index in range(inventory.devices)]
            reasons.append("a driver without devices")
        except DevicesUnavailable as error:
            reasons.append(str(error))
        finally:
            reader.close()
    raise DevicesUnavailable("; ".join(reasons))


def listed_gpus(
    classes: Sequence[str], read: Callable[[], Sequence[DeviceReading]] = read_gpus
) -> tuple[ListedGpu, ...] | str:
    """List this host's GPUs, by models of the catalogue (`classes`); or say why none is listed."""
    try:
        return tuple(ListedGpu(gpu_class(gpu.model, classes), printable(gpu.id)) for gpu in read())
    except DevicesUnavailable as error:
        return printable(str(error))


def with_bound_gpus(config: AgentConfig) -> AgentConfig:
    """Name the GPUs that the key is bound to; before it is bound, "auto" stays.
    The key is not opened, and whoever may not read its folder is told nothing of it.
    """
    if config.host.gpus != AUTO:
        return config
    found = _recorded(config.gpus_file)
    return config if found is None else _naming(config, found)


def bind_gpus(
    config: AgentConfig,
    look: Callable[[], tuple[ListedGpu, ...] | str] | None = None,
    pci: Path = _PCI,
) -> AgentConfig:
    """Bind the host's key to this machine's GPUs where "auto" stands and no one did yet.

    A key that never had a ledger is bound anew. Any other must be bound to the listed GPUs already.
    look        lists the GPUs; by default their drivers do
    Raises      GpusUnready, KeyFileRefused, OSError
    """
    config = with_bound_gpus(config)
    if config.host.gpus != AUTO:
        return config
    # Before the key is opened: the children that ask drivers must not inherit it.
    gpus = gpus_here(look, pci)
    key = keyfiles.read_host_key(config.host.key_file)
    uuids, machine = [gpu.uuid for gpu in gpus], keyfiles.machine_id()
    binding = keyfiles.host_binding(machine, uuids)
    fresh = not key.ledger_exists and not config.fence_file.exists()
    if key.binding != binding and not (fresh and key.binding == keyfiles.host_binding(machine, [])):
        raise keyfiles.KeyFileRefused(
            f"{config.host.key_file}: made on another machine or with other GPUs than "
            f"{', '.join(uuids) or 'none'}: {keyfiles.what_changed(key.binding, binding)}; "
            f"{keyfiles.way_to_identity(key.binding, binding)}"
        )
    # The key first: cut off here, the next call finds it bound, and writes the record.
    if key.binding != binding:
        keyfiles.write_host_key(
            config.host.key_file, replace(key, binding=binding), replace_file=True
        )
    write_record(config.gpus_file, gpus)
    return _naming(config, gpus)


def gpus_here(
    look: Callable[[], tuple[ListedGpu, ...] | str] | None = None, pci: Path = _PCI
) -> tuple[ListedGpu, ...]:
    """List the GPUs that a key of this machine is bound to. Raises GpusUnready."""
    found = look() if look else listed_gpus(Catalogue.load().classes("gpu_model"))
    return _usable(found, pci)


def _naming(config: AgentConfig, gpus: Sequence[ListedGpu]) -> AgentConfig:
    models, uuids = tuple(g.model for g in gpus), tuple(g.uuid for g in gpus)
    return replace(config, host=replace(config.host, gpus=models, gpu_uuids=uuids))


def _usable(found: tuple[ListedGpu, ...] | str, pci: Path) -> tuple[ListedGpu, ...]:
    """Give the GPUs to bind a key to, none on a machine without. Raises GpusUnready."""
    gpus = () if isinstance(found, str) else found
    parts = list(_pci_gpus(pci))
    why = found if isinstance(found, str) else "a driver without devices"
    if not gpus and parts:
        raise GpusUnready(
            f'gpus = "auto": this machine has {len(parts)} GPUs on its PCI bus ({parts[0]}), and '
            f"no driver lists one: {why}"
        )
    unnamed = sum(not gpu.uuid.startswith("GPU-") for gpu in gpus)
    if unnamed or len({gpu.uuid.lower() for gpu in gpus}) != len(gpus):
        raise GpusUnready(f'gpus = "auto": {unnamed} of {len(gpus)} GPUs have no UUID of their own')
    if len(gpus) >= MAX_HARDWARE_IDS:
        raise GpusUnready(
            f'gpus = "auto": expected at most {MAX_HARDWARE_IDS - 1} GPUs, got {len(gpus)}'
        )
    return gpus


def _pci_gpus(pci: Path) -> list[str]:
    """Give the addresses of GPUs, by what the bus says of them."""
    found = []
    for device in sorted(pci.glob("*")):
        with suppress(OSError):
            vendor, kind = (device / name for name in ("vendor", "class"))
            if (vendor.read_text().strip(), kind.read_text().strip()[:6]) in _GPU_PARTS:
                found.append(device.name)
    return found


def write_record(path: Path, gpus: Sequence[ListedGpu]) -> None:
    """Write which GPUs a key is bound to, whole or not at all. Raises OSError."""
    rows = [{"model": gpu.model, "uuid": gpu.uuid} for gpu in gpus]
    partial = path.with_name(f"{path.name}.new")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, "gpus": rows}, file)
        file.flush()
        os.fsync(handle)
    partial.replace(path)


def _recorded(path: Path) -> tuple[ListedGpu, ...] | None:
    """Read a record; None where there is none that can be read."""
    try:
        raw: Any = json.loads(read_bounded(path, _MOST_BYTES))
        if raw["format"] != _FORMAT:
            return None
        return tuple(ListedGpu(str(row["model"]), str(row["uuid"])) for row in raw["gpus"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
