"""How long the signatures of a fleet's first day take: tokens, tasks, roster, answers.

The commands of operator, Leader and Helper on 12,500 hosts, one after the other in this process, as
people type them. What each host does itself, its request, is not counted.
"""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aggregator.enrolment.tasks import build_task, task_plan, windows_from
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from edge_agent.joining import join_request
from edge_agent.protocol.epochs import Host
from pointillist.cli.root import command
from pointillist.plan_file import default_plan
from privacy.budget import WEEK_S
from privacy.signing import SigningKey
from transport.files.join_token import read_token
from transport.files.keyfiles import write_signing_key
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.ids import host_id

HOSTS: Final = 12_500
GOAL_S: Final = 60.0
_GPUS: Final = 8
_GPU_MODEL: Final = 2
_OPERATORS: Final = 10
_SERIES: Final = len(default_plan().tasks)


def measure(kept: Parts) -> Measured:
    """Sign and countersign for a fleet of 12,500 hosts."""
    found = kept.get("signing", _fleet)
    cpu_s = found.pop("cpu")
    steps = [Figure(f"{name}_{HOSTS}_seconds", value, "s") for name, value in found.items()]
    total = Figure(f"countersign_{HOSTS}_seconds", sum(found.values()), "s", GOAL_S)
    return Measured([total, Figure(f"countersign_{HOSTS}_cpu_seconds", cpu_s, "s"), *steps])


def _fleet() -> Part:
    with TemporaryDirectory(prefix="plst-operate-") as folder:
        return _Fleet(Path(folder)).sign()


class _Fleet:
    """Keys, plans and configurations of one fleet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._leader, self._helper = SigningKey.generate(), SigningKey.generate()
        for name, key in (("leader", self._leader), ("helper", self._helper)):
            (folder / name).mkdir()
            write_signing_key(folder / name / "identity.key", key)
        self._pinned = "".join(self._operator(number) for number in range(_OPERATORS))
        self._configure()

    def _operator(self, number: int) -> str:
        key = SigningKey.generate()
        write_signing_key(self._folder / f"operator-{number}.key", key)
        names = (f"host-{number}-{host}\n" for host in range(HOSTS // _OPERATORS))
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

    def sign(self) -> Part:
        """Run every step; seconds of each."""
        self._draft_tasks()
        steps = {
            "vouch": self._vouch,
            "ask": self._ask,
            "sign_tasks": self._sign_tasks,
            "build_roster": self._build,
            "countersign_roster": self._countersign_roster,
            "countersign_tasks": lambda: self._countersign("tasks"),
            "countersign_entries": lambda: self._countersign("joins"),
        }
        found = {name: _seconds(step) for name, step in steps.items()}
        del found["ask"]  # hosts do that, each its own
        return {name: wall_s for name, (wall_s, _) in found.items()} | {
            "cpu": sum(cpu_s for _, cpu_s in found.values())
        }

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
        for number in range(HOSTS):
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

    def _countersign(self, folder: str) -> None:
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
    """Of the clock, and of this process's processor."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s
