"""`pointillist agent profile`: GPU calls and GPU time of one process, as pprof or Chrome trace."""

from __future__ import annotations

import gzip
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from collectors.gpu_time.gpu_time_source import DEFAULT_SOCKET
from collectors.interface import SourceUnavailable
from collectors.profiling.formats import ChromeTraceWriter, PprofWriter
from collectors.profiling.session import NothingToProfile, ProfileSession, ProfileWriter
from edge_agent.local.words import SAID, TIMING_ADVICE

from .output import (
    CommandError,
    ExitCode,
    amount,
    examples,
    reported,
    say,
    unavailable,
    usage_error,
)

_EPILOG: Final = examples("""
pointillist agent profile --pid 4711 --out calls.pb.gz   then: pprof -http=: calls.pb.gz
pointillist agent profile --pid 4711 --seconds 5 --out calls.json.gz   for ui.perfetto.dev
pointillist agent profile --pid 4711 --no-stacks --format chrome --out trace""")

_LOOK: Final = "run as root; `pointillist agent doctor` says what is missing"
_FORMATS: Final = "or say which it is: --format pprof, --format chrome"
_POLL_S: Final = 0.25
_SAY_S: Final = 1.0


class Format(StrEnum):
    PPROF = "pprof"
    CHROME = "chrome"


_SUFFIXES: Final = {
    ".pb.gz": Format.PPROF,
    ".pprof": Format.PPROF,
    ".json": Format.CHROME,
    ".json.gz": Format.CHROME,
}

app = typer.Typer()


@app.command(epilog=_EPILOG)
def profile(
    pid: Annotated[int, typer.Option(help="The process.", min=1)],
    out: Annotated[Path, typer.Option(help="FILE.pb.gz is pprof, FILE.json(.gz) Chrome trace.")],
    seconds: Annotated[float, typer.Option(help="For how long.", min=0.1, max=3600)] = 30.0,
    form: Annotated[
        Format | None, typer.Option("--format", help="The format, whatever the file is called.")
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks/--no-stacks", help="Where in the program calls come from.")
    ] = True,
    socket: Annotated[
        Path | None,
        typer.Option(help="Where kernels are timed; else /run/pointillist/gpu-time.sock."),
    ] = None,
) -> None:
    """Write GPU calls and GPU time of one process: launches, time in calls, copies, waits, kernels.

    Kernels are timed in programs started with what `agent attach` prints: as the running agent's
    budget allows, and all of them where no agent runs. The process runs on meanwhile, each call a
    few microseconds longer. Ctrl-C ends early; what was seen is written. Nothing leaves this host.
    """
    chosen = form or next((f for end, f in _SUFFIXES.items() if out.name.endswith(end)), None)
    if chosen is None:
        known = ", ".join(_SUFFIXES)
        raise usage_error(f"--out: expected a name ending in {known}, got {out.name}", _FORMATS)
    with (
        reported(ExitCode.UNAVAILABLE, NothingToProfile),
        reported(ExitCode.UNAVAILABLE, SourceUnavailable, hint=_LOOK),
        _written(out) as (file, keep),
        ProfileSession(pid, stacks=stacks, socket=socket or DEFAULT_SOCKET) as session,
    ):
        session.start()
        opened: Any = nullcontext(file)
        if chosen is Format.PPROF or out.name.endswith(".gz"):
            opened = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=3, mtime=0)
        with opened as target:
            if chosen is Format.PPROF:
                writer: ProfileWriter = PprofWriter(target)
            else:
                writer = ChromeTraceWriter(target, session.begun_ns)
            how = _watch(session, writer, seconds)
            writer.finish(session.subject())
        keep()
    lost = f", {session.lost:,} more were not taken down" if session.lost else ""
    timed = session.timed
    advice = TIMING_ADVICE.get(timed.state, "")
    untimed = f"GPU time: none, {SAID[timed.state]}{'; ' if advice else ''}{advice}"
    say(timed.said if timed.share else untimed)
    say(f"{how}: {session.calls:,} calls{lost}; {amount(out.stat().st_size)} in {out}")


def _watch(session: ProfileSession, writer: ProfileWriter, seconds: float) -> str:
    begun = time.monotonic()
    with _interrupted() as asked, _progress(session, seconds) as show:
        while True:
            left = begun + seconds - time.monotonic()
            if left <= 0:
                how = f"{seconds:g} s"
                break
            if asked.wait(min(left, _POLL_S)):
                how = f"interrupted after {time.monotonic() - begun:.1f} s"
                break
            if not session.target.alive():
                how = f"the process ended after {time.monotonic() - begun:.1f} s"
                break
            writer.add(session.poll())
            _add_time(session, writer)
            show(time.monotonic() - begun)
        writer.add(session.stop())
        _add_time(session, writer, last=True)
    return how


def _add_time(session: ProfileSession, writer: ProfileWriter, last: bool = False) -> None:
    step = session.gpu_time(last)
    if step is not None:
        writer.add_time(step)


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Have Ctrl-C and SIGTERM end the profile, not the command."""
    asked = threading.Event()
    names = (signal.SIGINT, signal.SIGTERM)
    before = {name: signal.signal(name, lambda *_: asked.set()) for name in names}
    try:
        yield asked
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def _progress(session: ProfileSession, seconds: float) -> Iterator[Callable[[float], None]]:
    live, shown = sys.stderr.isatty(), 0.0

    def show(spent: float) -> None:
        nonlocal shown
        if live and spent - shown >= _SAY_S:
            shown = spent
            lost = f", {session.lost:,} not taken down" if session.lost else ""
            line = f"{spent:.0f} of {seconds:.0f} s: {session.calls:,} calls{lost}"
            typer.echo(f"\r\x1b[K{line}", err=True, nl=False)

    probed = "1 file" if session.files == 1 else f"{session.files} files"
    say(f"probing {probed} of process {session.target.pid}; Ctrl-C ends early")
    try:
        yield show
    finally:
        if live:
            typer.echo("\r\x1b[K", err=True, nl=False)


@contextmanager
def _written(out: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """Give a private file that takes the name only when `keep` is called: no half profile."""
    try:
        descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")  # 0600
    except OSError as error:
        raise unavailable(f"cannot write to {out.parent}: {error.strerror}") from None
    part = Path(name)

    def keep() -> None:
        file.flush()
        os.replace(part, out)  # noqa: PTH105

    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, keep
    except OSError as error:
        raise CommandError(ExitCode.UNAVAILABLE, f"{out}: {error.strerror or error}") from None
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
