"""The main command: groups by name, loaded only when one of them is used.

Importing all groups would pull in opendp, DuckDB and matplotlib and make `pointillist --help` take
seconds; so the help of the main command comes from the table below, and a group's module is
imported when its name is on the command line or is being completed.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from .output import CommandError, ExitCode, described, die, usage_error

_NO_MODEL: Final = "leave it out: the hand rules speak, no learned model was right as often"
REMOVED: Final = {
    "agent diagnose --model": _NO_MODEL,
    "diagnosis train": "`diagnosis evaluate` judges the hand rules; no learned model was as good",
    "diagnosis evaluate --model": _NO_MODEL,
    "diagnosis evaluate --rules": "leave it out: the hand rules are what is judged",
    "diagnosis evaluate --ablate": "leave it out: groups of signals are not judged apart",
    "diagnosis groups --model": _NO_MODEL,
    "helper run --workers": "leave it out: one process answers for a million GPUs",
    "leader run --workers": "leave it out: one process carries a million GPUs; beyond that, "
    "--engine spark",
    "leader run --engine processes": "leave it out: this process reads; beyond a million GPUs, "
    "--engine spark",
}
"""The words of a command line -> what to do; a value stands after its option."""


def removed(words: Sequence[str]) -> CommandError | None:
    """Give the refusal of a command line that asks for what is gone, None for any other.

    words       as they were typed, the program's name apart
    """
    given = [part for word in words for part in word.split("=", maxsplit=1)]
    for gone, advice in REMOVED.items():
        command, dashes, option = gone.partition(" --")
        named = command.split()
        if given[: len(named)] == named and set((dashes + option).split()) <= set(given):
            return usage_error(f"{gone}: there is no such thing any more", advice)
    return None


# A line that begins with a space or a hyphen is an item or an example, and stays one.
_SOFT_BREAK = re.compile(r"\n(?=[^\s-])")


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """A group or command: its name, the module of this package with its `app`, its line of help."""

    name: str
    module: str
    summary: str


GROUPS = (
    CommandGroup("demo", "demo", "Play a simulated fleet of 12,000 GPUs here."),
    CommandGroup("fleet", "fleet_command", "The first hour of a fleet, in one command."),
    CommandGroup("simulate", "simulate", "A fleet of any size, played beside its truth."),
    CommandGroup("experiment", "experiment", "Sweeps of simulations, and their report."),
    CommandGroup("agent", "agent", "The agent of this host: run it, see what it sees."),
    CommandGroup("leader", "leader_command", "The aggregator that receives and releases."),
    CommandGroup("helper", "helper_command", "The aggregator that holds the masks."),
    CommandGroup("operator", "operator_command", "Who runs hosts: its key, and vouchers for them."),
    CommandGroup("witness", "witness_command", "Keeps how far a Helper has answered."),
    CommandGroup("kafka", "kafka", "A broker on this machine; topics and rights on any."),
    CommandGroup(
        "keys", "keys_command", "Key files: generate, show, announce, check, rotate, destroy."
    ),
    CommandGroup("task", "task_command", "What the fleet is asked: build, show, sign, verify."),
    CommandGroup("plan", "plan_command", "What an epsilon costs in error, bytes and CPU."),
    CommandGroup("size", "plan_command", "What machines a fleet needs: cores, brokers, bytes."),
    CommandGroup("kernels", "kernels", "Which family a GPU kernel is of, and why."),
    CommandGroup("signatures", "signatures_command", "Application classes from kernel mixes."),
    CommandGroup("causes", "causes_command", "Hosts by root cause, as their agents told them."),
    CommandGroup("stragglers", "stragglers", "Which rank of one job is slow, and why."),
    CommandGroup("diagnosis", "diagnosis", "Causes of tail latency: record, judge, group."),
    CommandGroup("web", "web_command", "Pages and an API over the released numbers."),
    CommandGroup("alerts", "alerts_command", "Tell Alertmanager or a webhook what changed."),
    CommandGroup("report", "web_command", "Released numbers of a week in one file."),
    CommandGroup("query", "query", "SQL over the released numbers."),
    CommandGroup("sample", "sample_command", "Sample configurations, units, rules, dashboards."),
    CommandGroup("store", "query", "A folder of releases: what it holds, packing it."),
)

_EPILOG = """Three first steps:

[bold]pointillist demo[/bold]   the whole path on this machine, under three minutes

[bold]pointillist plan --hosts 12500 --short[/bold]   what the default plan shows, and its errors

