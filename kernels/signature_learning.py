"""How well signatures tell applications apart: always on profiles that were not learned from.

A profile is asked about with itself and every rank of its own job taken out, so a trace is never
split over both sides. For unknown applications its whole class is taken out, and the right answer
is `unknown`. The threshold is set anew from what is left, each time.
"""

from __future__ import annotations

import json
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb, sqrt
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np

from transport.process.printable import listed

from .families import UNKNOWN_APPLICATION, FamilyRules, pipeline_applications
from .kernel_mix import OPERATION_WEIGHT, KernelMix, MixMeasure, MixRow, mix_rows
from .launches.kineto import gpu_events, open_trace, read_header
from .launches.read import amount, table_row
from .signatures import Match, Signature, SignatureError, Signatures, ranking


def wilson_interval(hits: int, trials: int) -> tuple[float, float]:
    """Return the 95 % score interval of a proportion.

    hits, trials    0 <= hits <= trials; without trials the interval is [0, 1]
    Source          E. B. Wilson 1927
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"expected 0 <= hits <= trials, got {hits} of {trials}")
    if trials == 0:
        return 0.0, 1.0
    z = 1.959964
    share, spread = hits / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z * sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class Rate:
    """Hits of trials with the 95 % Wilson interval; None and (0, 1) without trials."""

    hits: int
    trials: int

    @property
    def share(self) -> float | None:
        return self.hits / self.trials if self.trials else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.hits, self.trials)


@dataclass(frozen=True, slots=True)
class SignatureEvaluation:
    """What held-out profiles say.

    nearest          the nearest profile is of the right class; `unknown` is no answer here
    answered         the answer, with `unknown` allowed, is the right class
    false_accepts    a profile of a class never learned was given some class
    auroc            a known profile lies nearer than one of an unknown class
    by_candidates    (classes to choose from, accuracy averaged over every choice of the others)
    """

    measure: MixMeasure
    by: str
    nearest: Rate
    answered: Rate
    false_accepts: Rate
    auroc: float | None
    by_candidates: tuple[tuple[int, float], ...]


_Perturb = Callable[[Signature], Signature]


def evaluate(
    profiles: Sequence[Signature],
    measure: MixMeasure,
    by_job: bool = True,
    perturb: _Perturb | None = None,
    weight: float = OPERATION_WEIGHT,
) -> SignatureEvaluation:
    """Ask about every profile with what was learned from the others.

    by_job      take out all ranks of the profile's job, not itself alone
    perturb     makes a variant: changes the profile that is asked about, never what was learned
    weight      of operations beside families in a distance
    """
    asked = [(p, (perturb(p) if perturb else p).mix(measure)) for p in profiles]
    told = attrgetter("job" if by_job else "name")
    closed = [(p, mix, [o for o in profiles if told(o) != told(p)]) for p, mix in asked]
    closed = [c for c in closed if any(o.application == c[0].application for o in c[2])]
    known = [(p, _match(mix, left, weight)) for p, mix, left in closed]
    strangers = [
        _match(mix, [o for o in profiles if o.application != p.application], weight)
        for p, mix in asked
    ]
    return SignatureEvaluation(
        measure=measure,
        by="job" if by_job else "trace",
        nearest=_rate(match.nearest == p.application for p, match in known),
        answered=_rate(match.application == p.application for p, match in known),
        false_accepts=_rate(match.application != UNKNOWN_APPLICATION for match in strangers),
        auroc=auroc([m.distance for _, m in known], [m.distance for m in strangers]),
        by_candidates=tuple(_by_candidates(closed, weight)),
    )


def resampled(launches: int, seed: int) -> _Perturb:
    """Make a variant: what a window of so many launches of the same program would show."""

    def vary(profile: Signature) -> Signature:
        rng = np.random.default_rng([seed, *profile.name.encode()])
        shares = np.array([row.launches for row in profile.rows])
        counts = rng.multinomial(launches, shares / shares.sum()).tolist()
        drawn = (_scaled(row, n) for row, n in zip(profile.rows, counts, strict=True))
        return replace(profile, rows=tuple(drawn))

    return vary


def jittered(sigma: float, seed: int) -> _Perturb:
    """Make a variant: each operation's share is multiplied by a log-normal factor."""

    def vary(profile: Signature) -> Signature:
        rng = np.random.default_rng([seed, *profile.name.encode()])
        factors = rng.lognormal(0.0, sigma, len(profile.rows)).tolist()
        scaled = (
            _scaled(row, row.launches * f) for row, f in zip(profile.rows, factors, strict=True)
        )
        return replace(profile, rows=tuple(scaled))

    return vary


def auroc(near: Sequence[float], far: Sequence[float]) -> float | None:
    """Chance that one of `near` is below one of `far`, ties half; None without pairs."""
    if not near or not far:
        return None
    wins = sum((a < b) + 0.5 * (a == b) for a in near for b in far)
    return float(wins / (len(near) * len(far)))


