"""Names and families of what a library's rows count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from collectors.binaries.demangle import Demangler
from kernels.families import FamilyRules

from .segment import RowKind

_NAMES: Final = {
    RowKind.MEMSET: ("Memset", "memset"),
    RowKind.GRAPH: ("(graph)", "other"),
    RowKind.OTHER: ("(other)", "other"),
}
_MOST_NAMES: Final = 65_536
_MOST_CHARACTERS: Final = 64 << 20
"""More than all processes have for which there is room: what is in use is not learnt anew."""


class RowNames:
    """Knows kernels by their mangled names; strangers' names take bounded memory."""

    def __init__(self) -> None:
        self._rules = FamilyRules.load()
        self._demangler = Demangler()
        self._named: dict[str, tuple[str, str]] = {}
        self._characters = 0

    def learn_some(self, names: Iterable[str], most: int) -> int:
        """Learn at most so many kernels that are new; give how many there were."""
        new = [name for name in dict.fromkeys(names) if name not in self._named]
        self.learn((RowKind.KERNEL, name) for name in new[:most])
        return len(new)

    def learn(self, rows: Iterable[tuple[RowKind, str]]) -> None:
        """Learn names that are new, all at once."""
        kernels = {name for kind, name in rows if kind in (RowKind.KERNEL, RowKind.NODE)}
        new = sorted(kernels - self._named.keys())
        more = sum(map(len, new))
        if len(self._named) + len(new) > _MOST_NAMES or self._characters + more > _MOST_CHARACTERS:
            self._named.clear()
            self._characters = 0
            new = sorted(kernels)
        for mangled, name in zip(new, self._demangler.demangle(new), strict=True):
            self._named[mangled] = name, self._rules.classify(name)[0]
            self._characters += len(mangled) + len(name)

    def called(self, kind: RowKind, name: str) -> tuple[str, str]:
        """Give a row's name and family. Raises KeyError for a kernel that was not learnt."""
        if kind is RowKind.COPY:
            return f"Memcpy {name.removeprefix('copy').strip()}".strip(), "memcpy"
        return _NAMES.get(kind) or self._named[name]
