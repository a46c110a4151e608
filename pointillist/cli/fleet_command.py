"""`pointillist fleet`: the first hour of a fleet, as folders and as commands to run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import ExitCode, JsonFlag, emit, reported, say
from .run_folder import interrupt_on_signals

if TYPE_CHECKING:
    from pointillist.fleet.trial_run import FirstRelease, TrialRun

_EXAMPLES = """Examples:

pointillist fleet init /srv/trial   a trial on this machine: all parties, 500 hosts

pointillist fleet up /srv/trial   run it to a released number, and on until Ctrl-C"""

app = typer.Typer(
    help="The first hour of a fleet: folders, keys, configurations, and what to run.",
    epilog=_EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
)


@app.command(epilog="Example: pointillist fleet init /srv/trial --hosts 200")
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    hosts: Annotated[
        int,
        typer.Option(min=20, max=10_000, help="On the roster: one real, the others simulated."),
    ] = 500,
    windows: Annotated[
        int, typer.Option(min=1, max=10_000, help="The series has; fewer have less noise.")
    ] = 20,
    window_s: Annotated[int, typer.Option(min=5, max=3600, help="Length of a window.")] = 30,
    json: JsonFlag = False,
) -> None:
    """Write a trial on this machine: keys, plan, configurations and tokens, a folder a party.

    It asks nothing. Leader, Helper and one real host are as in production, and simulated hosts
    report beside it so that windows reach n_min. One person has the keys of both parties then, so
    nothing in it is private: its tasks are of the domain demo, which agents of a fleet refuse.
    """
    from pointillist.fleet.party_files import FolderUnusable
    from pointillist.fleet.trial import TrialSettings, make_trial

    settings = TrialSettings(hosts=hosts, windows=windows, window_s=window_s)
    with reported(ExitCode.USAGE, FolderUnusable):
        made = make_trial(folder, settings)
    following = ["pointillist", "fleet", "up", str(made.base)]
    body: dict[str, Any] = {
        "folder": str(made.base),
        "trial": True,
        "hosts": settings.hosts,
        "simulated_hosts": settings.hosts - 1,
        "n_min": settings.n_min,
        "leader": str(made.leader),
        "helper": str(made.helper),
        "operator": str(made.operator),
        "host": str(made.host(settings.host)),
        "next": " ".join(following),
    }
    emit(body, json)
    say(f"\n{settings.said}")


@app.command(epilog="Example: pointillist fleet up /srv/trial --until-release")
def up(
    folder: Annotated[Path, typer.Argument(help="What `fleet init` wrote.")],
    until_release: Annotated[
        bool,
        typer.Option("--until-release", help="End once a window is released, not at Ctrl-C."),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Run a trial: sign, enrol, report, until a number is released; then on until Ctrl-C.

    Each command is printed before it is run: they are those of a real fleet, each of the party that
    would type it there. Run again, it goes on where it was stopped, until its series ends.
    """
    from pointillist.demo.role_processes import Family
    from pointillist.fleet.party_files import FolderUnusable
    from pointillist.fleet.trial_run import TrialFailed, TrialOver, TrialRun

    interrupt_on_signals()
    over = "its windows are over; `pointillist fleet init` begins another in a new folder"
    with (
        reported(ExitCode.USAGE, FolderUnusable, hint="pointillist fleet init FOLDER writes one"),
        reported(ExitCode.FAILED, TrialFailed),
        reported(ExitCode.FAILED, TrialOver, hint=over),
        Family(folder.resolve() / "logs") as family,
    ):
        trial = TrialRun(folder, family, say)
        trial.bring_up()
        _tell(trial, trial.first_release(), json)
        if not until_release:
            say("\nIt goes on until Ctrl-C. In a browser: "
                f"pointillist web --store {trial.folders.releases}")  # fmt: skip
            trial.stay()


def _tell(trial: TrialRun, release: FirstRelease, json: bool) -> None:
    body = {
        "released": True,
        "trial": True,
        "hosts": release.hosts,
        "simulated_hosts": trial.settings.hosts - 1,
        "window_start": release.window_start,
        "seconds": round(release.seconds, 1),
        "store": str(trial.folders.releases),
    }
    emit(body, json, None if json else _numbers(trial, body))
    say(f"\n{trial.settings.said}")


def _numbers(trial: TrialRun, body: dict[str, Any]) -> str:
    head = f"Released after {body['seconds']} s, of {body['hosts']} hosts:"
    return f"\n{head}\n\n{trial.look()}"
