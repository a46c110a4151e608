"""What a part can do with a point: each kind is one function from a run to its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from wire.catalogue import Catalogue

from .attacks import play_faults, play_guess, play_lies
from .experiment_runs import ExperimentRun
from .studies import play_attribution, play_seen
from .window_kinds import play_windows

Row = dict[str, Any]
Kind = Callable[[ExperimentRun, Path, Catalogue], Row]

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "windows": play_windows,
        "seen": play_seen,
        "attribution": play_attribution,
        "lies": play_lies,
        "faults": play_faults,
        "guess": play_guess,
    }
)
"""`windows` plays a scenario's windows and scores them against the truth; `seen` asks when every
application has been seen; `attribution`, how much GPU time the right one is given; `lies`, `faults`
and `guess` play those who do not follow the protocol."""
