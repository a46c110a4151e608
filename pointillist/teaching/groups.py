"""Groups among unknown spikes: found by a Gaussian mixture, kept in a file, named by a person.

Which spikes belong together is decided on the vectors' main directions; what is kept of a group is
its middle and spread in the features themselves, so that an agent recognises it with NumPy. Groups
found again keep their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture

from diagnosis.detect.features import FEATURE_NAMES, FEATURES_VERSION

from .lessons import filled
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


class GroupsRefused(ValueError):
    """A file of groups or a name that cannot be used."""


@dataclass(frozen=True, slots=True)
class SpikeMember:
    """One unknown spike: where it was recorded, whose, since when.

    at_s    since when, from the recording's first second on; NaN in files of earlier versions
    """

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

    def for_model(self, features: Sequence[str]) -> dict[str, Any]:
        """What a model file says of it: the features that the model uses."""
        places = [FEATURE_NAMES.index(name) for name in features]
        return {
            "name": self.name,
            "mean": np.round(self.mean[places], 4).tolist(),
            "scale": np.round(self.scale[places], 4).tolist(),
            "limit": self.limit,
        }


def find_groups(
    members: Sequence[SpikeMember], vectors: Sequence[Table], known: Sequence[SpikeGroup] = ()
) -> list[SpikeGroup]:
    """Group unknown spikes; the number of groups by the Bayesian criterion.

    vectors     float64[FEATURE_NAMES] of each member, the mean over its seconds
    known       groups found before: one that is found again keeps its name, one that is not stays
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
    fits = [_mixture(count, directions) for count in range(1, most_groups + 1)]
    best: Any = min(fits, key=lambda fit: fit.bic(directions))
    return np.asarray(best.predict(directions), np.int64)


def _mixture(count: int, rows: Table) -> Any:
    return GaussianMixture(
        count, covariance_type="spherical", reg_covar=0.5, n_init=4, random_state=SEED
    ).fit(rows)


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
            taken.add(name := _free_name(taken))
            groups.append(replace(group, name=name))
    return sorted(groups, key=lambda group: group.name)


def _free_name(taken: set[str]) -> str:
    return next(name for k in range(1, 10_000) if (name := f"group-{k}") not in taken)


def rename(groups: Sequence[SpikeGroup], old: str, new: str) -> list[SpikeGroup]:
    """Name a group.

    Raises      GroupsRefused when there is no such group or the name is taken or malformed
    """
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
    """Write groups to a file that a person can read."""
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
        "members": [_plain_member(member) for member in group.members],
        "mean": np.round(group.mean, 4).tolist(),
        "scale": np.round(group.scale, 4).tolist(),
    }


def _plain_member(member: SpikeMember) -> list[str | int | float]:
    plain: list[str | int | float] = [member.recording, member.subject, member.onset_ns]
    return plain if np.isnan(member.at_s) else [*plain, round(member.at_s, 3)]


def load_groups(path: Path) -> list[SpikeGroup]:
    """Read a file of groups.

    Raises      GroupsRefused naming what was expected
    """
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
