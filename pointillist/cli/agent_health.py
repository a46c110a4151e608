"""`pointillist agent health`: a verdict with a reason for each row of the node-health table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from collectors.devices.bandwidth import Bandwidth, measure_all
from collectors.devices.bounded import BoundedReader, Spawner
from collectors.devices.device_port import REGULAR, DeviceReading, DevicesUnavailable, Inventory
from collectors.devices.devices_source import document
from collectors.devices.node_health import (
    HealthVerdict,
    MachineType,
    check_named,
    check_node,
    gpus_on_pci,
    machine_types,
)
from collectors.devices.nvml import NvmlReader
from collectors.devices.otel import points
from collectors.faults.scan import check_host, probes
from collectors.gpu_time.found_programs import FoundPrograms, gpu_programs
from collectors.kernel_files import Tree
from collectors.kernel_log import gpu_signs
from collectors.records.basics import FailureKind, ReadFailure
from edge_agent.local.words import cupti_name, timing_said
from edge_agent.service.doctor_sources import program_state
from pointillist.table import Column, cells_of, table_lines, terminal_columns

from . import agent_file
from .output import ExitCode, JsonFlag, emit, reported, usage_error

_NO_DRIVER: Final = "it needs NVIDIA's driver: libnvidia-ml.so.1 and /dev/nvidiactl"
_OF_GPUS: Final = ("driver", "gpu_count")
_BETWEEN_S: Final = 0.5
_GB: Final = 1_000_000_000

app = typer.Typer()


@app.command(epilog="Example: pointillist agent health --machine nd96isr_h100_v5 --json")
def health(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="TOML file of the agent: the GPUs that it names."),
    ] = None,
    machine: Annotated[
        str, typer.Option(help="What this machine should show; `any` holds it against itself.")
    ] = "any",
    active: Annotated[
        bool,
        typer.Option(
            "--active",
            help="Copy 64 MiB to each GPU and back, some twenty times, to measure its bandwidth. "
            "It takes seconds a GPU, and slows jobs that copy at the same time.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Check this host's GPUs, and its memory, PCIe, drives, power and links.

    Exit code 1 when a row fails. A row that could not be read is unknown, and never passes. With
    --config a GPU that the configuration names and the driver does not list fails a row, and a host
    that has none by its configuration needs no driver.
    """
    types = machine_types()
    if machine not in types:
        raise usage_error(f"--machine: expected one of {', '.join(types)}, got {machine}")
    named = None if config is None else agent_file.load_file(config).host.gpu_uuids
    inventory, readings, bandwidths = _look(types[machine], active, named)
    rows = []
    if inventory is not None:
        on_pci = gpus_on_pci(Tree())
        rows = check_node(inventory, readings, gpu_signs(), types[machine], bandwidths, on_pci)
    if named:
        rows.insert(1, check_named(named, readings))
    rows += check_host({part: list(probe(Tree())) for part, probe in probes().items()})
    healthy = all(row.verdict is not HealthVerdict.FAIL for row in rows)
    body: dict[str, Any] = {
        "machine": machine,
        "healthy": healthy,
        "checks": [
            {"check": row.check, "verdict": row.verdict, "reason": row.reason} for row in rows
        ],
        "gpus": [_gpu(reading, place, bandwidths) for place, reading in enumerate(readings)],
    }
    _add_timing(body["gpus"], gpu_programs() if readings else FoundPrograms((), 0))
    emit(body, json, _text)
    if not healthy:
        raise typer.Exit(int(ExitCode.FAILED))


