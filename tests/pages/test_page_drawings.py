"""Numbers as drawings and as words: what is known is drawn, what is noise is drawn as noise."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from pages.heat_map import HeatTable, heat_map
from pages.interval_chart import IntervalRow, interval_chart
from pages.svg import LinearScale, fitted, length_said, round_numbers, round_times, spread
from pages.trend_chart import TrendLine, TrendPoint, sparkline, trend_chart
from pages.wording import (
    HOSTS,
    POINTS,
    SHARE,
    Number,
    interval_said,
    kept_together,
    number_in_full,
    value_said,
)

SURE = Number(0.342, 0.001, 0.340, 0.344)
NOISE = Number(0.001, 0.002, -0.003, 0.005, told=False)
KEPT_BACK = Number(None, reason="too few hosts")
HOSTILE = "</text><script>alert(1)</script>"


def _drawings(markup: Markup) -> list[ElementTree.Element]:
    """The wide and the narrow drawing; markup that is not well formed raises."""
    whole = ElementTree.fromstring(f"<all>{markup}</all>")
    return list(whole.iter("{http://www.w3.org/2000/svg}svg"))


def _classes(drawing: ElementTree.Element) -> list[str]:
    return [name for part in drawing.iter() for name in part.get("class", "").split()]


@pytest.mark.parametrize(
    ("number", "unit", "value", "interval"),
    [
        (SURE, SHARE, "34.2 %", "34.0 to 34.4 %"),
        (NOISE, SHARE, "under 0.5 %", "−0.3 to 0.5 %"),
        (KEPT_BACK, SHARE, "too few hosts", "–"),
        (Number(1234.4, 20.0, 1195.2, 1273.6), HOSTS, "1,234", "1,195 to 1,274"),
        (Number(0.3), SHARE, "30.0 %", "–"),
        (Number(math.nan), SHARE, "–", "–"),
    ],
)
def test_number_is_said_with_the_digits_that_its_error_leaves(
    number: Number, unit: object, value: str, interval: str
) -> None:
    assert isinstance(unit, type(SHARE))
    assert (value_said(number, unit), interval_said(number, unit)) == (value, interval)


def test_unit_stays_on_the_line_of_its_number() -> None:
    said = kept_together("100 % of 60 s cost 1,200 GPU h or 3 USD; 5 windows, 12 sWaps")
    assert (
        said.replace("\u00a0", "_")
        == "100_% of 60_s cost 1,200_GPU_h or 3_USD; 5 windows, 12 sWaps"
    )


def test_names_of_a_legend_are_whole_where_there_is_room() -> None:
    long = "gpu thermal or power limit"
    points = [TrendPoint(3_600.0 * at, 3_600.0, SURE) for at in range(3)]
    lines = [TrendLine(name, points, tone) for tone, name in enumerate((long, "disk io"))]
    assert trend_chart("hosts", lines, HOSTS).count(f">{long}</text>") == 2


def test_more_rows_make_a_heat_map_lower_ones() -> None:
    def height(count: int) -> float:
        rows = [f"row {at}" for at in range(count)]
        cells = {(row, "a"): SURE for row in rows}
        drawn = heat_map("shares", HeatTable(rows, ["a"], cells), SHARE)
        return float(re.findall(r'viewBox="0 0 \d+ ([\d.]+)"', drawn)[0]) / count

    assert height(10) > height(16) > height(30)


def test_difference_has_a_sign_and_one_of_noise_a_bound() -> None:
    grown = Number(0.023, 0.002, 0.019, 0.027)
    assert value_said(grown, POINTS, signed=True) == "+2.3 points"
    assert value_said(NOISE, POINTS, signed=True) == "within ±0.5 points"


def test_number_in_full_says_error_and_coverage() -> None:
    said = number_in_full("gemm", Number(0.342, 0.001, 0.34, 0.344, coverage=0.96), SHARE)
    assert said.startswith("gemm: 34.2 %; 95 % interval 34.0 to 34.4 %; standard error 0.100 %")
    assert "96 % of its windows were released" in said
    assert "mostly noise" in number_in_full("gemm", NOISE, SHARE)


def test_interval_chart_draws_noise_dotted_and_what_is_kept_back_as_a_gap() -> None:
    rows = [IntervalRow("a", SURE), IntervalRow("b", NOISE), IntervalRow("c", KEPT_BACK)]
    wide, narrow = _drawings(interval_chart("Share", rows, SHARE))
    for drawing in (wide, narrow):
        classes = _classes(drawing)
        assert [classes.count(name) for name in ("dot", "noise", "gap")] == [1, 1, 1]
        assert drawing.get("aria-label") == "Share: 3 rows"
    assert wide.get("viewBox", "").split()[2] == "760"
    assert narrow.get("viewBox", "").split()[2] == "342"


def test_trend_chart_leaves_a_gap_where_nothing_was_released() -> None:
    numbers = [SURE, SURE, KEPT_BACK, SURE, SURE]
    points = [TrendPoint(at * 3_600.0, 3_600.0, number) for at, number in enumerate(numbers)]
    for drawing in _drawings(trend_chart("Share", [TrendLine("gemm", points, 0)], SHARE)):
        classes = _classes(drawing)
        assert (classes.count("band"), classes.count("gap")) == (2, 1)


def test_heat_map_shades_what_is_told_and_hatches_noise() -> None:
    cells = {("gemm", "H100"): SURE, ("gemm", "A100"): NOISE}
    table = HeatTable(["gemm"], ["H100", "A100", "V100"], cells)
    for drawing in _drawings(heat_map("Families", table, SHARE)):
        boxes = list(drawing.iter("{http://www.w3.org/2000/svg}rect"))
        assert [box.get("class") for box in boxes] == ["shade6", "cell", "cell"]
        assert [box.get("fill", "")[:4] for box in boxes] == ["", "url(", "none"]


def test_hostile_names_stay_text_in_every_drawing() -> None:
    points = [TrendPoint(at * 60.0, 60.0, SURE) for at in range(3)]
    drawn = Markup("").join(
        [
            interval_chart(HOSTILE, [IntervalRow(HOSTILE, SURE)], SHARE),
            trend_chart(HOSTILE, [TrendLine(HOSTILE, points, 0)], SHARE),
            heat_map(HOSTILE, HeatTable([HOSTILE], ['" onload="x'], {}), SHARE),
            sparkline(HOSTILE, points),
        ]
    )
    assert len(_drawings(drawn)) == 7
    assert "<script" not in drawn
    assert ' onload="x' not in drawn


def test_chart_of_nothing_is_nothing() -> None:
    assert interval_chart("a", [], SHARE) == ""
    assert trend_chart("a", [TrendLine("b", [], 0)], SHARE) == ""
    assert heat_map("a", HeatTable([], [], {}), SHARE) == ""
    assert sparkline("a", [TrendPoint(0.0, 1.0, KEPT_BACK)]) == ""


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.03, 0.02), (0.0, 12_345.0), (0.0, 1e-9)])
def test_axis_has_few_round_numbers_inside_its_range(low: float, high: float) -> None:
    numbers = round_numbers(low, high)
    assert 2 <= len(numbers) <= 6
    assert low - 1e-12 <= numbers[0]
    assert numbers[-1] <= high * (1 + 1e-9)


def test_axis_of_time_names_days_and_hours() -> None:
    assert [text for _, text in round_times(0, 4 * 3_600)] == [
        "1 Jan", "01:00", "02:00", "03:00", "04:00",
    ]  # fmt: skip
    assert len(round_times(0, 365 * 86_400)) <= 6
    assert (length_said(90), length_said(7_200), length_said(604_800)) == ("90 s", "2 h", "7 days")


def test_labels_keep_apart_and_inside() -> None:
    assert spread([10, 11, 12], 16, 14, 300) == [14, 30, 46]
    assert spread([290, 299, 300], 16, 14, 300) == [268, 284, 300]


def test_scale_keeps_numbers_inside_and_text_is_cut_with_a_mark() -> None:
    scale = LinearScale(0.0, 10.0, 100.0, 0.0)
    assert [scale(number) for number in (-1, 0, 5, 99)] == [100.0, 100.0, 50.0, 0.0]
    assert (fitted("molecular_dynamics", 60), fitted("gemm", 60)) == ("molecul…", "gemm")
