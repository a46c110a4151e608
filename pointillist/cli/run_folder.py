"""Runs that leave results: their folders, where a disk fails, and signals that end a run."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from .output import CommandError, ExitCode

_DISK: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""What may be over when it is tried again; anything else needs another folder."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: whoever sent it waits for no last words."""


def interrupt_on_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as Ctrl-C does: they raise Terminated."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    del number, frame
    raise Terminated


def new_run_folder(base: Path, name: str, option: str) -> Path:
    """Make `base`/`name`-TIME; runs of the same second are told apart by a number.

    option      what names another base, for the refusal
    Raises      CommandError
    """
    stem = base.resolve() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.is_dir():
                continue
            raise _refusal(base, option, "a file stands there") from None
        except OSError as error:
            raise _refusal(base, option, error.strerror, error.errno) from error
        return folder
    raise AssertionError("counting does not end")


def writable_folder(folder: Path, option: str) -> Path:
    """Give a folder, made where it is missing.

    Raises      CommandError where it cannot be made or written
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(folder, option, error.strerror, error.errno) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refusal(folder, option, "it is read-only")
    return folder


def _refusal(folder: Path, option: str, why: str | None, number: int | None = None) -> CommandError:
    code = ExitCode.UNAVAILABLE if number in _DISK else ExitCode.USAGE
    said = f"{option}: expected a folder that results can be written to, got {folder}: {why}"
    return CommandError(code, said)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptFile(Generic[T]):
    """What was written, None for nothing, and one sentence about what went wrong, if anything."""

    written: T | None
    problem: str | None


def keep(write: Callable[[Path], T], folder: Path) -> KeptFile[T]:
    """Write results into a folder; where that fails, into a new one among the temporary files.

    write       writes all of them into a folder; raises OSError
    """
    try:
        return KeptFile(write(folder), None)
    except OSError as error:
        first = why(error)
        shutil.rmtree(folder, ignore_errors=True)  # half of the results would only mislead
    spare = None
    try:
        spare = Path(tempfile.mkdtemp(prefix="pointillist-results-"))
        return KeptFile(write(spare), f"{folder}: {first}; the files are in {spare} instead")
    except OSError as error:
        if spare is not None:
            shutil.rmtree(spare, ignore_errors=True)
        told = f"{folder}: {first}, and {tempfile.gettempdir()}: {why(error)}"
        return KeptFile(None, f"{told}; no file was kept")


def why(error: OSError) -> str:
    """Say what the system said, without its number; of a copied tree, what it said first."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][2]).partition("] ")[2].partition(": '")[0]
    return error.strerror or str(error)
