"""What is run to bring a trial up, in order: the very commands that people run in a real fleet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .trial import SERIES, TrialSettings
from .trial_folders import TrialFolders

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
    yield from _task_steps(folders, parties, start_s)
    yield _service("helper", "holds the masks", "helper", folders.helper_toml)
    yield _service("leader", "makes the log, receives and releases", "leader", folders.leader_toml)
    yield from _enrolment_steps(folders, settings)
    if not settings.by_hand:
        agent = folders.agent_toml(settings.host)
        yield _service("host", "reports this machine", "agent", agent)
    yield _simulated_step(folders, settings)


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
    """Put a file under both signatures where both read it; the Leader publishes it to hosts."""
    for party, home in (("helper", folders.helper), ("leader", folders.leader)):
        there = home / "signed" / file.name
        yield TrialStep(party, "takes it up", ("cp", str(file), str(there)), there)


def _service(party: str, what: str, group: str, config: Path) -> TrialStep:
    words = ("pointillist", group, "run", "--config", str(config))
    return TrialStep(party, what, words, service=party)


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


def _simulated_step(folders: TrialFolders, settings: TrialSettings) -> TrialStep:
    home = folders.simulated
    hours = (settings.windows + 2) * settings.window_s / 3600
    return TrialStep(
        "simulated hosts",
        f"{settings.hosts - 1} of them report too, so that n_min is reached",
        (
            "pointillist", "simulate", str(home / "trial.toml"), "--export", "log",
            "--config", str(home / "export.toml"), "--hours", f"{hours:.3f}",
        ),
        service="simulated",
    )  # fmt: skip


def look_step(folders: TrialFolders) -> TrialStep:
    """Give the step that shows the newest released numbers."""
    words = ("pointillist", "query", LATEST_SQL, "--store", str(folders.releases))
    return TrialStep("anyone", "reads what was released", words)
