"""Groups among the unknown: their number is found, names last, files are checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from diagnosis.detect.features import FEATURE_INDEX, FEATURE_NAMES
from pointillist.judging.groups import (
    GroupsRefused,
    SpikeGroup,
    SpikeMember,
    filled,
    find_groups,
    load_groups,
    members_said,
    rename,
    save_groups,
    steps_said,
    strays,
)

DRAWN = np.random.default_rng(5)
CENTRES = np.where(DRAWN.random((2, len(FEATURE_NAMES))) < 0.1, 5.0, 0.0)


def spikes(centre: int, count: int, first: int = 0) -> list[tuple[SpikeMember, np.ndarray]]:
    return [
        (
            SpikeMember(f"run-{centre}-{first + k}", "/job", 7),
            CENTRES[centre] + DRAWN.normal(0, 0.4, len(FEATURE_NAMES)),
        )
        for k in range(count)
    ]


def grouped(
    found: Sequence[tuple[SpikeMember, np.ndarray]], known: Sequence[SpikeGroup] = ()
) -> list[SpikeGroup]:
    return find_groups([one for one, _ in found], [vector for _, vector in found], known)


def test_groups_are_as_many_as_there_are_kinds() -> None:
    found = grouped([*spikes(0, 6), *spikes(1, 5)])
    assert sorted(len(group.members) for group in found) == [5, 6]
    for group in found:
        assert len({member.recording.rsplit("-", 1)[0] for member in group.members}) == 1


def test_group_found_again_keeps_the_name_that_a_person_gave(tmp_path: Path) -> None:
    first = grouped([*spikes(0, 6), *spikes(1, 6)])
    of_zero = next(g for g in first if g.members[0].recording.startswith("run-0"))
    named = rename(first, of_zero.name, "nightly backup")
    save_groups(tmp_path / "groups.json", named)
    again = grouped([*spikes(1, 6, 50), *spikes(0, 6, 50)], load_groups(tmp_path / "groups.json"))
    kept = next(group for group in again if group.name == "nightly backup")
    assert kept.named
    assert {member.recording.rsplit("-", 1)[0] for member in kept.members} == {"run-0"}


def test_group_reaches_its_kind_and_not_the_other() -> None:
    group = grouped(spikes(0, 6))[0]
    assert group.distance(spikes(0, 1)[0][1]) <= group.limit
    assert group.distance(spikes(1, 1)[0][1]) > group.limit


def test_missing_features_stand_at_their_baseline_and_missing_lags_below_any() -> None:
    whole = filled(np.full(len(FEATURE_NAMES), np.nan))
    assert whole[FEATURE_INDEX["own.cpu_ms_per_s.z"]] == 0
    assert whole[FEATURE_INDEX["lag.reclaim_direct_ms_per_s"]] == -4
    assert filled(CENTRES[0]) == pytest.approx(CENTRES[0])


def test_group_is_told_in_words_by_its_farthest_signals() -> None:
    mean = np.zeros(len(FEATURE_NAMES))
    mean[FEATURE_INDEX["other.block_write_bytes_per_s.z"]] = 6.0
    mean[FEATURE_INDEX["other.block_write_bytes_per_s.r"]] = 3.0
    mean[FEATURE_INDEX["own.cpu_ms_per_s.z"]] = -3.0
    mean[FEATURE_INDEX["own.cpu_ms_per_s.r"]] = -1.0
    mean[FEATURE_INDEX["own.switches_per_s.z"]] = 1.0
    mean[FEATURE_INDEX["step.p99"]] = 2.0
    members = tuple(SpikeMember(f"night-{k}", "/job", 7, 31.0) for k in range(8))
    group = SpikeGroup("group-1", False, mean, np.ones(len(FEATURE_NAMES)), 1.0, members)
    assert [one.words for one in strays(group)] == [
        "other groups' processes wrote 8.0 times the usual to disks (63 spreads off)",
        "its threads ran 50 % of the usual on CPUs (7 spreads off)",
    ]
    assert steps_said(group) == "steps: p50 1.0 times, p99 4.0 times the usual"
    assert members_said(group)[0] == "night-0 at 31 s, /job"
    assert members_said(group)[-1] == "and 2 more in the file"


def test_file_keeps_when_spikes_were_and_reads_one_that_did_not(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    found = grouped([(SpikeMember("night", "/job", 7, 31.5), one) for _, one in spikes(0, 4)])
    save_groups(path, found)
    assert load_groups(path)[0].members[0].at_s == 31.5
    document = json.loads(path.read_text())
    document["groups"][0]["members"] = [["night", "/job", 7]]
    path.write_text(json.dumps(document))
    assert np.isnan(load_groups(path)[0].members[0].at_s)


@pytest.mark.parametrize(("old", "new"), [("group-9", "x"), ("group-1", ""), ("group-1", "a\nb")])
def test_rename_refuses_what_is_no_name(old: str, new: str) -> None:
    with pytest.raises(GroupsRefused):
        rename(grouped(spikes(0, 4)), old, new)


@pytest.mark.parametrize("spoil", ["format", "mean", "long", "scale", "text"])
def test_file_of_groups_is_refused_when_it_was_spoilt(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "groups.json"
    save_groups(path, grouped(spikes(0, 4)))
    document = json.loads(path.read_text())
    match spoil:
        case "format":
            document["format"] = 2
        case "mean":
            document["groups"][0]["mean"] = [1.0]
        case "long":
            document["groups"][0]["mean"][0] = 10**400
        case "scale":
            document["groups"][0]["scale"][0] = 0
        case _:
            pass
    path.write_text("[" if spoil == "text" else json.dumps(document))
    with pytest.raises(GroupsRefused):
        load_groups(path)
