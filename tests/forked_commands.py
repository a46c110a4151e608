"""Runs commands of the product, each in a process forked off this one, which has imported them.

A program of its own, the shell of `tests.page_machine`: a line of JSON in says what to do, a line
out what came of it. Importing the product anew for each command would take longer than most do.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from pointillist.cli import main

ROOMS = (
    "wire", "privacy", "transport", "kernels", "collectors", "diagnosis", "edge_agent",
    "aggregator", "analytics", "simulator", "pages", "web", "pointillist",
)  # fmt: skip


def serve() -> None:
    for room in ROOMS:
        for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
            if not module.name.endswith("__main__"):
                with suppress(ModuleNotFoundError):  # Spark's lie in an environment of their own
                    importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # or each process copies what the collector looks at
    for line in sys.stdin:
        print(json.dumps(_do(**json.loads(line))), flush=True)
    for pid in _begun:  # whoever asked is gone
        os.kill(pid, signal.SIGKILL)
    os._exit(0)  # DuckDB would list what the collector was kept from


_begun: set[int] = set()


def _do(
    words: list[str] | None = None,
    folder: str = "/",
    files: tuple[str, str] = ("", ""),
    wait: int = 0,
    end: tuple[int, int] = (0, 0),
) -> int:
    """Begin a command and give its process; or wait for one, or end it, and give its exit code."""
    if words:
        begun = os.fork() or _become(words, folder, files)
        _begun.add(begun)
        return begun
    if end[0]:
        os.kill(*end)
    ended, status = os.waitpid(wait or end[0], 0)
    _begun.remove(ended)
    return os.waitstatus_to_exitcode(status)


def _become(words: list[str], folder: str, files: tuple[str, str]) -> NoReturn:
    os.setsid()
    for number, path in enumerate(("/dev/null", *files)):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    code: object = 1
    try:
        if words[0] != "pointillist":
            os.execvp(words[0], words)
        sys.argv = words
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001  (it ends this process, whatever it is)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    serve()
