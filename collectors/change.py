"""From one set of running sources to another: only what changed is stopped and started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .port import Absence, Source, SourceRegistry


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
