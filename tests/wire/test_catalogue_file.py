"""Reading catalogue files: one entry adds a metric, and every broken rule is named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from wire.catalogue import Catalogue, CatalogueError, shipped_file

TOY = """
[[section]]
id = 1000
name = "toy"
kind = "mean"
unit = "millionths of full scale"
axes = ["coordinates"]
coordinates = [{ name = "level", full_scale = 100, unit = "percent" }]
bound = "fixed"
coordinate_cap = 1_000_000
l1_bound = 1_000_000
steps_per_unit = 64
"""
TABLE = '[tables.colour]\nplaces = 4\nclasses = ["red", "green"]\n'


def _load(tmp_path: Path, text: str) -> Catalogue:
    path = tmp_path / "catalogue.toml"
    path.write_text(text)
    return Catalogue.load(path)


def _refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(CatalogueError, match=match):
        _load(tmp_path, text)


def test_one_entry_adds_a_metric(tmp_path: Path) -> None:
    catalogue = _load(tmp_path, "format = 1\n" + TOY)
    assert [one.name for one in catalogue.sections] == ["toy"]
    assert catalogue.section("toy").resolve(1, 60) == (1_000_000, 1_000_000, 15_625)


def test_a_file_may_extend_the_shipped_one(tmp_path: Path) -> None:
    catalogue = _load(tmp_path, 'format = 1\nextends = "default"\n' + TOY)
    assert catalogue.section("toy").cells == ("level",)
    assert catalogue.section("kernel_mix").length == 130
    assert catalogue.hash != Catalogue.load().hash


def test_hash_counts_content_and_not_comments(tmp_path: Path) -> None:
    plain = _load(tmp_path, "format = 1\n" + TOY)
    commented = _load(tmp_path, "# a comment\nformat = 1\n\n" + TOY.replace(" = ", "="))
    changed = _load(
        tmp_path, "format = 1\n" + TOY.replace("steps_per_unit = 64", "steps_per_unit = 65")
    )
    assert plain.hash == commented.hash != changed.hash
    assert len(plain.hash) == 32


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("steps_per_unit = 64", "steps = 1", "section toy of the keys .*, got steps"),
        ("steps_per_unit = 64\n", "", r"section toy: the key steps_per_unit \(int\), got none"),
        ("steps_per_unit = 64", "steps_per_unit = 6.5", "steps_per_unit as int, got float"),
        ("steps_per_unit = 64", "steps_per_unit = true", "steps_per_unit as int, got bool"),
        ("steps_per_unit = 64", "steps_per_unit = 0", "section toy: steps_per_unit in 1"),
        ('"mean"', '"average"', "among mix, histogram, mean, indicators, got average"),
        ('"fixed"', '"free"', "section toy among per_gpu_ms"),
        ('["coordinates"]', '["colour"]', "an axis among"),
        ('["coordinates"]', "[]", "an axis at least"),
        ("l1_bound = 1_000_000", "l1_bound = 999_999", "coordinate_cap in 1..999999"),
        ("l1_bound = 1_000_000", "l1_bound = 0", "l1_bound in 1"),
        ("full_scale = 100", "full_scale = 0", "full_scale in 1"),
        ("full_scale = 100", "fullscale = 100", "coordinates of name, full_scale, unit"),
        ("id = 1000", "id = 0", "id in 1"),
        ('"toy"', '"Toy metric"', "a name like"),
        ('"mean"', '"indicators"', "m in 1..1, got 0"),
        ("steps_per_unit = 64", "steps_per_unit = 64\nm = 1", "m in 0..0, got 1"),
        (
            "steps_per_unit = 64",
            "steps_per_unit = 64\nsample_period_s = 5",
            "sample_period_s in 0..0",
        ),
    ],
)
def test_broken_section_is_named(tmp_path: Path, old: str, new: str, match: str) -> None:
    assert old in TOY
    _refused(tmp_path, "format = 1\n" + TOY.replace(old, new), match)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "format = 1, got None"),
        ("format = 2", "format = 1, got 2"),
        ("format = ", "is no TOML"),
        ("format = 1\ncolour = 1", "the catalogue of the keys .*, got colour"),
        ("format = 1\ntables = 3", "tables as a table"),
        ("format = 1\nsection = 3", "section as a list of tables"),
        ("format = 1\nsection = [3]", "as a table, got int"),
        ('format = 1\nretired_section_ids = ["a"]', "retired_section_ids as a list of integers"),
        ("format = 1\nretired_section_ids = [1000]\n" + TOY, "retired 1000"),
        ("format = 1\n" + TOY + TOY, "an id and name of its own"),
        ("format = 1\n" + TABLE.replace("4", "1"), "places in 2.."),
        ("format = 1\n" + TABLE.replace("green", "red"), "each once"),
        ("format = 1\n" + TABLE + "size = 3\n", "table colour of the keys"),
        (
            "format = 1\n" + TABLE + '[partitions.paint]\ntable = "color"\nrest = []',
            "partition paint of a table, got color",
        ),
        ('format = 1\nextends = "other"', "extends = default, got other"),
        ('format = 1\nextends = "default"\n' + TABLE.replace("colour", "family"), "new names"),
    ],
)
def test_broken_file_is_named(tmp_path: Path, text: str, match: str) -> None:
    _refused(tmp_path, text, match)


def test_appended_class_takes_a_place_that_was_kept() -> None:
    content = tomllib.loads(shipped_file().read_text())
    content["tables"]["application"]["classes"].append("something_new")
    assert Catalogue.from_content(content).section("applications_seen").length == 257
