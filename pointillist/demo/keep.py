"""Where the results of a run are kept when the disk that was to have them fails."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

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