def _look(
    machine: MachineType, active: bool, named: Sequence[str] | None
) -> tuple[
    Inventory | ReadFailure | None, list[DeviceReading], list[Bandwidth | ReadFailure] | None
]:
    """Read every GPU, and measure what `--active` asks for; each in a child that cannot hang us.

    named       GPUs of the configuration; without one, None
    Returns     no inventory where there is no driver and the configuration names no GPU
    """
    spawner = Spawner()
    reader = BoundedReader(NvmlReader, spawner, deadline_s=5.0)
    try:
        try:
            inventory = reader.open()
        except DevicesUnavailable as error:
            if named is not None and not named and not machine.gpu_count:
                return None, [], None
            if machine.gpu_count or named:  # it has GPUs: without a driver it is not healthy
                return ReadFailure(FailureKind.FAILED, f"{error}; {_NO_DRIVER}"), [], None
            with reported(ExitCode.UNAVAILABLE, DevicesUnavailable, hint=_NO_DRIVER):
                raise
        readings = [
            reader.read(index, REGULAR, processes=True) for index in range(inventory.devices)
        ]
        if any(
            isinstance(reading.partitions, tuple) and reading.partitions for reading in readings
        ):
            time.sleep(_BETWEEN_S)  # how busy a MIG instance is shows between two looks
            readings = [
                reader.read(reading.index, REGULAR, processes=True)
                if reading.partitions
                else reading
                for reading in readings
            ]
        bandwidths = measure_all([reading.id for reading in readings], spawner) if active else None
        return inventory, readings, bandwidths
    finally:
        reader.close()
        spawner.close()


def _gpu(
    reading: DeviceReading, place: int, bandwidths: Sequence[Bandwidth | ReadFailure] | None
) -> dict[str, Any]:
    """Give one GPU: who uses it, what was measured, and each field by its name, gaps in words."""
    gpu = document(reading)
    gpu["fields"] = {
        str(name): f"{value.kind}: {value.reason}" if isinstance(value, ReadFailure) else value
        for name, value in sorted(reading.fields.items())
    }
    gpu["otel"] = points(reading)
    if bandwidths is not None:
        measured = bandwidths[place]
        gpu["bandwidth"] = (
            f"{measured.kind}: {measured.reason}"
            if isinstance(measured, ReadFailure)
            else asdict(measured)
        )
    return gpu


def _add_timing(gpus: Sequence[dict[str, Any]], looked: FoundPrograms) -> None:
    """Add to each process whether its kernels are timed: no verdict, a program may go without."""
    known = {program.process.pid: program for program in looked.programs}
    for process in (process for gpu in gpus for process in gpu["processes"]):
        program = known.get(process["pid"])
        if program is None:
            process["gpu_time"] = None
            continue
        header = program.state.header if program.state is not None else {}
        state = program_state(program)
        process["gpu_time"] = {
            "state": state.value,
            "said": timing_said(state, header.get("error", 0)),
            "cupti": cupti_name(header.get("cupti_version", 0)),
        }


_CHECKS: Final = (
    Column("verdict", itemgetter("verdict")),
    Column("check", itemgetter("check")),
    Column("reason", itemgetter("reason"), folds=True),
)


def _timing(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    cupti = f", CUPTI {found['cupti']}" if found["cupti"] else ""
    return f", GPU time: {found['said']}{cupti}"


def _text(body: dict[str, Any]) -> str:
    lines = table_lines(_CHECKS, cells_of(_CHECKS, body["checks"]), terminal_columns())
    for gpu in body["gpus"]:
        for process in gpu["processes"]:
            container = f"  container {process['container'][:12]}" if process["container"] else ""
            share = (
                f"{process['sm_percent']} % SM"
                if isinstance(process["sm_percent"], int)
                else "SM ?"
            )
            memory = process["memory_bytes"]
            held = f"{memory / _GB:.1f} GB" if isinstance(memory, int) else "memory ?"
            lines.append(
                f"{process['on']}: {process['pid']} {process['name']}, {held}, {share}{container}"
                f"{_timing(process.get('gpu_time'))}"
            )
        lines += [f"GPU {gpu['index']}: {said}" for said in gpu["not_told"]]
    if not body["gpus"] and all(row["check"] not in _OF_GPUS for row in body["checks"]):
        lines.append("GPUs: none is named, and no driver lists one")
    said = "healthy" if body["healthy"] else "not healthy"
    return "\n".join([*lines, f"{said}, held against {body['machine']}"])
