"""Bring a trial up: run its steps, follow it to the first release, and end every process.

What is run to bring a trial up, in order: the very commands that people run in a real fleet.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pointillist.play.processes import ChildFailed, Family
from transport.files.keyfiles import load_signing_key
from wire import labels
from wire.envelope import Signed
from wire.task import Task

from .party_config_text import shell_line
from .party_files import lock_folder
from .trial import LATENESS_S, SERIES, TrialFolders, TrialSettings, read_trial

LATEST_SQL: Final = (
    "SELECT section, cell, share, share_low, share_high FROM latest WHERE share IS NOT NULL "
    "ORDER BY share DESC LIMIT 10"
)


@dataclass(frozen=True, slots=True)
class TrialStep:
    """One command of one party.

    words     as typed; the first is `pointillist` or `cp`
    made      a file that is there once the step is done: it is not done twice; None: every time
    service   its name where it runs until it is stopped
    expects   what its answer must hold
    requests  of hosts, that it waits for: it is run again until the Leader has so many
    """

    party: str
    what: str
    words: tuple[str, ...]
    made: Path | None = None
    service: str | None = None
    expects: str = ""
    requests: int = 0


def trial_steps(
    folders: TrialFolders, settings: TrialSettings, parties: tuple[str, str], start_s: int
) -> Iterator[TrialStep]:
    """Give the steps of a trial in their order.

    parties     identity keys of Leader and Helper, hex
    start_s     first second of the series, Unix time
    """

    def service(party: str, what: str, group: str, config: Path) -> TrialStep:
        words = ("pointillist", group, "run", "--config", str(config))
        return TrialStep(party, what, words, service=party)

    yield from _task_steps(folders, parties, start_s)
    yield service("helper", "holds the masks", "helper", folders.helper_toml)
    yield service("leader", "makes the log, receives and releases", "leader", folders.leader_toml)
    yield from _enrolment_steps(folders, settings)
    if not settings.by_hand:
        agent = folders.agent_toml(settings.host)
        yield service("host", "reports this machine", "agent", agent)
    hours = (settings.windows + 2) * settings.window_s / 3600
    yield TrialStep(
        "simulated hosts",
        f"{settings.hosts - 1} of them report too, so that n_min is reached",
        (
            "pointillist", "simulate", str(folders.simulated / "trial.toml"), "--export", "log",
            "--config", str(folders.simulated / "export.toml"), "--hours", f"{hours:.3f}",
        ),
        service="simulated",
    )  # fmt: skip


def _task_steps(
    folders: TrialFolders, parties: tuple[str, str], start_s: int
) -> Iterator[TrialStep]:
    task, (leader, helper) = folders.task, parties
    yield TrialStep(
        "leader",
        "resolves the plan to a task",
        (
            "pointillist", "task", "build", "--trial", "--plan", str(folders.plan),
            "--series", SERIES, "--leader", leader, "--helper", helper, "--start", str(start_s),
            "--out", str(task),
        ),
        task,
    )  # fmt: skip
    yield TrialStep(
        "leader",
        "signs it",
        ("pointillist", "task", "sign", str(task), "--key", str(folders.leader_key)),
        folders.leader / "signed" / task.name,
    )
    yield TrialStep(
        "helper",
        "recomputes its noise, and signs it too",
        (
            "pointillist", "helper", "countersign", str(task),
            "--config", str(folders.helper_toml),
        ),
        folders.leader / "signed" / task.name,
    )  # fmt: skip
    yield from _published(folders, task)


def _published(folders: TrialFolders, file: Path) -> Iterator[TrialStep]:
    for party, home in (("helper", folders.helper), ("leader", folders.leader)):
        there = home / "signed" / file.name
        yield TrialStep(party, "takes it up", ("cp", str(file), str(there)), there)


def _enrolment_steps(folders: TrialFolders, settings: TrialSettings) -> Iterator[TrialStep]:
    enrolled = folders.leader / "signed" / folders.roster.name
    join = (
        "pointillist", "agent", "join", "--config", str(folders.agent_toml(settings.host)),
        "--token-file", str(folders.token(settings.host)), "--wait-s",
    )  # fmt: skip
    requests = (
        "--plans", str(folders.plans), "--requests", str(folders.joins),
        "--log", str(folders.leader_toml), "--key", str(folders.leader_key),
    )  # fmt: skip
    if settings.by_hand:
        yield TrialStep(
            "leader",
            f"waits for the host, whose owner has {folders.host(settings.host)} to begin with: "
            "docs/first-host.md",
            ("pointillist", "leader", "roster", "fetch", *requests),
            folders.roster,
            requests=settings.hosts,
        )
    else:
        yield TrialStep("host", "asks to join, by its operator's token", (*join, "0"), enrolled)
    yield TrialStep(
        "leader",
        "enrols whom an operator vouches for",
        (
            "pointillist", "leader", "roster", "build", *requests, "--now",
            "--out", str(folders.roster),
        ),
        folders.roster,
    )  # fmt: skip
    sign = ("pointillist", "helper", "countersign")
    helper = ("--config", str(folders.helper_toml))
    yield TrialStep(
        "helper",
        "checks the roster's hosts and counts, and signs it",
        (*sign, str(folders.roster), "--first", *helper),
        enrolled,
    )
    yield TrialStep("helper", "signs the answers", (*sign, str(folders.joins), *helper), enrolled)
    answers = ("cp", f"{folders.joins}/*.entry", str(folders.leader / "signed"))
    yield TrialStep("leader", "publishes them", answers, enrolled)
    yield from _published(folders, folders.roster)
    if not settings.by_hand:
        words = (*join, "30", "--json")
        yield TrialStep("host", "sees that it is enrolled", words, expects='"enrolled": true')


_POLL_S: Final = 0.5
_FETCH_S: Final = 2.0
_BEGIN_S: Final = 60.0
_NOTHING_TOLD: Final = "no share is told from the noise, which is large in so small a fleet"
_GRACE_S: Final = 120.0
"""Beyond the last window's end and lateness: the Leader waits a minute where hosts are missing."""


