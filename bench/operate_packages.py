"""What an installation takes: bytes on disk, the agent's start, what units leave open.

The environments are made as packages make them: a lock file's packages by hash, then the wheel. The
agent's start is CPU time of a Python that imports all that a running agent does, so that a busy
machine changes it little.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from bench.parts import Measured, Part, Parts
from bench.record import ROOT, Figure

WEIGHED: Final = ("scipy", "numpy", "cryptography", "capstone")
"""The largest packages of an agent."""
STARTS: Final = 7
UNITS: Final = ROOT / "deploy" / "systemd"
_MIB: Final = 1 << 20
_IMPORTS: Final = """
import resource
import collectors.devices.spawner, collectors.devices.uses, edge_agent.live
import edge_agent.local.log_level, edge_agent.observer, edge_agent.protocol.gate_process
import edge_agent.service.agent_service, pointillist.cli.agent, pointillist.cli.root
used = resource.getrusage(resource.RUSAGE_SELF)
print((used.ru_utime + used.ru_stime) * 1_000)
"""


def measure(kept: Parts) -> Measured:
    """Make both installations, and read what the units leave open."""
    agent = kept.get("agent-install", lambda: _installed("agent", _IMPORTS))
    parties = kept.get("parties-install", lambda: _installed("parties", None))
    exposed = kept.get("exposure", exposures)
    figures = (
        Figure("agent_install_mib", agent["mib"], "MiB", goal=350),
        Figure("agent_install_packages", len(agent["packages_mib"]), "packages"),
        *(
            Figure(f"agent_install_mib_{name}", agent["packages_mib"][name], "MiB")
            for name in WEIGHED
        ),
        Figure("agent_import_ms", agent["import_ms"], "ms of CPU"),
        Figure("aggregator_install_mib", parties["mib"], "MiB"),
        *(
            Figure(f"systemd_exposure_{unit.removeprefix('pointillist-')}", value, "of 10", goal)
            for unit, value in exposed.items()
            for goal in (3.0 if unit != "pointillist-agent" else None,)
        ),
    )
    return Measured(figures)


def exposures() -> dict[str, float]:
    """Give what systemd says that each unit leaves open, 0 to 10, by the unit's name."""
    return {unit.stem: exposure(unit) for unit in sorted(UNITS.glob("*.service"))}


def exposure(unit: Path) -> float:
    """Give one unit's figure; needs systemd-analyze, and no running systemd.

    Raises      ValueError where systemd-analyze says none
    """
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    if found is None:
        raise ValueError(f"{unit.name}: expected an exposure level, got {done.stderr[-300:]!r}")
    return float(found[1])


def _installed(lock: str, imports: str | None) -> Part:
    """Make an environment, and weigh it."""
    with TemporaryDirectory() as folder:
        wheel = _said("scripts/wheel.sh", folder).strip()
        place = Path(folder) / lock
        _said("scripts/program_env.sh", lock, wheel, str(place))
        packages = _package_sizes(place)
        whole = _bytes_below(place)
        found: Part = {"mib": whole / _MIB, "packages_mib": packages}
        if imports is not None:
            python = str(place / "bin" / "python")
            times = [float(_said(python, "-I", "-c", imports)) for _ in range(STARTS + 1)]
            found["import_ms"] = median(times[1:])  # the first one compiles
        return found


def _said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr[-2_000:]}")
    return done.stdout


def _package_sizes(place: Path) -> dict[str, float]:
    """Give the MiB of each package, by what its own record names."""
    code = (
        "import json; from importlib import metadata;"
        "print(json.dumps({d.name: sum(p.stat().st_size for f in d.files or ()"
        " if (p := f.locate()).exists()) / 2**20 for d in metadata.distributions()}))"
    )
    sizes: dict[str, float] = json.loads(_said(str(place / "bin" / "python"), "-I", "-c", code))
    return sizes


def _bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
