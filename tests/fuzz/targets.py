"""Every parser of a stranger's bytes, by name; its module is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

NAMES: Final = (
    "wire", "envelope", "joins", "elf", "stubs", "traces", "sysfs", "maps", "memfd",
)  # fmt: skip
CORPUS: Final = Path(__file__).with_name("corpus")
"""The inputs that are kept: of each target a folder, small enough to be replayed by `make test`."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser under test.

    fuzz    reads any bytes; raises only where the parser is wrong
    seeds   inputs to begin with
    close   removes the files that reading made
    """

    name: str
    fuzz: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    close: Callable[[], None]

    @property
    def corpus(self) -> Path:
        return CORPUS / self.name


def load(name: str) -> Target:
    """Load a target. Raises ModuleNotFoundError for a name that is none of NAMES."""
    module = import_module(f"tests.fuzz.fuzz_{name}")
    return Target(name, module.fuzz, module.seeds, getattr(module, "close", lambda: None))
