"""SIGHUP: read the configuration again, take what may change, and say what may not.

Sources and the log's level change in place. Identity, trust, bounds, ledger and transport never do:
they decide what this host will publish and to whom, and a restart is where a person decides that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from collectors.port import Absence, Source, SourceRegistry
from edge_agent.config import AgentConfig
from transport.settings.config import ConfigError

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


@dataclass(frozen=True, slots=True)
class Changed:
    """Sources after a change.

    running     by registered name, in the registry's order
    absent      those that this host lacks, asked anew
    stopped     names that ended or were stopped to start with other settings
    started     names that were started
    """

    running: Mapping[str, Source]
    absent: tuple[Absence, ...]
    stopped: tuple[str, ...]
    started: tuple[str, ...]


def change_sources(
    running: Mapping[str, Source],
    before: SourceRegistry,
    after: SourceRegistry,
    replace: Callable[[Sequence[Source]], None],
) -> Changed:
    """Keep what runs under the same name with the same settings; stop the rest, then start.

    running     sources of `before` by registered name
    replace     makes the agent go on with these, and stops what is no longer among them

    One that could not start before is tried again: a reload is how a person says that it may now.
    """
    kept = {
        name: source
        for name, source in running.items()
        if name in after and before.settings(name) == after.settings(name)
    }
    # Stopped first: two of one source may not share a device or a program.
    replace(list(kept.values()))
    now: dict[str, Source] = {}
    absent: list[Absence] = []
    for name in after:
        source = kept.get(name) or after.start(name)
        if isinstance(source, Absence):
            absent.append(source)
        else:
            now[name] = source
    replace(list(now.values()))
    return Changed(
        now,
        tuple(absent),
        tuple(name for name in running if name not in kept),
        tuple(name for name in now if name not in kept),
    )
