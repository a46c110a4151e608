"""What every injector is: it begins, it ends, and a counter shows whether it did anything."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Final

from bench.diagnosis.cgroups import Cgroup
from bench.diagnosis.processes import Launched, python
from bench.diagnosis.workload import Workload

LOADS: Final = "bench.diagnosis.faults.loads"
STRESS: Final = "stress-ng"


@dataclass(frozen=True, slots=True)
class Effect:
    """What an injector did, by a counter that is not the step time.

    before, during   the counter's growth, per second
    least            growth from which on the fault was there
    """

    counter: str
    before: float
    during: float
    least: float

    @property
    def shown(self) -> bool:
        """Whether the fault was there."""
        return self.during - self.before >= self.least

    def document(self) -> dict[str, object]:
        return {**asdict(self), "shown": self.shown}


class CpuUse:
    """What a cgroup used of the CPUs in the undisturbed stretch: a quota is a share of it.

    least_cores   what it is taken for where it used less
    """

    def __init__(self, cgroup: Cgroup, least_cores: float) -> None:
        self._cgroup, self._least_cores = cgroup, least_cores
        self._begun_s = cgroup.cpu_s()
        self._cores = 0.0

    def cores(self, watched_s: float) -> float:
        """Cores over the stretch, which lasted `watched_s`; first asked at its end."""
        if self._cores == 0.0:
            used_s = self._cgroup.cpu_s() - self._begun_s
            self._cores = max(self._least_cores, used_s / watched_s)
        return self._cores


GROWING: Final = 3
"""The intensity of a fault that begins below what harms and grows to the highest."""


class Fault(ABC):
    """One injector on one workload at one intensity: 0 low, 1 middle, 2 high.

    cause       what a diagnosis should answer, or "unknown"
    injector    name of the implementation
    counter     what `meter` reads, a growing number; `least` its growth per second at a true fault
    """

    cause: ClassVar[str]
    injector: ClassVar[str]
    counter: ClassVar[str]
    least: ClassVar[float]

    def __init__(self, work: Workload, intensity: int, seed: int) -> None:
        self.work, self.intensity, self.seed = work, intensity, seed
        self._launched: list[Launched] = []
        self._readings: list[tuple[float, float]] = []

    def watch(self) -> None:
        """Begin the comparison: an undisturbed stretch starts here."""
        self._readings = [(time.monotonic(), self.meter())]

    def begin(self) -> None:
        self._readings.append((time.monotonic(), self.meter()))
        self.inject()

    def end(self) -> Effect:
        self._readings.append((time.monotonic(), self.meter()))
        for launched in self._launched:
            self.work.end(launched)
        self._launched.clear()
        self.withdraw()
        before, during = self._rates()
        return Effect(self.counter, round(before, 4), round(during, 4), self.least)

    def _rates(self) -> tuple[float, float]:
        (at0, n0), (at1, n1), (at2, n2) = self._readings
        return (n1 - n0) / max(at1 - at0, 1e-3), (n2 - n1) / max(at2 - at1, 1e-3)

    def watched_s(self) -> float:
        """How long the undisturbed stretch was; once begun."""
        (at0, _), (at1, _) = self._readings[:2]
        return max(at1 - at0, 1e-3)

    @property
    def loads(self) -> int:
        return len(self._launched)

    def launch(self, words: Sequence[str], namespace: str = "", *, inside: bool = False) -> None:
        """Start a disturber that `end` ends; `inside`: its memory is the job's."""
        memory_of = self.work.job if inside else None
        self._launched.append(self.work.launch(words, self.work.noise, namespace, memory_of))

    def load(self, name: str, *arguments: object, namespace: str = "") -> None:
        self.launch(python(LOADS, name, *arguments), namespace)

    @abstractmethod
    def meter(self) -> float:
        """Read the counter."""

    @abstractmethod
    def inject(self) -> None:
        """Make the fault."""

    def withdraw(self) -> None:
        """Undo what ending the disturbers does not undo."""
        return


class Graded(Fault):
    """A fault of one number, that may also grow.

    grades   the number at each intensity
    rest     the number at which it harms nothing: where growing begins
    """

    grades: ClassVar[tuple[float, float, float]]
    rest: ClassVar[float]

    def inject(self) -> None:
        self.apply(self.rest if self.intensity == GROWING else self.grades[self.intensity])

    def grow(self, share: float) -> None:
        """Be this share, 0..1, of the way from rest to the highest intensity."""
        self.apply(self.rest + (self.grades[-1] - self.rest) * min(1.0, share))

    @abstractmethod
    def apply(self, number: float) -> None:
        """Make the fault this strong."""
