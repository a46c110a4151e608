"""`pointillist agent health`: a verdict with a reason for each row of the node-health table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .output import ExitCode, JsonFlag, emit, reported, usage_error


def health(
    machine: Annotated[
        str, typer.Option(help="What this machine should show; `any` holds it against itself.")
    ] = "any",
    json: JsonFlag = False,
) -> None:
    """Check this host's GPUs, and its memory, PCIe, drives, power and links.

    Exit code 1 when a row fails. A row that could not be read is unknown, and never passes.
    """
    from edge_agent.devices.bounded import BoundedReader
    from edge_agent.devices.health import Verdict, check_node
    from edge_agent.devices.kernel_log import kernel_xids
    from edge_agent.devices.machine_types import machine_types
    from edge_agent.devices.nvml import NvmlReader
    from edge_agent.devices.port import REGULAR, DevicesUnavailable
    from edge_agent.faults.host_health import check_host
    from edge_agent.faults.scan import probes
    from edge_agent.faults.sysfs import Tree

    types = machine_types()
    if machine not in types:
        raise usage_error(f"--machine: expected one of {', '.join(types)}, got {machine}")
    reader = BoundedReader(NvmlReader, deadline_s=5.0)
    try:
        with reported(ExitCode.UNAVAILABLE, DevicesUnavailable, hint=_NO_DRIVER):
            inventory = reader.open()
        readings = [reader.read(index, REGULAR) for index in range(inventory.devices)]
    finally:
        reader.close()
    rows = check_node(inventory, readings, kernel_xids(), types[machine])
    rows += check_host({part: list(probe(Tree())) for part, probe in probes().items()})
    healthy = all(row.verdict is not Verdict.FAIL for row in rows)
    body: dict[str, Any] = {
        "machine": machine,
        "healthy": healthy,
        "checks": [
            {"check": row.check, "verdict": row.verdict, "reason": row.reason} for row in rows
        ],
    }
    emit(body, json)
    if not healthy:
        raise typer.Exit(int(ExitCode.FAILED))


_NO_DRIVER = "it needs NVIDIA's driver: libnvidia-ml.so.1 and /dev/nvidiactl"