[bold]pointillist query "SELECT section, cell, share FROM latest WHERE share IS NOT NULL"[/bold]   \
read what was released

Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 refused by a privacy rule, 4 the disk, \
socket or log is unavailable, 70 a bug, 130 interrupted."""


class LazyGroup(TyperGroup):
    """Stands in a help for a group or command; becomes the real one when it gets arguments."""

    def __init__(self, group: CommandGroup) -> None:
        super().__init__(name=group.name, help=group.summary)
        self._module = f"{__package__}.{group.module}"

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        """Import its module. Raises CommandError where this installation lacks it."""
        try:
            module = importlib.import_module(self._module)
        except ModuleNotFoundError as error:
            if error.name != self._module:
                raise
            raise CommandError(
                ExitCode.FAILED, f"the group {self.name!r} is not part of this installation"
            ) from error
        own = getattr(module, f"{self.name}_app", module.app)  # a module may have several groups
        group = as_group(own, self.name)
        for below in getattr(module, "COMMANDS", ()):
            group.add_command(LazyGroup(below))
        return group.commands.get(self.name or "", group)


def as_group(group: typer.Typer, name: str | None) -> TyperGroup:
    """The command tree of a group, even one of a single command or of a callback alone."""
    if group.registered_callback is None:  # a callback keeps one command from being the group
        group.callback(help=group.info.help if isinstance(group.info.help, str) else None)(
            lambda: None
        )
    command = typer.main.get_group(group)
    command.name = name
    _join_lines(command)
    return command


def _join_lines(command: Any) -> None:
    """Let the terminal break the lines of a docstring's paragraphs, not the source's width."""
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(_SOFT_BREAK.sub(" ", paragraph) for paragraph in paragraphs)
    for below in getattr(command, "commands", {}).values():
        _join_lines(below)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pointillist {metadata.version('pointillist')}")
        raise typer.Exit


app = typer.Typer(
    name="pointillist",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(epilog=_EPILOG)
def pointillist(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """See the fleet, never the machine: private telemetry of GPU fleets."""


def command() -> TyperGroup:
    """The whole command tree; the groups are not imported yet."""
    root = typer.main.get_command(app)
    if not isinstance(root, TyperGroup):
        raise TypeError(f"the main command should be a group, but is {type(root).__name__}")
    for group in GROUPS:
        root.add_command(LazyGroup(group))
    return root


def main() -> None:
    """Run the command line; every way out has a documented exit code."""
    json = "--json" in sys.argv
    if (gone := removed(sys.argv[1:])) is not None:
        die(gone, json)
    try:
        # A script gets wrong options as JSON, a person gets them in a box.
        sys.exit(command()(prog_name="pointillist", standalone_mode=not json) or 0)
    except KeyboardInterrupt:  # before the parser is there to turn it into an exit
        sys.exit(int(ExitCode.INTERRUPTED))
    except CommandError as error:
        die(error, json)
    except Exception as error:
        known = _wrong_options(error) or _missing_package(error) or _known(error)
        if known is None:
            raise
        die(known, json)


def _wrong_options(error: Exception) -> CommandError | None:
    """What the parser of the command line said; its errors know how to word themselves."""
    word = getattr(error, "format_message", None)
    if word is not None:
        return CommandError(ExitCode.USAGE, word(), "--help shows the options")
    return CommandError(ExitCode.FAILED, "aborted") if isinstance(error, typer.Abort) else None


def _missing_package(error: Exception) -> CommandError | None:
    """Name the extra of a package that is not installed; None for any other error."""
    from pointillist.installation import extra_with

    if not isinstance(error, ModuleNotFoundError):
        return None
    found = extra_with(error.name or "", sys.argv[1] if len(sys.argv) > 1 else "")
    if found is None:
        return None
    package, extra = found
    way_out = f"pip install 'pointillist[{extra}]', from where this came: docs/packages.md"
    message = f"this needs the package {package}, which is not installed"
    return CommandError(ExitCode.USAGE, message, way_out)


def _known(error: Exception) -> CommandError | None:
    """The exit code of errors of the lower layers; None for what nobody foresaw."""
    from privacy.errors import ParameterError
    from transport.files.keyfiles import KeyFileAbsent, KeyFileExists, KeyFileRefused
    from transport.interface import TransportUnavailable
    from transport.kafka.kafka_frame import KafkaSettingsError
    from transport.process.privileges import PrivilegeError
    from wire.rejection import ReportRejected

    codes: dict[type[Exception] | tuple[type[Exception], ...], ExitCode] = {
        (KeyFileAbsent, KeyFileExists): ExitCode.USAGE,
        (KeyFileRefused, ParameterError): ExitCode.REFUSED,
        ReportRejected: ExitCode.USAGE,
        (TransportUnavailable, KafkaSettingsError, PrivilegeError): ExitCode.UNAVAILABLE,
        (FileNotFoundError, IsADirectoryError, NotADirectoryError): ExitCode.USAGE,
        OSError: ExitCode.UNAVAILABLE,
    }
    for kinds, code in codes.items():
        if isinstance(error, kinds):
            if isinstance(error, KeyFileRefused):
                return CommandError(code, *error.parts)
            return described(code, error)
    return None
