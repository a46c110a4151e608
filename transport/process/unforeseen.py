"""What nobody foresaw ends a process with one line; its traceback goes into its owner's own file.

Variables are never written, and of messages nothing that may be a key, a seed or a vector.
"""

from __future__ import annotations

import json as json_module
import os
import platform
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from .printable import printable

EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h; `pointillist.cli.output.ExitCode.UNFORESEEN`."""
FOLDER: Final = "failures"
MOST_FILES: Final = 10
"""Of a folder; the oldest go."""
_LONGEST: Final = 200
_MOST_CHARS: Final = 64 << 10
_FRAME: Final = '  File "'
_SECRETS: Final = re.compile(
    r"""
    \b[bB](?:'(?:[^'\\\n]|\\.)*'?|"(?:[^"\\\n]|\\.)*"?)  # literals of bytes, also cut off
    |[\[({](?:[-+\deE.,:\s]|nan|inf){16,}[\])}]?  # rows of numbers
    |(?:np\.\w{1,20}\([^()\n]{0,40}\)[\])},\s]*){2,}
    |(?=[a-z0-9+/_=-]{0,99}[A-Z])(?=[A-Za-z+/_=-]{0,99}\d)[A-Za-z0-9+/_=-]{40,}  # base64, no path
    |[A-Za-z0-9+_=-]{32,}  # hex, too
    |(?i:password|passwd|secret|token)["']?=(?:"[^"\n]*"|'[^'\n]*'|\S+)
    |(?<=://)[^/\s@]+(?=@)
    """,
    re.VERBOSE,
)
"""Literals of bytes, rows of numbers, hex, base64 and passwords that stand beside their name."""
_NAME: Final = re.compile(r"\d{8}T\d{6}Z-\d{9}\.txt")
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_own: Final[list[Path]] = []


def keep_in(folder: Path) -> None:
    """Name a folder of this process's user; call it once root is given up."""
    _own[:] = [folder]


@contextmanager
def told(*, json: bool = False) -> Iterator[None]:
    """End the process with one line on stderr (with `json` a document) at what nobody foresaw.

    Threads that end so say the same, and the process goes on.
    """
    threading.excepthook = lambda ended: _tell(ended.exc_value, json=False)
    try:
        yield
    except Exception as error:  # noqa: BLE001  (nobody foresaw it)
        _tell(error, json=json)
        sys.exit(EXIT_CODE)


def _tell(error: BaseException | None, *, json: bool) -> None:
    if error is None or isinstance(error, SystemExit):
        return
    said = line(error)
    if json:
        said = json_module.dumps({"error": said, "hint": None, "exit_code": EXIT_CODE})
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{said if json else f'pointillist: {said}'}\n")
        sys.stderr.flush()


def line(error: BaseException) -> str:
    """Keep an error's details in a file, and say it in one line that names the file."""
    found = traceback.TracebackException.from_exception(error)
    words = _held_back("".join(found.format_exception_only())).partition("\n")[0]
    told = f"nobody foresaw this: {printable(words)[:_LONGEST]}"
    details = _details(found)
    for folder in filter(Path.is_absolute, _folders()):  # a user without a home has none
        with suppress(OSError):
            return f"{told}; details: {_write(folder, details)}"
    return f"{told}; details: {json_module.dumps(details)}"  # lost else


def _held_back(text: str) -> str:
    return _SECRETS.sub("(held back)", text)


def _details(found: traceback.TracebackException) -> str:
    chunks = [chunk if chunk.startswith(_FRAME) else _held_back(chunk) for chunk in found.format()]
    lines = "".join(chunks).splitlines()
    words = [word for word in sys.argv[1:4] if re.fullmatch(r"[a-z][a-z-]{0,19}", word)]
    now = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    system = os.uname()  # `platform.platform` runs a program
    where = f"Python {platform.python_version()}, {system.sysname} {system.release}"
    name = printable(Path(sys.argv[0]).name)
    head = f"{now} {name} {' '.join(words)}, {where} {system.machine}"
    text = "\n".join([head, *(printable(line.rstrip())[:_LONGEST] for line in lines)])
    half = _MOST_CHARS // 2  # the first cause and the last frames
    return text if len(text) <= _MOST_CHARS else f"{text[:half]}\n...\n{text[-half:]}"


def _folders() -> Iterator[Path]:
    """Where it may lie: the process's own folder, systemd's for it, the user's, the machine's."""
    yield from _own
    for folder in os.environ.get("STATE_DIRECTORY", "").split(":"):
        if folder:
            yield Path(folder)
    with suppress(ImportError):
        import platformdirs

        yield Path(platformdirs.user_state_dir("pointillist"))
    from tempfile import gettempdir

    yield Path(gettempdir()) / f"pointillist-{os.geteuid()}"


def _write(above: Path, details: str) -> Path:
    """Write a new file into our own folder there, and let old ones go. Raises OSError."""
    folder = above / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, _FOLDER_FLAGS)
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            raise PermissionError(f"{folder} is another user's")
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.time_ns() % 10**9:09}.txt"
        # What is there already, and ours: by a clock that was set back the new one is no newer.
        names = sorted(filter(_NAME.fullmatch, os.listdir(handle)))  # noqa: PTH208  (it is open)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=handle), "w", encoding="utf-8") as file:
            try:
                file.write(details + "\n")
                file.flush()
            except OSError:  # a full disk keeps no empty ones either
                os.unlink(name, dir_fd=handle)
                raise
        for old in names[: max(0, len(names) + 1 - MOST_FILES)]:
            with suppress(OSError):
                os.unlink(old, dir_fd=handle)
    finally:
        os.close(handle)
    return folder / name
