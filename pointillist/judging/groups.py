"""Groups among unknown spikes: found by a Gaussian mixture, kept in a file, named by a person.

They are found in the vectors' main directions and kept as middle and spread in the features.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture

from diagnosis.detect.baseline import CHANNELS, Channel
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.features import CAP, FEATURE_INDEX, FEATURE_NAMES, FEATURES_VERSION
from diagnosis.detect.findings import Cause, Diagnosis
from diagnosis.frames.frame import HostSample
from edge_agent.local.words import sentence

from .splits import SEED

Table = NDArray[np.float64]

FORMAT: Final = 1
MOST_GROUPS: Final = 12
FEWEST: Final = 4
"""Spikes below which nothing is grouped, and that there are at least to each group on average."""
DIRECTIONS: Final = 6
LEAST_SCALE: Final = 0.5
"""Octaves: spikes of one group differ by this much from day to day."""
SLACK: Final = 1.5
"""A group reaches this far beyond its farthest member."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_ .-]{0,47}", re.IGNORECASE)
LARGEST_FILE: Final = 16 * 2**20
LAG_FILL: Final = -4.0
"""One second below any true lag: the signal did not move."""
FILLS: Final = np.array([LAG_FILL if name.startswith("lag.") else 0.0 for name in FEATURE_NAMES])
"""What stands for a missing feature: a signal at its baseline."""


def filled(vectors: Table) -> Table:
    """Fill what is missing in vectors, float64[..., FEATURE_NAMES]."""
    return np.where(np.isfinite(vectors), vectors, FILLS)


class GroupsRefused(ValueError):
    """A file of groups or a name that cannot be used."""