class TrialFailed(Exception):
    """A step of a trial failed; the message has its command and the end of what it said."""


class TrialBusy(Exception):
    """Another process runs this trial."""


class TrialOver(Exception):
    """The series of a trial has ended: nothing more will be released."""


class TrialRun:
    def __init__(self, base: Path, family: Family, say: Callable[[str], None]) -> None:
        """Read the folder, and keep others from running it as long as this process lives.

        Raises      FolderUnusable, TrialBusy
        """
        self.settings: TrialSettings = read_trial(base)
        self.folders = TrialFolders(base.resolve())
        try:  # a second run would write over the logs of the first, and fail on its locks
            self._lock = lock_folder(self.folders.base, wait=False)
        except BlockingIOError:
            raise TrialBusy(
                f"{self.folders.base}: expected a trial that nobody runs, found that another "
                "`fleet up` does"
            ) from None
        self._family, self._say = family, say
        self._began_s = time.monotonic()

    def bring_up(self) -> None:
        """Run each step that is not done. Raises TrialFailed, TrialOver, KeyFileRefused."""
        if self.folders.task.exists() and time.time() > self._over_s():
            raise TrialOver(self.folders.base)
        leader, helper = (
            load_signing_key(path, owner=path.stat().st_uid).public_bytes.hex()
            for path in (self.folders.leader_key, self.folders.helper_key)
        )
        now_s = int(time.time())
        for step in trial_steps(self.folders, self.settings, (leader, helper), now_s):
            if step.made is not None and step.made.exists():
                continue
            self._say(f"{step.party}: {step.what}\n  $ {shell_line(step.words)}")
            if step.service is not None:
                self._begin(step)
            elif step.requests:
                self._await_requests(step)
            else:
                _call(step)
        if time.time() > self._over_s():
            raise TrialOver(self.folders.base)

    def _begin(self, step: TrialStep) -> None:
        if step.service == "leader":  # what an earlier run said is not this one's first release
            self._status_file.unlink(missing_ok=True)
        self._family.start(step.service or "", *step.words)
        if step.service == "helper":
            self._wait(self.folders.socket.exists, "the Helper listens")
        elif step.service == "leader":
            self._wait(lambda: "pid" in self.status(), "the Leader answers")

    def _await_requests(self, step: TrialStep) -> None:
        """Fetch what hosts ask until all have; people are on the other side, so there is no end."""
        _call(step)
        while len(list(self.folders.joins.glob("*.join"))) < step.requests:
            time.sleep(_FETCH_S)
            self._check()
            _call(step)

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _BEGIN_S
        while not ready():
            self._check()
            if time.monotonic() > deadline:
                raise TrialFailed(f"expected that {what} within {_BEGIN_S:.0f} s; see its log")
            time.sleep(0.1)

    def _check(self) -> None:
        try:
            self._family.check()
        except ChildFailed as failed:
            raise TrialFailed(str(failed)) from failed

    @property
    def _status_file(self) -> Path:
        return self.folders.leader / "state" / "status.json"

    def status(self) -> Mapping[str, Any]:
        """Read what the Leader last said of itself; empty before it did."""
        try:
            said = json.loads(self._status_file.read_bytes())
        except (OSError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def first_release(self) -> dict[str, Any]:
        """Wait for the first window that is released; give it, with `seconds` since `up` began.

        Raises      TrialFailed, TrialOver
        """
        before = ""
        while True:
            self._check()
            for window in self._windows():
                if window["outcome"] == "released":
                    seconds = round(time.monotonic() - self._began_s, 1)
                    told = {name: window[name] for name in ("hosts", "window_start")}
                    return told | {"seconds": seconds}
            line = self._waiting()
            if line != before:
                before = line
                self._say(line)
            if time.time() > self._over_s() + _GRACE_S:
                raise TrialOver(self.folders.base)
            time.sleep(_POLL_S)

    def _windows(self) -> Iterator[Mapping[str, Any]]:
        yield from self.status().get("last_windows", {}).values()

    def _waiting(self) -> str:
        for window in self._windows():
            return f"window suppressed ({window['outcome']}): {window['hosts']} hosts; the next"
        wait_s = self.settings.window_s + LATENESS_S
        return f"waiting for the first window: {wait_s} s, a minute more where hosts are missing"

    def _over_s(self) -> float:
        """Return the Unix time of the series' end, as the signed task says it."""
        task = Task.decode_body(Signed.decode(self.folders.task.read_bytes(), labels.TASK).body)
        return task.last_window + task.window_s + task.lateness_s

    def look(self) -> str:
        words = ("pointillist", "query", LATEST_SQL, "--store", str(self.folders.releases))
        step = TrialStep("anyone", "reads what was released", words)
        return f"$ {shell_line(step.words)}\n{_call(step).rstrip() or _NOTHING_TOLD}"

    def stay(self) -> None:
        """Keep everything running until the series is over. Raises TrialFailed."""
        while time.time() < self._over_s() + _GRACE_S:
            self._check()
            time.sleep(_POLL_S)


def _call(step: TrialStep) -> str:
    """Run one command to its end; give what it printed. Raises TrialFailed."""
    done = subprocess.run(_runnable(step.words), capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout)[-2000:].strip()
        raise TrialFailed(f"{shell_line(step.words)}\nended with {done.returncode}:\n{said}")
    if step.expects not in done.stdout:
        raise TrialFailed(
            f"{shell_line(step.words)}\nexpected {step.expects}, got:\n{done.stdout.strip()}"
        )
    return done.stdout


def _runnable(words: tuple[str, ...]) -> list[str]:
    """Turn a command as typed into one that is run: this Python's, with `*` made out."""
    if words[0] == "pointillist":
        return [sys.executable, "-m", *words]
    paths = {word: Path(word) for word in words if "*" in word}
    found = {word: sorted(map(str, path.parent.glob(path.name))) for word, path in paths.items()}
    return [part for word in words for part in found.get(word, [word])]
