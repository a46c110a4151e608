"""Reading catalogue files: one entry adds a metric, and every broken rule is named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from wire import catalogue as module
from wire.catalogue import Catalogue, CatalogueError

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
FORMER = "3e2352ea8e2594487355076fb18ef738b166754d817f0119843fbbf018c30e3a"
TABLE = '[tables.colour]\nplaces = 4\nclasses = ["red", "green"]\n'


def _load(tmp_path: Path, text: str) -> Catalogue:
    path = tmp_path / "catalogue.toml"
    path.write_text(text)
    return Catalogue.load(path)


def _refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(CatalogueError, match=match):
        _load(tmp_path, text)


def test_one_entry_adds_a_metric(tmp_path: Path) -> None:
    catalogue = _load(tmp_path, "format = 2\n" + TOY)
    assert [one.name for one in catalogue.sections] == ["toy"]
    assert catalogue.section("toy").resolve(1, 60) == (1_000_000, 1_000_000, 15_625)


def test_a_file_may_extend_the_shipped_one(tmp_path: Path) -> None:
    catalogue = _load(tmp_path, 'format = 2\nextends = "default"\n' + TOY)
    assert catalogue.section("toy").cells == ("level", "unmeasured")
    assert catalogue.section("kernel_mix").length == 130
    assert catalogue.hash != Catalogue.load().hash


def test_hash_counts_content_and_not_comments(tmp_path: Path) -> None:
    plain = _load(tmp_path, "format = 2\n" + TOY)
    commented = _load(tmp_path, "# a comment\nformat = 2\n\n" + TOY.replace(" = ", "="))
    changed = _load(
        tmp_path, "format = 2\n" + TOY.replace("steps_per_unit = 64", "steps_per_unit = 65")
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
    _refused(tmp_path, "format = 2\n" + TOY.replace(old, new), match)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "format = 2, or 1, got None"),
        ("format = 3", "format = 2, or 1, got 3"),
        ("format = ", "is no TOML"),
        ("format = 2\ncolour = 1", "the catalogue of the keys .*, got colour"),
        ("format = 2\ntables = 3", "tables as a table"),
        ("format = 2\nsection = 3", "section as a list of tables"),
        ("format = 2\nsection = [3]", "as a table, got int"),
        ('format = 2\nretired_section_ids = ["a"]', "retired_section_ids as a list of integers"),
        ("format = 2\nretired_section_ids = [1000]\n" + TOY, "retired 1000"),
        ("format = 2\n" + TOY + TOY, "an id and name of its own"),
        ("format = 2\n" + TABLE.replace("4", "1"), "places in 2.."),
        ("format = 2\n" + TABLE.replace("green", "red"), "each once"),
        ("format = 2\n" + TABLE + "size = 3\n", "table colour of the keys"),
        (
            "format = 2\n" + TABLE + '[partitions.paint]\ntable = "color"\nrest = []',
            "partition paint of a table, got color",
        ),
        ('format = 2\nextends = "other"', "extends = default, got other"),
        ('format = 2\nextends = "default"\n' + TABLE.replace("colour", "family"), "new names"),
    ],
)
def test_broken_file_is_named(tmp_path: Path, text: str, match: str) -> None:
    _refused(tmp_path, text, match)


def test_appended_class_takes_a_place_that_was_kept() -> None:
    content = tomllib.loads(Path(module.__file__).with_name("catalogue.toml").read_text())
    content["tables"]["application"]["classes"].append("something_new")
    assert Catalogue.from_content(content).section("applications_seen").length == 258


def test_format_before_has_no_cell_for_hosts_that_did_not_measure(tmp_path: Path) -> None:
    """Its content, and so its hash, is for ever: tasks of it still run, and files extend it."""
    former = Catalogue.load().former
    assert former is not None
    assert former.hash.hex() == FORMER
    assert former.section("host_cpu").cells[-1] == "steal"
    older = _load(tmp_path, 'format = 1\nextends = "default"\n' + TOY)
    assert older.section("toy").cells == ("level",)
    assert (older.section("host_cpu").id, Catalogue.load().section("host_cpu").id) == (10, 20)