def _scaled(row: MixRow, launches: float) -> MixRow:
    factor = launches / row.launches if row.launches else 0.0
    time = None if row.gpu_time is None else row.gpu_time * factor
    return MixRow(row.operation, row.family, launches, time)


def _match(mix: KernelMix, left: Sequence[Signature], weight: float) -> Match:
    return Signatures.train(left, weight).nearest(mix)


def _rate(hits: Iterable[bool]) -> Rate:
    found = list(hits)
    return Rate(sum(found), len(found))


def _by_candidates(
    closed: Sequence[tuple[Signature, KernelMix, list[Signature]]], weight: float
) -> Iterable[tuple[int, float]]:
    """Average, over every choice of other classes, whether the right class is nearest.

    The right class beats a choice when all chosen classes lie farther, so it is enough to count
    the classes that lie farther: C(farther, c - 1) of C(others, c - 1) choices.
    """
    if not closed:
        return
    scores: list[tuple[int, int]] = []
    for profile, mix, left in closed:
        own = 2.0
        nearest_of: dict[str, float] = {}
        for far, other in ranking(mix, left, weight):
            if other.application == profile.application:
                own = min(own, far)
            else:
                nearest_of.setdefault(other.application, far)
        scores.append((sum(far > own for far in nearest_of.values()), len(nearest_of)))
    most = min(others for _, others in scores)
    for chosen in range(1, most + 1):
        wins = [comb(farther, chosen) / comb(others, chosen) for farther, others in scores]
        yield chosen + 1, sum(wins) / len(wins)


_MOST_BYTES: Final = 256 << 20
_NOT_ROWS: Final = frozenset({"since_ns", "until_ns", "cut_short"})
_Kernel = tuple[str, str, int, int | None]


def read_profile(path: Path, rules: FamilyRules, application: str | None = None) -> Signature:
    """Read one profile.

    path          a PyTorch trace (.json, .json.gz); a kernel table (.toml) with `application` and
                  [[kernel]] rows of name, launches and time_ns; or what
                  `pointillist agent history --kind activity --json` prints
    application   its class; None: what the file says, else `unknown`
    Raises        SignatureError, and TraceError for a broken trace
    """
    if path.suffix == ".toml":
        return _table(path, rules, application)
    if _is_history(path):
        return _history(path, application)
    header = read_header(path)
    said = header.application or pipeline_applications().get(header.pipeline_tag or "")
    launches = (
        (event.name, rules.classify(event.name)[0], 1, event.duration_ns)
        for event in gpu_events(path, reorder=1)
    )
    model = header.gpu_models[0] if header.gpu_models else "other"
    return _made(path, application or said, model, path.name, launches)


def _made(
    path: Path, application: str | None, model: str, source: str, kernels: Iterator[_Kernel]
) -> Signature:
    rows = tuple(mix_rows(kernels))
    if not rows:
        raise SignatureError(f"{path}: expected kernels, found none")
    name = path.name.split(".")[0]
    return Signature(name, application or UNKNOWN_APPLICATION, model, source, rows)


def _table(path: Path, rules: FamilyRules, application: str | None) -> Signature:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise SignatureError(f"{path}: expected at most {_MOST_BYTES} bytes")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        kernels = []
        for row in table["kernel"]:
            name, launches, time_ns = table_row(row)
            family = str(row.get("family") or rules.classify(name)[0])
            kernels.append((name, family, launches, time_ns))
        source = f"{table.get('source', '')} {table.get('source_file', '')}".strip()
        said, model = table.get("application"), str(table.get("gpu_model", "other"))
        if not isinstance(said, str | None):
            raise TypeError(f"a class in quotes expected, got {said!r:.40}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SignatureError(f"{path}: expected a kernel table, got {error!r}") from None
    return _made(path, application or said, model, source, iter(kernels))


def _is_history(path: Path) -> bool:
    try:
        with open_trace(path) as stream:
            return stream.read(32).lstrip().startswith(b'{"since_ns"')
    except OSError as error:
        raise SignatureError(f"{path}: cannot read ({error.strerror or error})") from None
    except (EOFError, zlib.error) as error:
        raise SignatureError(f"{path}: damaged gzip ({error})") from None


def _history(path: Path, application: str | None) -> Signature:
    if path.stat().st_size > _MOST_BYTES:
        raise SignatureError(f"{path}: expected at most {_MOST_BYTES} bytes; take a shorter span")
    try:
        kinds = json.loads(path.read_text(encoding="utf-8"))
        kernels = []
        for row in kinds.get("activity", ()):
            time_ns = None if row["gpu_time_ns"] is None else amount(int(row["gpu_time_ns"]))
            launches = amount(int(row["count"]))
            kernels.append((str(row["name"]), str(row["family"]), launches, time_ns))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise SignatureError(f"{path}: expected kernel activity, got {error!r}") from None
    if "activity" not in kinds:
        found = listed([kind for kind in kinds if kind not in _NOT_ROWS], none="nothing")
        raise SignatureError(f"{path}: expected rows of `--kind activity`, got {found}")
    return _made(path, application, "other", path.name, iter(kernels))
