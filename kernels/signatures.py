"""Application classes from kernel mixes: nearest known profile, or `unknown`.

Only the class index of a match enters the vector; mixes and names stay on the host.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Self

from . import kernel_mix
from .families import UNKNOWN_APPLICATION, normalise
from .kernel_mix import DECIDES, OPERATION_WEIGHT, KernelMix, MixMeasure, MixRow

FORMAT: Final = 1
LEAST_MARGIN: Final = 0.02
"""Nearer than this to two classes is no answer."""
_MOST_BYTES: Final = 64 << 20
_MOST_SIGNATURES: Final = 4096
_MOST_ROWS: Final = 512
_LEAST_MILLIONTHS: Final = 100
_MILLION: Final = 1_000_000
_TEXTS: Final = ("name", "application", "gpu_model", "source")
_RANK: Final = re.compile(r"_?(?:rank|worker)_?\d+")


class SignatureError(ValueError):
    """Signatures or profiles that cannot be used: names what was expected and what came."""


@dataclass(frozen=True)
class Signature:
    """The mix of one recorded profile of a known application."""

    name: str
    application: str
    gpu_model: str
    source: str
    rows: tuple[MixRow, ...]

    @property
    def job(self) -> str:
        """The run it is of: ranks of one job are not independent."""
        return _RANK.sub("", self.name)

    @cached_property
    def _mixes(self) -> dict[MixMeasure, KernelMix]:
        return {measure: KernelMix.of(self.rows, measure) for measure in MixMeasure}

    def mix(self, measure: MixMeasure) -> KernelMix:
        return self._mixes[measure]


@dataclass(frozen=True, slots=True)
class Match:
    """What a mix is nearest to.

    application   the class, or `unknown` when it is too far or two classes are as near
    nearest       the class of the nearest profile, whatever the distance
    distance      to it, 0 .. 1
    margin        how much farther the next class is; 1 where there is none
    """

    application: str
    nearest: str
    profile: str
    distance: float
    threshold: float
    margin: float
    runner_up: str

    @property
    def because(self) -> str:
        """Say in a sentence why it is this class, or none."""
        near = f"the nearest profile, {self.profile}, is {self.distance:.3f} away"
        if self.distance > self.threshold:
            return f"{near}, beyond the threshold of {self.threshold:.3f}"
        if self.margin < LEAST_MARGIN:
            return f"{near}, and {self.runner_up} only {self.margin:.3f} farther"
        return f"{near}, within the threshold of {self.threshold:.3f}"


@dataclass(frozen=True, slots=True)
class Signatures:
    """Known profiles, with the distance beyond which a mix is of none of them, by measure.

    operation_weight    weight of operations beside families in a distance, 0 .. 1
    """

    known: tuple[Signature, ...]
    thresholds: dict[MixMeasure, float]
    operation_weight: float = OPERATION_WEIGHT

    @classmethod
    def load(cls, path: Path | None = None, applications: Collection[str] | None = None) -> Self:
        """Read the packaged signatures, or those of a file.

        applications   classes that a signature may have, None: any
        Raises         SignatureError
        """
        source = path if path is not None else resources.files(__package__) / "signatures.json"
        try:
            with source.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                raise SignatureError(f"more than {_MOST_BYTES:,} bytes")
            document = json.loads(content)
            known = tuple(_signature(entry) for entry in document["signatures"])
            limits = {measure: _part(document["thresholds"][measure]) for measure in MixMeasure}
            form, weight = document["format"], _part(document["operation_weight"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise SignatureError(f"{source}: expected signatures, got {error!r}") from None
        if form != FORMAT or not 0 < len(known) <= _MOST_SIGNATURES:
            raise SignatureError(
                f"{source}: expected format {FORMAT} and 1 .. {_MOST_SIGNATURES} signatures, "
                f"got format {form} and {len(known)}"
            )
        unknown = sorted({s.application for s in known} - set(applications or ()))
        if applications is not None and unknown:
            raise SignatureError(f"{source}: expected classes of the catalogue, got {unknown}")
        return cls(known, limits, weight)

    @classmethod
    def train(cls, profiles: Sequence[Signature], weight: float = OPERATION_WEIGHT) -> Self:
        """Keep the profiles and set the thresholds between what is one class and what is not."""
        if not profiles:
            raise SignatureError("expected at least one profile, got none")
        limits = {measure: calibrate(profiles, measure, weight) for measure in MixMeasure}
        return cls(tuple(profiles), limits, weight)

    def text(self) -> str:
        """The file's content: shares in millionths, a line per operation."""
        limits = {measure: round(limit, 4) for measure, limit in self.thresholds.items()}
        weight = self.operation_weight
        head = {"format": FORMAT, "operation_weight": weight, "thresholds": limits}
        entries = [json.dumps(_entry(profile), ensure_ascii=False) for profile in self.known]
        listed = ",\n".join(entry.replace("], [", "],\n [") for entry in entries)
        return f'{json.dumps(head)[:-1]}, "signatures": [\n{listed}\n]}}\n'

    def nearest(self, mix: KernelMix) -> Match:
        """Find the nearest known profile of a mix."""
        ranked = ranking(mix, self.known, self.operation_weight)
        best_distance, best = ranked[0]
        second = next((pair for pair in ranked if pair[1].application != best.application), None)
        margin = second[0] - best_distance if second else 1.0
        threshold = self.thresholds[mix.measure]
        known = best_distance <= threshold and margin >= LEAST_MARGIN
        return Match(
            application=best.application if known else UNKNOWN_APPLICATION,
            nearest=best.application,
            profile=best.name,
            distance=best_distance,
            threshold=threshold,
            margin=margin,
            runner_up=second[1].application if second else "",
        )