@dataclass(frozen=True, slots=True)
class SpikeMember:
    """One unknown spike, `at_s` from its recording's start; NaN in files of earlier versions."""

    recording: str
    subject: str
    onset_ns: int
    at_s: float = field(default=float("nan"), compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class SpikeGroup:
    """Unknown spikes that are alike.

    named   by a person
    mean    float64[FEATURE_NAMES], missing features filled
    scale   float64[FEATURE_NAMES], octaves
    limit   distance, root mean square in scales, up to which a spike belongs to it
    """

    name: str
    named: bool
    mean: Table
    scale: Table
    limit: float
    members: tuple[SpikeMember, ...]

    def distance(self, vector: Table) -> float:
        """How far a vector is from the middle, root mean square in scales."""
        away = (filled(vector) - self.mean) / self.scale
        return float(np.sqrt(np.mean(away**2)))


def find_groups(
    members: Sequence[SpikeMember], vectors: Sequence[Table], known: Sequence[SpikeGroup] = ()
) -> list[SpikeGroup]:
    """Group unknown spikes; the number of groups by the Bayesian criterion.

    vectors     float64[FEATURE_NAMES] of each member, the mean over its seconds
    known       groups found before, whose names and members stay
    """
    if not members:
        return list(known)
    table = filled(np.stack(list(vectors)))
    labels = _labels(table)
    found = [
        _group(
            [members[k] for k in np.flatnonzero(labels == label).tolist()], table[labels == label]
        )
        for label in np.unique(labels)
    ]
    return _with_names(found, known)


def _labels(table: Table) -> NDArray[np.int64]:
    if len(table) < FEWEST:
        return np.zeros(len(table), np.int64)
    most = min(DIRECTIONS, len(table) - 1, table.shape[1])
    directions = PCA(most, svd_solver="full", random_state=SEED).fit_transform(table)
    most_groups = max(1, min(MOST_GROUPS, len(table) // FEWEST))
    fits = [
        GaussianMixture(
            number, covariance_type="spherical", reg_covar=0.5, n_init=4, random_state=SEED
        ).fit(directions)
        for number in range(1, most_groups + 1)
    ]
    best: Any = min(fits, key=lambda fit: fit.bic(directions))
    return np.asarray(best.predict(directions), np.int64)


def _group(members: Sequence[SpikeMember], rows: Table) -> SpikeGroup:
    scale = np.maximum(rows.std(axis=0), LEAST_SCALE)
    group = SpikeGroup("", False, rows.mean(axis=0), scale, 0.0, tuple(members))
    farthest = max(group.distance(row) for row in rows)
    return replace(group, limit=SLACK * max(farthest, 0.5))


def _with_names(found: Sequence[SpikeGroup], known: Sequence[SpikeGroup]) -> list[SpikeGroup]:
    """Name each found group after the known one that reaches its middle, the nearest first."""
    pairs = sorted(
        (old.distance(new.mean), k, j)
        for k, old in enumerate(known)
        for j, new in enumerate(found)
        if old.distance(new.mean) <= old.limit
    )
    named: dict[int, int] = {}
    for _, k, j in pairs:
        if j not in named and k not in named.values():
            named[j] = k
    taken = {group.name for group in known}
    groups = [group for k, group in enumerate(known) if k not in named.values()]
    for j, group in enumerate(found):
        if j in named:
            old = known[named[j]]
            groups.append(replace(group, name=old.name, named=old.named))
        else:
            name = next(free for k in count(1) if (free := f"group-{k}") not in taken)
            taken.add(name)
            groups.append(replace(group, name=name))
    return sorted(groups, key=lambda group: group.name)


def rename(groups: Sequence[SpikeGroup], old: str, new: str) -> list[SpikeGroup]:
    """Name a group. Raises GroupsRefused where there is none, or the name is taken or malformed."""
    names = [group.name for group in groups]
    if old not in names:
        raise GroupsRefused(
            f"expected a group of the file ({', '.join(names) or 'it has none'}), got {old!r}"
        )
    if not NAME.fullmatch(new):
        raise GroupsRefused(f"expected a name of letters, digits, - _ . and spaces, got {new!r}")
    if new in names and new != old:
        raise GroupsRefused(f"expected a name that is free, got {new!r}")
    return [replace(g, name=new, named=True) if g.name == old else g for g in groups]


def save_groups(path: Path, groups: Sequence[SpikeGroup]) -> None:
    document = {
        "format": FORMAT,
        "features_version": FEATURES_VERSION,
        "features": list(FEATURE_NAMES),
        "groups": [_plain(group) for group in groups],
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _plain(group: SpikeGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "named": group.named,
        "limit": group.limit,
        "members": [
            [m.recording, m.subject, m.onset_ns, *([] if np.isnan(m.at_s) else [round(m.at_s, 3)])]
            for m in group.members
        ],
        "mean": np.round(group.mean, 4).tolist(),
        "scale": np.round(group.scale, 4).tolist(),
    }


def load_groups(path: Path) -> list[SpikeGroup]:
    """Raises GroupsRefused naming what was expected."""
    if path.stat().st_size > LARGEST_FILE:
        raise GroupsRefused(f"{path}: expected at most {LARGEST_FILE} bytes")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        told = document["format"], document["features_version"], tuple(document["features"])
        if told != (FORMAT, FEATURES_VERSION, FEATURE_NAMES):
            raise GroupsRefused(
                f"{path}: expected format {FORMAT} and features {FEATURES_VERSION}, got "
                f"{told[0]!r} and {told[1]!r}"
            )
        return [_read(row) for row in document["groups"]]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, GroupsRefused):
            raise
        raise GroupsRefused(f"{path}: expected a file of groups, got {error}") from None


def _read(row: Mapping[str, Any]) -> SpikeGroup:
    mean, scale = np.array(row["mean"], np.float64), np.array(row["scale"], np.float64)
    wide = (len(FEATURE_NAMES),)
    if mean.shape != wide or scale.shape != wide or not np.isfinite(mean).all():
        raise GroupsRefused(f"group {row['name']!r}: expected {wide[0]} numbers a vector")
    if not (scale > 0).all():
        raise GroupsRefused(f"group {row['name']!r}: expected scales above 0")
    members = tuple(
        SpikeMember(str(r), str(s), int(at), *map(float, rest))
        for r, s, at, *rest in row["members"]
    )
    name = str(row["name"])
    if not NAME.fullmatch(name):
        raise GroupsRefused(f"expected a name of letters, digits, - _ . and spaces, got {name!r}")
    return SpikeGroup(name, bool(row["named"]), mean, scale, float(row["limit"]), members)


def unknown_spikes(recording: str, frames: Iterable[HostSample]) -> list[tuple[SpikeMember, Table]]:
    """Find a recording's spikes of unknown cause, each with the mean of its seconds' vectors."""
    diagnoser = Diagnoser()
    began_ns: int | None = None
    causes: dict[SpikeMember, Cause] = {}
    vectors: dict[SpikeMember, list[Table]] = defaultdict(list)
    for frame in frames:
        if began_ns is None:
            began_ns = frame.boottime_ns - frame.span_ns
        for finding in diagnoser.handle(frame):
            if isinstance(finding, Diagnosis):
                at_s = (finding.onset_ns - began_ns) / 1e9
                member = SpikeMember(recording, finding.subject, finding.onset_ns, at_s)
                causes[member] = finding.cause
                if finding.subject in diagnoser.vectors:
                    vectors[member].append(diagnoser.vectors[finding.subject].copy())
    return [
        (member, _mean(vectors[member]))
        for member, cause in causes.items()
        if cause is Cause.UNKNOWN and vectors[member]
    ]


def _mean(vectors: Sequence[Table]) -> Table:
    table = np.stack(list(vectors))
    known = np.isfinite(table)
    sums = np.where(known, table, 0).sum(axis=0)
    return np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), np.nan)


MOST_SIGNALS: Final = 5
MOST_MEMBERS: Final = 6
LEAST_SPREADS: Final = 4.0
"""Nearer to usual than this is not worth a word."""
_PLAIN_RATIO: Final = 1.2


@dataclass(frozen=True, slots=True)
class Stray:
    """One signal of a group's middle.

    signal    "whose.name", as features are called
    spreads   how far from its usual value, signed; at the cap: at least that
    ratio     over its usual value
    """

    signal: str
    spreads: float
    ratio: float
    words: str


def strays(group: SpikeGroup, most: int = MOST_SIGNALS) -> list[Stray]:
    """Name the signals that are farthest from usual in a group, the farthest first."""
    deviations = np.array([group.mean[FEATURE_INDEX[f"{channel.name}.z"]] for channel in CHANNELS])
    order = np.argsort(-np.abs(deviations), kind="stable")[:most]
    found = [_stray(group, CHANNELS[place], float(deviations[place])) for place in order.tolist()]
    return [stray for stray in found if abs(stray.spreads) >= LEAST_SPREADS]


def _stray(group: SpikeGroup, channel: Channel, octaves: float) -> Stray:
    spreads = float(np.sign(octaves) * (2 ** abs(octaves) - 1))
    ratio = float(2 ** group.mean[FEATURE_INDEX[f"{channel.name}.r"]])
    at_least = "over " if abs(octaves) >= CAP else ""
    if ratio >= _PLAIN_RATIO:
        how = f"{ratio:,.1f} times the usual"
    elif ratio <= 1 / _PLAIN_RATIO:
        how = f"{100 * ratio:.0f} % of the usual"
    else:
        how = "more than usual" if spreads > 0 else "less than usual"
    told = sentence(str(channel.place), channel.signal, how)
    words = f"{told} ({at_least}{abs(spreads):,.0f} spreads off)"
    return Stray(channel.name, round(spreads, 1), round(ratio, 3), words)


def steps_said(group: SpikeGroup) -> str:
    told = [
        f"{name} {2 ** float(group.mean[FEATURE_INDEX[f'step.{name}']]):,.1f} times"
        for name in ("p50", "p99")
    ]
    return f"steps: {', '.join(told)} the usual"


def members_said(group: SpikeGroup) -> list[str]:
    """Say where and when a group's spikes were, a recording a line, the first few."""
    lines = [
        f"{member.recording}{'' if np.isnan(member.at_s) else f' at {member.at_s:.0f} s'}, "
        f"{member.subject}"
        for member in group.members[:MOST_MEMBERS]
    ]
    more = len(group.members) - len(lines)
    return [*lines, f"and {more} more in the file"] if more > 0 else lines
