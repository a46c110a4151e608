"""Opening a page in this person's browser, where there is one."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from json import dumps

from .output import say, usage_error


def open_page(address: str) -> None:
    """Open an address; without a screen say so, as a browser of the terminal would take it."""
    screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if not (screen and webbrowser.open(address)):
        say(f"no browser can be opened from here: open {address}")


def started(body: Mapping[str, str]) -> None:
    """Print one line of JSON for whoever started a server: it is listening."""
    sys.stdout.write(f"{dumps(body)}\n")
    sys.stdout.flush()


def needs_web(command: str) -> None:
    """Say what to install where this installation has no web server.

    Raises      CommandError
    """
    missing = missing_for_web()
    if missing:
        raise usage_error(f"`{command}` needs {missing}", "pip install 'pointillist[web]'")


def missing_for_web() -> str:
    """Name the package that pages lack here; "" where there are all."""
    try:
        import fastapi  # noqa: F401
        import jinja2  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        return error.name or "a package"
    return ""