def ranking(
    mix: KernelMix, known: Iterable[Signature], weight: float = OPERATION_WEIGHT
) -> list[tuple[float, Signature]]:
    """Known profiles by distance, nearest first."""
    found = [
        (kernel_mix.distance(mix, profile.mix(mix.measure), weight), profile) for profile in known
    ]
    return sorted(found, key=lambda pair: (pair[0], pair[1].name))


def calibrate(
    profiles: Sequence[Signature], measure: MixMeasure, weight: float = OPERATION_WEIGHT
) -> float:
    """Return the threshold: halfway from the farthest kin to the nearest stranger.

    Kin is a profile's nearest of its class, a stranger its nearest of another. Ranks of one job
    are no kin: they lie nearer than two runs do. Where no class has two runs it is half the
    distance of the nearest strangers, and where there is one class 0.25.
    """
    same: list[float] = []
    strangers: list[float] = []
    for profile in profiles:
        for far, other in ranking(profile.mix(measure), profiles, weight):
            if other.application != profile.application:
                strangers.append(far)
                break
        kin = [o for o in profiles if o.application == profile.application and o.job != profile.job]
        if kin:
            same.append(ranking(profile.mix(measure), kin, weight)[0][0])
    if not strangers:
        return max(same, default=0.25)
    return (max(same, default=0.0) + min(strangers)) / 2


def _entry(profile: Signature) -> dict[str, Any]:
    launches = sum(row.launches for row in profile.rows) or 1.0
    time = sum(row.gpu_time or 0.0 for row in profile.rows) or 1.0
    rows: list[list[Any]] = []
    for row in profile.rows:
        count = round(_MILLION * row.launches / launches)
        spent = None if row.gpu_time is None else round(_MILLION * row.gpu_time / time)
        if max(count, spent or 0) >= _LEAST_MILLIONTHS:
            rows.append([row.operation, row.family, count, spent])
    return {key: getattr(profile, key) for key in _TEXTS} | {"rows": rows[:_MOST_ROWS]}


def _signature(entry: Any) -> Signature:
    rows = tuple(_row(row) for row in entry["rows"][:_MOST_ROWS])
    if not rows:
        raise SignatureError(f"signature {entry['name']}: expected rows, got none")
    name, application, gpu_model, source = (str(entry[key]) for key in _TEXTS)
    return Signature(name, application, gpu_model, source, rows)


