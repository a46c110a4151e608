"""What running a fleet takes from people: parts of make bench-operate."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aggregator.enrolment.tasks import build_task, task_plan, windows_from
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, ROOT, Figure
from edge_agent.membership import join_request
from edge_agent.protocol.epochs import Host
from pointillist.cli.root import command
from pointillist.plan_file import default_plan
from privacy.budget import WEEK_S
from privacy.signing import SigningKey
from tests.fuzz.fuzzing import Fuzzing
from transport.files.keyfiles import write_signing_key
from transport.files.private_files import read_token
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.fields import host_id

FUZZ_GOAL_HOURS: Final = 8.0
"""An hour for each parser."""
FLEET_GOAL_MIN: Final = 15.0
_LONGEST_S: Final = 1_800
HOSTS: Final = 12_500
GOAL_S: Final = 60.0
_GPUS: Final = 8
_GPU_MODEL: Final = 2
_OPERATORS: Final = 10
_SERIES: Final = len(default_plan().tasks)
UNITS: Final = ROOT / "deploy" / "systemd"
_MIB: Final = 1 << 20


def fuzzed(_kept: Parts) -> Measured:
    """Sum up what every parser of a stranger's bytes was fuzzed for, and what broke it.

    Nothing is run here: `make fuzz` writes down what it spent, over all its runs.
    """
    spent = Fuzzing(CACHE / "fuzz").spent.values()
    hours = [target.cpu_s / 3600 for target in spent]
    figures = [
        Figure("fuzz_hours", sum(hours), "h", FUZZ_GOAL_HOURS),
        Figure("fuzz_hours_least_of_a_parser", min(hours), "h", 1.0),
        Figure("fuzz_crashes", sum(target.open for target in spent), "", 0.0),
        Figure("fuzz_crashes_mended", sum(target.crashes - target.open for target in spent), ""),
    ]
    return Measured(figures)


def first_fleet(kept: Parts) -> Measured:
    """Time `fleet init` and `fleet up`, as an operator types them, up to a released number.

    With the shipped defaults (500 hosts, windows of 30 s) over the embedded log. Reading the page
    is not counted, nor is the installation, which `make bench-first-release` measures.
    """
    found = kept.get("first_fleet", _first_fleet)
    total_min = (found["init_s"] + found["up_s"]) / 60
    figures = [
        Figure("first_fleet_minutes_to_release", total_min, "min", FLEET_GOAL_MIN),
        Figure("first_fleet_commands_to_release", 2, "commands"),
    ]
    return Measured(figures)


def _first_fleet() -> Part:
    with tempfile.TemporaryDirectory(prefix="plst-first-fleet-") as name:
        base = Path(name).resolve()
        base.chmod(0o755)
        folder = str(base / "trial")
        return {
            "init_s": _timed("fleet", "init", folder),
            "up_s": _timed("fleet", "up", folder, "--until-release"),
        }


def _timed(*words: str) -> float:
    """Run one command; give how long it took, seconds. Raises CalledProcessError."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "pointillist", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_LONGEST_S, cwd=ROOT)
    json.loads(done.stdout)
    return time.monotonic() - began_s


def signing(kept: Parts) -> Measured:
    """Time the signatures of a fleet's first day: tokens, tasks, roster, answers, for 12,500 hosts.

    The commands of operator, Leader and Helper run one after the other in this process, as people
    type them. What each host does itself, its request, is not counted.
    """

    def part() -> Part:
        with TemporaryDirectory(prefix="plst-operate-") as folder:
            wall_s, cpu_s = _Fleet(Path(folder), kept.scaled(HOSTS, _OPERATORS)).sign()
        return {"wall_s": wall_s, "cpu_s": cpu_s}

    found = kept.get("signing", part)
    figures = [
        Figure(f"countersign_{HOSTS}_seconds", found["wall_s"], "s", GOAL_S),
        Figure(f"countersign_{HOSTS}_cpu_seconds", found["cpu_s"], "s"),
    ]
    return Measured(figures)


