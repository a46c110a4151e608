"""Tables of TOML become dataclasses, and what does not fit is refused with its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest

from transport.settings.config import ConfigError, build, limited, parse_table, read_tree


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 0
    LARGE = 1


def _even(value: Any) -> int:
    if not isinstance(value, int) or value % 2:
        raise ValueError(f"expected an even number, got {value!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    id: str = ""
    size: int = limited(1, low=1, high=1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    name: str = limited(form="[a-z]+")
    share: float = limited(0.5, low=0, high=1)
    key: bytes = b""
    path: Path | None = None
    size: Size | None = None
    colours: frozenset[Colour] = frozenset()
    pattern: re.Pattern[str] = field(default=re.compile(""))
    rows: tuple[Row, ...] = limited((), key="row", most=2)
    weights: Mapping[Colour, float] = field(default_factory=dict, metadata={"low": 0})
    pairs: tuple[int, ...] = limited((), read=_even)

    def __post_init__(self) -> None:
        if self.name == "whole" and self.share != 1:
            raise ValueError("share: expected 1 of a whole")


def test_tree_takes_what_fits() -> None:
    found = build(
        Sheet,
        {
            "name": "x",
            "share": 1,
            "key": "00ff",
            "path": "a/b",
            "size": "large",
            "colours": ["red"],
            "pattern": "a+",
            "row": [{"size": 3}],
            "weights": {"blue": 2},
            "pairs": [2, 4],
        },
    )
    assert (found.share, found.key, found.path) == (1.0, b"\x00\xff", Path("a/b"))
    assert found.size is Size.LARGE
    assert found.colours == {Colour.RED}
    assert found.pattern.fullmatch("aa")
    assert found.rows == (Row(size=3),)
    assert found.weights == {Colour.BLUE: 2.0}
    assert found.pairs == (2, 4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"nam": "x"}, "FILE: nam: unknown key (did you mean 'name'?); expected one of name, "),
        ({"name": "X"}, 'FILE: name: expected text like [a-z]+, got "X"'),
        ({"name": 3}, "FILE: name: expected text like [a-z]+, got 3"),
        ({"share": 1.5}, "FILE: share: expected a number from 0 to 1, got 1.5"),
        ({"share": float("nan")}, "FILE: share: expected a number from 0 to 1, got NaN"),
        ({"share": True}, "FILE: share: expected a number from 0 to 1, got true"),
        ({"path": 3}, "FILE: path: expected a path in quotes, got 3"),
        ({"colours": "red"}, 'FILE: colours: expected an array, got "red"'),
        ({"colours": ["rad"]}, 'FILE: colours[0]: expected one of red, blue, got "rad" (did you'),
        ({"size": 1}, "FILE: size: expected one of small, large, got 1"),
        ({"size": "lorge"}, 'FILE: size: expected one of small, large, got "lorge" (did you m'),
        ({"pattern": "("}, 'FILE: pattern: expected a regular expression in quotes, got "(" (miss'),
        ({"row": [{"id": "a", "size": 0}]}, "FILE: row[a].size: expected an integer from 1 to 1,0"),
        ({"row": [{"size": 1.0}]}, "FILE: row[0].size: expected an integer from 1 to 1,000"),
        ({"row": [3]}, "FILE: row[0]: expected a table, got 3"),
        ({"row": [{}, {}, {}]}, "FILE: row: expected an array of at most 2, got [{}, {}, {}]"),
        ({"weights": {"green": 1}}, "FILE: weights.green: unknown key; expected one of red, blue"),
        ({"weights": {"red": -1}}, "FILE: weights.red: expected a number from 0 up, got -1"),
        ({"pairs": [2, 3]}, "FILE: pairs[1]: expected an even number, got 3"),
        ({"name": "whole"}, "FILE: share: expected 1 of a whole"),
    ],
)
def test_tree_refuses_with_place_expectation_and_what_came(
    change: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        build(Sheet, {"name": "x", **change}, "FILE: ")


def test_tree_never_repeats_what_may_be_a_key() -> None:
    with pytest.raises(ConfigError, match="key: expected lower-case hex in quotes, got other text"):
        build(Sheet, {"name": "x", "key": "not hex but perhaps secret"})


def test_file_has_the_callers_error_its_path_and_its_format(tmp_path: Path) -> None:
    class SheetError(ValueError):
        pass

    path = tmp_path / "sheet.toml"
    with pytest.raises(SheetError, match=r"sheet\.toml: No such file"):
        read_tree(Sheet, path, error=SheetError)
    path.write_text('name = "x"')
    with pytest.raises(SheetError, match=r"sheet\.toml: format: expected 2, got nothing"):
        read_tree(Sheet, path, error=SheetError, file_format=2)
    path.write_text('format = 2\nname = "x"\n[[row]]\nsise = 1')
    with pytest.raises(SheetError, match=r"sheet\.toml: row\[0\]\.sise: unknown key"):
        read_tree(Sheet, path, error=SheetError, file_format=2)
    path.write_text('format = 2\nname = "x"')
    assert read_tree(Sheet, path, error=SheetError, file_format=2) == Sheet(name="x")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = " + b"[" * 5_000, "nested too deep"),
        (b"name = " + b"{a = " * 5_000, "nested too deep"),
        (b"name = " + b"9" * 5_000, "expected TOML"),
        (b"name = \xff", "expected TOML"),
        (b"#" * 100, "at most 99 bytes"),
    ],
)
def test_bytes_that_are_no_sane_toml_are_refused_by_name(content: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"from afar: .*{said}"):
        parse_table(content, "from afar", most=99 if content.startswith(b"#") else 1 << 20)


def test_number_without_end_is_refused_in_one_line() -> None:
    table = parse_table(b"name = 0x" + b"f" * 5_000, "from afar")
    with pytest.raises(ConfigError, match=r"name: expected text .*thousands of digits"):
        build(Sheet, table)


def test_key_cannot_forge_a_line_of_its_refusal() -> None:
    table = parse_table(b'"x\\npointillist: all is well\\u001b[2J" = 1', "from afar")
    with pytest.raises(ConfigError) as refused:
        build(Sheet, table)
    assert str(refused.value).isprintable()
    with pytest.raises(ConfigError) as refused:
        build(Sheet, {"k" * 100_000: 1})
    assert len(str(refused.value)) < 400
