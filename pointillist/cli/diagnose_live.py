"""`agent diagnose --live`: beside a running agent, or with sources of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectors.boot_clock import read_point
from collectors.bpf.cgroup_names import hierarchy_of
from collectors.port import SourceUnavailable, UnavailableSource
from collectors.steps.steps_source import StepsSource
from diagnosis.detect.findings import SpikeBegan
from diagnosis.detect.journal import JournalReader
from diagnosis.frames.framer import LiveFrames, host_framer, host_registry
from edge_agent.journal import follow_lines
from edge_agent.local.live_socket import LiveClient
from edge_agent.local.words import counted
from pointillist.diagnose.finding_layout import unix_clock
from pointillist.diagnose.finding_printer import Watching

from .diagnose_asked import Asked, Told, found_in
from .diagnosis_record import step_probe
from .output import ExitCode, reported, say, usage_error

if TYPE_CHECKING:
    from edge_agent.config import DiagnosisSection

_POLL_S: Final = 0.25
_MOST_CGROUPS: Final = 100_000
_NEEDED: Final = "ebpf"


def agent_answers(socket: Path) -> bool:
    """Tell whether an agent runs here."""
    client = LiveClient(socket)
    try:
        client.poll()
    except OSError:
        return False
    client.close()
    return True


def follow(journal: Path, asked: Asked, tell: Told) -> None:
    """Tell what a running agent writes to its journal from now on. Raises CommandError."""
    if not journal.exists():
        raise usage_error(
            f"{journal}: the running agent keeps no journal",
            "[sources] ebpf = true and [diagnosis] enabled = true make it diagnose",
        )
    say("beside the running agent, whose journal is followed; `agent top` shows what it watches; "
        "Ctrl-C ends this")  # fmt: skip
    reader = JournalReader()
    told = 0
    for line in reader.read(_followed(journal, _Until(asked.seconds))):
        told += asked.wants(line.finding.subject)
        tell(line.finding, unix_clock(line.offset_ns))
    if not told:
        say("the agent found nothing meanwhile")


def _followed(journal: Path, until: _Until) -> Iterator[bytes]:
    with reported(ExitCode.UNAVAILABLE, OSError):
        yield from follow_lines(journal, until.waits)


class _Until:
    """The end of what was asked for; seconds: None stands for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else time.monotonic() + seconds

    def over(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    def waits(self) -> bool:
        """Wait a moment for more; False once the time is up."""
        if self.over():
            return False
        time.sleep(_POLL_S)
        return True


def run_sources(asked: Asked, section: DiagnosisSection | None, tell: Told) -> None:
    """Run sources in this process and tell what is found. Raises CommandError.

    section   of a configuration: what the command line leaves open; None: there is none
    """
    named, asked = asked, asked.with_section(section)
    probes = (*map(step_probe, asked.steps), *asked.probes)
    diagnoser = asked.diagnoser()
    registry = host_registry()
    if probes:
        registry.register("steps", lambda: StepsSource(probes), probes)
    clock = unix_clock(read_point().offset_ns)
    watching = Watching(say, asked.subject)
    with LiveFrames(registry, host_framer(asked.watch)) as frames:
        _refuse_the_impossible(frames, named)
        say("no agent is asked: sources of its own; what is usual is learnt from the first 15 s "
            "or so of steps; Ctrl-C ends this")  # fmt: skip
        spikes = 0
        interrupted = True
        with suppress(KeyboardInterrupt):
            for found in found_in(diagnoser, frames.frames(_Until(asked.seconds).over), watching):
                spikes += asked.wants(found.subject) and isinstance(found, SpikeBegan)
                tell(found, clock)
            interrupted = False
    if not interrupted and not watching.known and not spikes:
        _nothing_judged(watching, asked)
    say(watching.summary(spikes))


def _nothing_judged(watching: Watching, asked: Asked) -> None:
    if not watching.subjects and watching.others:
        asked.refuse_strangers(watching.others)
    if watching.subjects:
        raise usage_error(
            f"nothing could be judged: {counted(len(watching.subjects), 'subject')} seen, but what "
            f"is usual was not learnt in {watching.span_s:.0f} s",
            "let it run for 20 s or more",
        )
    raise usage_error(
        f"nothing could be judged: nobody made steps in {watching.span_s:.0f} s",
        "--watch names cgroups, --step a function whose calls end a step; a rhythm is known "
        "after some 15 s",
    )


def _refuse_the_impossible(frames: LiveFrames, asked: Asked) -> None:
    """Say at once where nothing can be found. Raises CommandError.

    asked   of the command line: who names something there expects it to be
    """
    for absence in frames.absent:
        if absence.source in (_NEEDED, "steps"):
            root = "run it as root: eBPF needs it" if os.geteuid() else None
            raise usage_error(
                f"nothing can be found without {absence.source}: {absence.reason}", root
            )
        say(f"source {absence.source} is absent: {absence.reason}")
    for probe in _unattached(frames):
        if asked.steps:
            raise usage_error(f"--step {probe.source}: {probe.reason}")
        say(f"no steps by {probe.source}: {probe.reason}")  # of a configuration, for other days too
    _need_cgroups(asked.watch)


def _unattached(frames: LiveFrames) -> list[UnavailableSource]:
    return [
        gone
        for source in frames.running
        if isinstance(source, StepsSource)
        for gone in source.absent
    ]


def _need_cgroups(patterns: Sequence[str]) -> None:
    """Refuse patterns that fit no cgroup of this host."""
    left = set(patterns)
    for name in _cgroups() if left else ():
        left = {pattern for pattern in left if not fnmatchcase(name, pattern)}
        if not left:
            return
    for pattern in sorted(left):
        raise usage_error(
            f"--watch {pattern}: no cgroup matches",
            "systemd-cgls or `pointillist agent top` shows their names; start the job first",
        )


def _cgroups() -> Iterator[str]:
    with reported(ExitCode.UNAVAILABLE, SourceUnavailable):
        root = Path(hierarchy_of("cpu").path)
    for number, (folder, _, _) in enumerate(os.walk(root)):
        if number >= _MOST_CGROUPS:
            return
        relative = Path(folder).relative_to(root).as_posix()
        yield "/" if relative == "." else f"/{relative}"
