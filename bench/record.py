"""Write a benchmark's result file: figures with goals and floors, and where they come from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results"
CACHE: Final = ROOT / "bench" / ".cache"
"""Checkpoints of cut-off runs; git ignores it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    goal        what the design asks for, None where it asks for nothing
    floor       what the same run measured as the least possible, None where there is none
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    floor: float | None = None


def write_result(
    name: str,
    command: str,
    figures: Sequence[Figure],
    where: str | None = None,
    tables: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Path:
    """Write <name>.json into a folder, None: bench/results, and return its path.

    command     what a reader runs to repeat it
    where       the device and what ran beside; None: the device alone
    tables      what else is written beside the figures, by name
    """
    document = {
        "date": _now(),
        "commit": commit(),
        "device": where or device(),
        "command": command,
        "figures": [asdict(figure) for figure in figures],
        **(tables or {}),
    }
    return _write((folder or RESULTS) / f"{name}.json", document)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _write(path: Path, document: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    partial.replace(path)
    return path


def merge_result(
    name: str,
    command: str,
    figures: Sequence[Figure],
    where: str | None = None,
    tables: Mapping[str, Any] | None = None,
) -> Path:
    """Put figures and tables of a run into bench/results/<name>.json, by name.

    What the command that made the file has it anew; of another one's the rest stays, and `merged`
    says of each command that came so when and at which commit it ran.
    """
    path = RESULTS / f"{name}.json"
    document: dict[str, Any] = {"command": command}
    if path.exists():
        document = json.loads(path.read_text())
    if document["command"] == command and "merged" not in document:
        return write_result(name, command, figures, where, {"tables": tables} if tables else None)
    fresh = {figure.name: asdict(figure) for figure in figures}
    kept = [fresh.pop(old["name"], old) for old in document["figures"]]
    document["figures"] = [*kept, *fresh.values()]
    if tables:
        document["tables"] = {**document.get("tables", {}), **tables}
    ran = {"date": _now(), "commit": commit(), "device": where or device()}
    if document["command"] == command:
        return _write(path, document | ran)
    document["merged"] = {**document.get("merged", {}), command: ran}
    return _write(path, document)


def commit() -> str:
    """Return the checked-out commit, or "unknown" outside a checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def device() -> str:
    """Say in words what ran it: processor, cores, memory, system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}"
    return f"{processor()}, {cores} cores, {memory:.0f} GiB, {system}"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"
