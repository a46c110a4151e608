"""A check of GPUs: those that the driver lists, beside those that the host's key is bound to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge_agent.bound_gpus import ListedGpu
from edge_agent.config import AUTO, HostSection
from transport.process.doctor_findings import CheckVerdict, Finding

_AUTO: Final = (
    'write gpus = "auto" below [host] and leave gpu_uuids out; a host that has joined needs a new '
    "key for it (docs/life-cycle.md)"
)
_MISSING: Final = "look for it with nvidia-smi and dmesg; gone for good: a new key (`agent rekey`)"


def gpus_finding(listed: Sequence[ListedGpu] | str, host: HostSection | None) -> Finding:
    """Compare GPUs that are there with those that are named: of others no time is reported.

    host        None: there is no configuration yet
    """
    there = () if isinstance(listed, str) else listed
    found = f"the driver lists {len(there)}: {', '.join(gpu.model for gpu in there)}"
    if host is None or host.gpus == AUTO:
        if not there:
            return _finding(CheckVerdict.OK, "none; no driver lists one")
        more = "" if host is None else "; the host's key is bound to them when it joins"
        return _finding(CheckVerdict.OK, f"{found}{more}")
    uuids = [uuid.strip().lower() for uuid in host.gpu_uuids]
    bound = dict(zip(uuids, host.models, strict=False)) if len(uuids) == len(host.models) else {}
    here = {gpu.uuid.strip().lower(): gpu.model for gpu in there}
    missing = [f"{model} {uuid}" for uuid, model in bound.items() if uuid not in here]
    if isinstance(listed, str):
        if not host.models:
            return _finding(CheckVerdict.OK, "none; no driver lists one")
        found = f"the key is bound to {len(host.models)}, no driver lists one: {listed}"
        return _finding(CheckVerdict.UNMEASURED, found, "install their driver, or name none")
    if missing:
        found = f"{found}; bound to the key and missing: {', '.join(missing)}: unmeasured"
        return _finding(CheckVerdict.UNMEASURED, found, _MISSING)
    if bound == here:
        return _finding(CheckVerdict.OK, f"{found}; the key is bound to them")
    found += "; the key is not bound to these: no time of theirs is reported"
    return _finding(CheckVerdict.ABSENT, found, _AUTO)


def _finding(verdict: CheckVerdict, found: str, do: str | None = None) -> Finding:
    return Finding("host", "gpus", verdict, found, do)