def _part(number: Any) -> float:
    if not isinstance(number, int | float) or not 0 <= number <= 1:  # nor is what is no number
        raise SignatureError(f"expected thresholds and a weight of 0 .. 1, got {number!r:.40}")
    return float(number)


def _row(row: Any) -> MixRow:
    what, family, launches, time = row
    numbers = [launches] if time is None else [launches, time]
    if not all(isinstance(n, int) and 0 <= n <= _MILLION for n in numbers):
        raise SignatureError(f"expected shares of 0 .. {_MILLION} millionths, got {numbers}")
    return MixRow(str(what), str(family), float(launches), None if time is None else float(time))


LEAST_LAUNCHES: Final = 500
"""Fewer say nothing: at 500 launches the sampling of a mix moves it by about 0.05."""

PART_LAUNCHES: Final = 5_000
PARTS: Final = 8
"""The window: the newest 7 to 8 parts of 5,000 launches, some seconds of a busy process."""

_MOST_OPERATIONS: Final = 512
_MOST_PROCESSES: Final = 1_024
_CACHED_NAMES: Final = 16_384

_cached_normalise = lru_cache(maxsize=_CACHED_NAMES)(normalise)


Launches = Counter[tuple[str, str]]


@dataclass(slots=True)
class _Process:
    parts: deque[Launches]
    judged: Match | None = None
    stale: bool = True


class ApplicationClassifier:
    """One sliding window per process; the least recently seen process is forgotten first.

    Memory is bounded: 1,024 processes x 8 parts x 512 operations; operations beyond that count
    under their family.
    """

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self._processes: OrderedDict[Hashable, _Process] = OrderedDict()

    def observe(self, process: Hashable, kernel_name: str, family: str, launches: int) -> None:
        """Count launches of one kernel by a process.

        process       any key that names one process for as long as it lives
        launches      >= 0, corrected for sampling where the source samples
        """
        if launches < 0:
            raise ValueError(f"expected launches of at least 0, got {launches}")
        known = self._touch(process)
        part = known.parts[-1]
        place = kernel_mix.operation(_cached_normalise(kernel_name), family), family
        if place not in part and len(part) >= _MOST_OPERATIONS:
            place = family, family
        part[place] += launches
        known.stale = True

    def end_round(self) -> None:
        """Say that all kernels of a drain were told: parts of the window end here only.

        Rows may hold thousands of launches of one kernel, and a window that ended between two of
        them would hold the last kernels alone.
        """
        for known in self._processes.values():
            if known.parts[-1].total() >= PART_LAUNCHES:
                known.parts.append(Counter())

    def application(self, process: Hashable) -> str:
        """Return the class of a process; `unknown` until it is seen enough of, or never seen."""
        match = self.match(process)
        return match.application if match else UNKNOWN_APPLICATION

    def match(self, process: Hashable) -> Match | None:
        """Return what a process is nearest to, None while too few launches were seen."""
        known = self._processes.get(process)
        if known is None:
            return None
        if known.stale:
            launches: Launches = Counter()
            for part in known.parts:
                launches.update(part)
            if launches.total() < LEAST_LAUNCHES:
                return None
            rows = [MixRow(*place, count, None) for place, count in launches.items()]
            mix = KernelMix.of(rows, DECIDES)
            known.judged = self._signatures.nearest(mix) if mix.families else None
            known.stale = False
        return known.judged

    def forget(self, process: Hashable) -> None:
        """Drop a process that ended; one never seen is no error."""
        self._processes.pop(process, None)

    def _touch(self, process: Hashable) -> _Process:
        known = self._processes.get(process)
        if known is None:
            known = self._processes[process] = _Process(deque([Counter()], maxlen=PARTS))
            if len(self._processes) > _MOST_PROCESSES:
                self._processes.popitem(last=False)
        self._processes.move_to_end(process)
        return known