class _Fleet:
    def __init__(self, folder: Path, hosts: int) -> None:
        self._folder, self._hosts = folder, hosts
        self._leader, self._helper = SigningKey.generate(), SigningKey.generate()
        for name, key in (("leader", self._leader), ("helper", self._helper)):
            (folder / name).mkdir()
            write_signing_key(folder / name / "identity.key", key)
        self._pinned = "".join(self._operator(number) for number in range(_OPERATORS))
        self._configure()

    def _operator(self, number: int) -> str:
        key = SigningKey.generate()
        write_signing_key(self._folder / f"operator-{number}.key", key)
        names = (f"host-{number}-{host}\n" for host in range(self._hosts // _OPERATORS))
        (self._folder / f"operator-{number}.hosts").write_text("".join(names))
        public = key.public_bytes.hex()
        return f'[[operator]]\nname = "operator-{number}"\nkey = "{public}"\n'

    def _configure(self) -> None:
        weights = ", ".join(
            f"{task.series} = {{ cohort = 0, weight_millionths = {weight} }}"
            for task in default_plan().tasks
            for weight in [sum(section.weight_millionths for section in task.sections)]
        )
        plan = f'[[plan]]\nname = "fleet"\nseries = {{ {weights} }}\n'
        (self._folder / "plans.toml").write_text(plan + self._pinned)
        (self._folder / "signed").mkdir()
        (self._folder / "helper.toml").write_text(
            f'[helper]\nkey_dir = "{self._folder}/helper"\nstate_dir = "{self._folder}/helper"\n'
            f'signed_dir = "{self._folder}/signed"\nfence_file = "{self._folder}/fence"\n'
            f'leader_pk = "{self._leader.public_bytes.hex()}"\n'
            f'[listen]\nsocket = "{self._folder}/socket"\n' + self._pinned
        )

    def sign(self) -> tuple[float, float]:
        """Run every step; seconds of the clock and of this process's processor."""
        self._draft_tasks()
        took = [_seconds(step) for step in (self._vouch, self._sign_tasks)]
        self._ask()
        after = (self._build, self._countersign_roster, self._countersign_rest)
        took += [_seconds(step) for step in after]
        return sum(wall_s for wall_s, _ in took), sum(cpu_s for _, cpu_s in took)

    def _vouch(self) -> None:
        for number in range(_OPERATORS):
            path = self._folder / f"operator-{number}"
            mine = ["--key", f"{path}.key", "--name", path.name, "--plan", "fleet"]
            many = ["--hosts", f"{path}.hosts", "--folder", str(self._folder / "tokens")]
            _run(["operator", "vouch", *many, *mine, "--leader", self._leader.public_bytes.hex()])

    def _sign_tasks(self) -> None:
        drafts = map(str, sorted((self._folder / "tasks").iterdir()))
        _run(["task", "sign", *drafts, "--key", self._key("leader")])

    def _draft_tasks(self) -> None:
        """Tasks as a fleet may have them, series and versions alike: each has its own bytes."""
        folder, catalogue, plan = self._folder / "tasks", Catalogue.load(), default_plan()
        folder.mkdir()
        start = (int(time.time()) // WEEK_S + 1) * WEEK_S
        pair = self._leader.public_bytes, self._helper.public_bytes
        shared = [
            build_task(catalogue, task_plan(plan, task, windows_from(task, start, 52), pair))
            for task in plan.tasks
        ]
        for number in range(self._hosts):
            task = dataclasses.replace(shared[number % len(shared)], version=number + 1)
            path = folder / f"{number}.task"
            path.write_bytes(Signed(labels.TASK, task.encode_body()).encode())

    def _ask(self) -> None:
        """What hosts say of themselves, as `agent join` seals it and the Leader's tool opens it."""
        (self._folder / "joins").mkdir()
        for number, file in enumerate(sorted((self._folder / "tokens").iterdir())):
            key = SigningKey.generate()
            parts = [f"{number}-{part}" for part in range(_GPUS + 1)]
            host = Host(key, host_id(key.public_bytes))
            asked = join_request(host, parts, read_token(file), ((_GPU_MODEL, _GPUS),))
            (self._folder / "joins" / f"{number}.join").write_bytes(asked.encode())

    def _build(self) -> None:
        plans = ["--plans", str(self._folder / "plans.toml")]
        requests = ["--requests", str(self._folder / "joins"), "--key", self._key("leader")]
        _run(["leader", "roster", "build", *plans, *requests, "--out", self._roster])

    @property
    def _roster(self) -> str:
        return str(self._folder / "1.roster")

    def _countersign_roster(self) -> None:
        """The roster, with the tasks that it serves: both have signed those before."""
        tasks = [str(self._folder / "tasks" / f"{n}.task") for n in range(_SERIES)]
        _run(["helper", "countersign", *tasks, *self._by_helper])
        served = [word for task in tasks for word in ("--task", task)]
        _run(["helper", "countersign", self._roster, "--first", *self._by_helper, *served])

    def _countersign_rest(self) -> None:
        for folder in ("tasks", "joins"):
            _run(["helper", "countersign", str(self._folder / folder), *self._by_helper])

    @property
    def _by_helper(self) -> list[str]:
        return ["--config", str(self._folder / "helper.toml")]

    def _key(self, party: str) -> str:
        return str(self._folder / party / "identity.key")


def _run(arguments: Sequence[str]) -> None:
    """Run a command of the product in this process.

    Raises      RuntimeError with what it said, unless it ended well
    """
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        ended = command()(list(arguments), standalone_mode=False)
    if ended:
        raise RuntimeError(f"{arguments[:3]} ended with {ended}: {said.getvalue()[-2000:]}")


def _seconds(step: Callable[[], None]) -> tuple[float, float]:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def packages(kept: Parts) -> Measured:
    """Make both installations, and read what the units leave open."""
    agent = kept.get("agent-install", lambda: _installed("agent"))
    parties = kept.get("parties-install", lambda: _installed("parties"))
    exposed = kept.get("exposure", exposures)
    figures = (
        Figure("agent_install_mib", agent["mib"], "MiB", goal=350),
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


def _installed(lock: str) -> Part:
    with TemporaryDirectory() as folder:
        wheel = _said("scripts/wheel.sh", folder).strip()
        place = Path(folder) / lock
        _said("scripts/program_env.sh", lock, wheel, str(place))
        whole = sum(path.lstat().st_size for path in place.rglob("*") if not path.is_dir())
        return {"mib": whole / _MIB}


def _said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr[-2_000:]}")
    return done.stdout
