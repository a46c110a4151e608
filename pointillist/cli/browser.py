"""Opening a page in this person's browser, where there is one."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from json import dumps

from .output import say


def open_page(address: str) -> None:
    """Open an address; without a screen say so, as a browser of the terminal would take it."""
    screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if not (screen and webbrowser.open(address)):
        say(f"no browser can be opened from here: open {address}")


def started(body: Mapping[str, str]) -> None:
    """Print one line of JSON for whoever started a server: it is listening."""
    sys.stdout.write(f"{dumps(body)}\n")
    sys.stdout.flush()
