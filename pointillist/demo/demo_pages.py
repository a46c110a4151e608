"""The demo's pages: the fleet's and this host's, each a process that ends with the demo."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .folders import RunFolders
from .role_processes import Family, RoleProcess

LEADER_TRANSCRIPT: Final = "leader-transcript.json"
HELPER_TRANSCRIPT: Final = "helper-transcript.json"
_LOOK_S: Final = 0.5


def page_line(name: str, address: str) -> str:
    """Say where what is shown in a browser."""
    return f"{address}   {name} in a browser"


def transcript_options(results: Path, leader_pk: str, helper_pk: str) -> list[str]:
    """Give the options by which pages verify the transcripts of a run, once they are written.

    leader_pk, helper_pk   hex
    """
    return [
        *("--leader-transcript", str(results / LEADER_TRANSCRIPT)),
        *("--helper-transcript", str(results / HELPER_TRANSCRIPT)),
        *("--leader", leader_pk, "--helper", helper_pk),
    ]


@dataclass(slots=True)
class DemoPages:
    """Servers of pages and the addresses that they have told.

    family      their own: they outlive the fleet where the demo is served on
    addresses   what is shown -> address
    """

    folders: RunFolders
    family: Family
    addresses: dict[str, str] = field(default_factory=dict)
    _servers: dict[str, RoleProcess] = field(default_factory=dict)

    def show_fleet(self, more: Sequence[str] = ()) -> None:
        """Serve the store of the demo; it fills as windows are released.

        more    options of `pointillist web`
        """
        base = self.folders.base
        self._servers["the fleet"] = self.family.start(
            "web", "pointillist", "web", "--json", "--listen", "localhost:0",
            "--store", str(self.folders.releases), "--rollups", str(base / "rollups"),
            "--record", str(self.folders.logs / "queries.jsonl"), *more,
        )  # fmt: skip

    def show_host(self) -> None:
        """Serve what the agent of this host keeps, to its owner."""
        config = str(self.folders.base / "live.toml")
        self._servers["this host"] = self.family.start(
            "host-page", "pointillist", "agent", "web", "--json", "--port", "0", "--config", config
        )

    def look(self) -> dict[str, str]:
        """Give the addresses that are known by now; a server that ended has none."""
        for name, server in self._servers.items():
            if name not in self.addresses and (told := server.heard()) is not None:
                self.addresses[name] = str(told["address"])
        return {
            name: self.addresses[name]
            for name in self._servers
            if name in self.addresses and self._runs(name)
        }

    def serve(self, tell: Callable[[str], None]) -> None:
        """Tell each address, and wait until the servers end, or the demo is ended."""
        told: set[str] = set()
        while any(map(self._runs, self._servers)):
            for name, address in self.look().items():
                if name not in told:
                    told.add(name)
                    tell(f"{page_line(name, address)}, until Ctrl-C")
            time.sleep(_LOOK_S)

    def _runs(self, name: str) -> bool:
        return self._servers[name].running
