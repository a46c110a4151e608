"""SIGHUP: read the configuration again, take what may change, and say what may not.

Sources and the log's level change in place. Identity, trust, bounds, ledger and transport never do:
they decide what this host will publish and to whom, and a restart is where a person decides that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edge_agent.config import AgentConfig
from transport.config_tree import ConfigError

IN_PLACE: Final = frozenset({"sources", "diagnosis", "log"})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload did.

    config       in force from now on
    changed      sections that were taken
    held_back    sections that changed in the file and wait for a restart
    error        why the file was refused: everything stays as it was
    """

    config: AgentConfig
    changed: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    error: str | None = None

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return "refused"
        return "held_back" if self.held_back else "done"


def reload(current: AgentConfig, read: Callable[[], AgentConfig]) -> Reloaded:
    """Read the configuration anew beside the one in force."""
    try:
        found = read()
    except (ConfigError, OSError) as error:
        return Reloaded(current, error=str(error))
    differs = tuple(
        f.name
        for f in dataclasses.fields(AgentConfig)
        if getattr(found, f.name) != getattr(current, f.name)
    )
    held_back = tuple(name for name in differs if name not in IN_PLACE)
    taken = {name: getattr(found, name) for name in differs if name in IN_PLACE}
    return Reloaded(dataclasses.replace(current, **taken), tuple(taken), held_back)
