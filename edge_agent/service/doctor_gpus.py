"""A check of GPUs: those that the driver lists, beside those that the configuration names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collectors.devices.device_port import DevicesUnavailable
from collectors.devices.devices_source import default_readers
from collectors.devices.gpu_models import gpu_class
from edge_agent.config import HostSection
from transport.process.doctor_findings import CheckVerdict, Finding
from transport.process.printable import printable


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A GPU that a driver lists: its class in the catalogue, and `GPU-<uuid>`."""

    model: str
    uuid: str


class _Reading(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def id(self) -> str: ...


def read_gpus() -> list[_Reading]:
    """Look at each GPU of this host, in the order of `host.gpus`. Raises DevicesUnavailable."""
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
    classes: Sequence[str], read: Callable[[], Sequence[_Reading]] = read_gpus
) -> tuple[ListedGpu, ...] | str:
    """List this host's GPUs; or say why none is listed.

    classes     models that the catalogue knows
    """
    try:
        return tuple(ListedGpu(gpu_class(gpu.model, classes), printable(gpu.id)) for gpu in read())
    except DevicesUnavailable as error:
        return printable(str(error))


def gpus_finding(listed: Sequence[ListedGpu] | str, host: HostSection | None) -> Finding:
    """Compare GPUs that are there with those that are named: of others no time is reported.

    host        None: there is no configuration yet
    """
    named = () if host is None else host.gpus
    if isinstance(listed, str):
        if not named:
            return _finding(CheckVerdict.OK, "none; no driver lists one")
        found = f"host.gpus names {len(named)}, no driver lists one: {listed}"
        return _finding(CheckVerdict.ABSENT, found, "install their driver, or name none")
    models = [gpu.model for gpu in listed]
    found = f"the driver lists {len(models)}: {', '.join(models)}"
    if host is None:
        return _finding(CheckVerdict.OK, found)
    if list(named) == models and _names(host.gpu_uuids) == _names(gpu.uuid for gpu in listed):
        return _finding(CheckVerdict.OK, f"{found}; agent.toml names them")
    found += "; agent.toml does not name these: no time of theirs is reported"
    advice = "write gpus and gpu_uuids as below; the host's key is made for them"
    return _finding(CheckVerdict.ABSENT, found, advice)


def gpu_lines(listed: Sequence[ListedGpu]) -> str:
    """Write what names these GPUs: lines of [host], and how the host's key is made for them."""
    uuids = [gpu.uuid for gpu in listed]
    chosen = shlex.join(word for uuid in uuids for word in ("--gpu", uuid))
    return (
        "In agent.toml, below [host], and the key for it:\n"
        f"  gpus = {json.dumps([gpu.model for gpu in listed])}\n"
        f"  gpu_uuids = {json.dumps(uuids)}\n"
        f"  pointillist keys generate host {chosen}"
    )


def _names(uuids: Iterable[str]) -> list[str]:
    return sorted(uuid.strip().lower() for uuid in uuids)


def _finding(verdict: CheckVerdict, found: str, do: str | None = None) -> Finding:
    return Finding("host", "gpus", verdict, found, do)
