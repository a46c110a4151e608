"""What of a folder the product wrote, told by its name; whatever else lies there is passed over.

Copying tools, synchronisers, editors and people leave things beside our files: none of them may
change a number, or keep a folder from being read.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from transport.process.printable import printable

_T = TypeVar("_T")

_LOG: Final = logging.getLogger("pointillist.files")
_WRITERS: Final = re.compile(r"\..+\.(partial|removed)")
"""What a writer of ours has not finished, or not finished removing."""
_MOST_KEPT: Final = 10_000
_told: set[Path] = set()


def own_entries(
    folder: Path,
    own: Callable[[str], _T | None],
    *,
    folders: bool | None = False,
    beside: Callable[[str], object] = lambda _: None,
) -> list[tuple[Path, _T]]:
    """Give the files of a folder that have a name of ours, in order of names; none has nothing.

    own         gives what a name of ours says, None for any other
    folders     folders instead, None: whatever it is; a link is what it leads to
    beside      names that are of no interest here: all others are passed over and told once
    """
    found, others = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                said = own(entry.name)
                if said is not None and _fits(entry, folders):
                    found.append((Path(entry.path), said))
                elif not (_WRITERS.fullmatch(entry.name) or beside(entry.name)):
                    others.append(Path(entry.path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    pass_over(*others)
    return sorted(found, key=lambda one: one[0])


def _fits(entry: os.DirEntry[str], folders: bool | None) -> bool:
    try:
        return folders is None or (entry.is_dir() if folders else entry.is_file())
    except OSError as error:
        if error.errno != errno.ELOOP:  # of ours, and a disk that fails: nothing to pass over
            raise
        return False


def files_ending(folder: Path, *endings: str, folders: bool | None = False) -> list[Path]:
    """Give the files that people named, by their endings, in order of names; hidden ones are none.

    `._NAME` is what some systems keep beside NAME. Others as `own_entries` has them.
    """

    def own(name: str) -> str | None:
        return None if name.startswith(".") or not name.endswith(endings) else name

    def beside(name: str) -> bool:
        return not name.endswith(endings)

    return [path for path, _ in own_entries(folder, own, folders=folders, beside=beside)]


def pass_over(*paths: Path) -> None:
    """Tell of things with names that are not ours, once each."""
    fresh = sorted(set(paths) - _told)
    if fresh and len(_told) < _MOST_KEPT:
        _told.update(fresh)
        names = ", ".join(printable(path.name) for path in fresh)
        said = f"{printable(str(fresh[0].parent))}: passed over what has no name of ours: {names}"
        _LOG.warning("%s", said)


def passed_over(folder: Path) -> list[Path]:
    """Give what was passed over in a folder, or below it, and is still there."""
    told = list(_told)  # other threads add to it
    return sorted(path for path in told if folder in path.parents and os.path.lexists(path))
