"""Figures on pages: generated from committed results, and none typed by hand."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from bench.arithmetic import computed
from pointillist.fleet.party_config_text import MEASURING
from scripts import figures
from scripts.figures import FigureError, Pages, Stated, context_of, generated, quantities

STRICT = Stated(frozenset({"docs/page.md"}), {"docs/page.md": ["30 s"]}, {})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        {"name": "core_seconds", "value": 5.26, "goal": 10.0},
        {"name": "governed_2.5k_percent", "value": 0.58, "goal": 0.5},
    ]
    tables = {"runs": [{"name": "a", "right": 3}, {"name": "b", "right": 4}]}
    document = {"date": "2026-01-02T03:04:05Z", "figures": rows, "tables": tables}
    (tmp_path / "round.json").write_text(json.dumps(document))
    return tmp_path


def test_mark_is_filled_by_an_expression_and_its_style(results: Path) -> None:
    pages = Pages(context_of(results))
    page = (
        "It took <!--= round.core_seconds:.1f -->old<!--/--> "
        "of <!--= goal.round.core_seconds:g --><!--/-->"
        ', <!--= 100 * round["governed_2.5k_percent"] / 2:.0f -->1<!--/--> %, '
        "<!--= about.round.date[:10] --><!--/-->"
    )
    filled = pages.fill("page.md", page)
    assert "-->5.3<!--/-->" in filled
    assert "-->10<!--/-->" in filled
    assert "-->29<!--/-->" in filled
    assert "-->2026-01-02<!--/-->" in filled
    assert pages.fill("page.md", filled) == filled


def test_goal_that_is_missed_is_said_so(results: Path) -> None:
    pages = Pages(context_of(results))
    key = '"governed_2.5k_percent"'
    missed = pages.fill("page.md", f"a <!--= over(round[{key}], goal.round[{key}]) --><!--/-->")
    assert "-->: **missed**<!--/-->" in missed
    met = pages.fill("page.md", "a <!--= over(round.core_seconds, 10) -->x<!--/-->")
    assert "--><!--/-->" in met


def test_table_is_made_by_the_template_before_it(results: Path) -> None:
    page = (
        "before\n<!-- figures\n| run | right |\n|---|---|\n"
        "{% for one in round.tables.runs %}\n| {{ one.name }} | {{ one.right|by('.1f') }} |\n"
        "{% endfor %}\n-->\nold\n<!-- /figures -->\nafter\n"
    )
    filled = Pages(context_of(results)).fill("page.md", page)
    table = "-->\n| run | right |\n|---|---|\n| a | 3.0 |\n| b | 4.0 |\n<!-- /figures -->\nafter\n"
    assert filled.endswith(table)
    assert "right |\n|---" not in generated(filled)


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("\na <!--= round.absent:.1f -->1<!--/-->", "page.md:2: .*absent"),
        ("a <!--= nothing.of_that -->1<!--/-->", "page.md:1: .*nothing"),
        ("a <!--= round.core_seconds:d -->1<!--/-->", "page.md:1: "),
        ("a\n  <!--= round.core_seconds -->1<!--/-->", "page.md:2: expected text before the mark"),
        ("<!--= round.core_seconds -->1", "expected a whole mark"),
        ("1<!--/-->", "expected a whole mark"),
        ("<!-- figures\n{{ round.core_seconds }}\n-->\n1\n", "expected a whole mark"),
        ("<!-- figures\n{{ round.core_seconds\n-->\n1\n<!-- /figures -->", "page.md:1: "),
    ],
)
def test_mark_that_cannot_be_filled_is_an_error_that_says_where(
    results: Path, page: str, told: str
) -> None:
    with pytest.raises(FigureError, match=told):
        Pages(context_of(results)).fill("page.md", page)


def test_marks_in_code_are_left_alone(results: Path) -> None:
    page = "```\n<!--= round.absent -->1<!--/-->\n```\nand `<!--= round.absent -->`\n"
    assert Pages(context_of(results)).fill("page.md", page) == page
    assert generated(page).split() == ["and"]


@pytest.mark.parametrize(
    "typed",
    ["it took 5.3 core-seconds", "0.89 of them", "61 of 81 names", "| speed | 117 |", "2.1 ms",
     "| a | 6,294 ± 55 |", "-50 %", "4.0 times", "134 MiB"],
)  # fmt: skip
def test_page_of_results_holds_no_typed_quantity(typed: str) -> None:
    assert len(STRICT.objections("docs/page.md", f"after 30 s\n\n{typed}\n")) == 1
    # A page of parameters is asked only about sentences that speak of measuring.
    named = Stated(frozenset(), {}, {}).objections("docs/other.md", typed)
    assert bool(named) == typed.startswith("it took")


def test_stated_quantity_passes_and_is_missed_once_it_is_gone() -> None:
    assert STRICT.objections("docs/page.md", "after 30 s") == []
    (stale,) = STRICT.objections("docs/page.md", "after a while")
    assert "30 s" in stale


def test_versions_addresses_and_names_are_no_quantities() -> None:
    text = (
        "Linux 6.6, kernel 6.18 and Python 3.11; [there](page.md#in-5-s), step2 s, sha-256, "
        "10.0.0.1, v1.2.3\n"
    )
    assert list(quantities(text, strict=True)) == []


def test_stated_pages_exist() -> None:
    content = tomllib.loads(figures.STATED.read_text(encoding="utf-8"))
    names = {path.relative_to(figures.ROOT).as_posix() for path in figures.pages()}
    assert set(content["results"]) | set(content["pages"]) <= names


def test_wrong_answer_on_a_made_gpu_fault_is_listed() -> None:
    context = dict(context_of(figures.RESULTS))
    tables = context["diagnosis_gpu"]["tables"]
    wrong = next(one for one in tables["recordings"] if one["held_out"] and one.get("impact"))
    page = (figures.ROOT / "docs/diagnosis-figures.md").read_text(encoding="utf-8")
    assert "- wrong:" not in generated(page)
    rows = [one | ({"answer": "unknown"} if one is wrong else {}) for one in tables["recordings"]]
    context["diagnosis_gpu"] = context["diagnosis_gpu"] | {"tables": tables | {"recordings": rows}}
    assert f"- wrong: `{wrong['injector']}`" in Pages(context).fill("diagnosis-figures.md", page)


def test_arithmetic_is_what_the_code_says_today() -> None:
    committed = json.loads((figures.RESULTS / "arithmetic.json").read_text(encoding="utf-8"))
    found = computed()
    values = {one["name"]: one["value"] for one in committed["figures"]}
    assert values == pytest.approx({one.name: one.value for one in found.figures}, rel=1e-6)
    for name, rows in found.tables.items():
        for now, then in zip(rows, committed["tables"][name], strict=True):
            assert _flat(then) == pytest.approx(_flat(now), rel=1e-6)


def _flat(row: dict[str, object]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{inner}": number for inner, number in value.items()}
        elif isinstance(value, int | float):
            flat[name] = float(value)
    return flat


def test_page_without_marks_is_held_to_the_results_it_names(results: Path) -> None:
    """README.md is read by `cat`: a figure that is typed there follows its result all the same."""
    pages, quoted = Pages(context_of(results)), {"5.3 s": "round.core_seconds:.1f"}
    stated = Stated(frozenset({"README.md"}), {}, {"README.md": quoted})
    page = "It takes 5.3\ns, as measured."
    assert stated.objections("README.md", page) == []
    assert pages.misquoted("README.md", quoted) == []
    assert pages.misquoted("README.md", {"5.2 s": "round.core_seconds:.1f"}) == [
        'README.md: has "5.2 s", bench/results 5.3 (round.core_seconds:.1f)'
    ]
    assert stated.objections("README.md", "It takes 9 s.") == [
        'README.md:1: "9 s" is typed by hand', 'README.md: stated.toml has "5.3 s", the page not',
    ]  # fmt: skip
    with pytest.raises(FigureError, match=r"README\.md: round\.none"):
        pages.misquoted("README.md", {"1 s": "round.none:.1f"})


def test_costs_that_a_new_configuration_names_are_measured() -> None:
    """`fleet init` writes them beside what it switches on and off."""
    measured, said = context_of(figures.RESULTS), " ".join(MEASURING.replace("# ", "").split())
    idle = measured["gpu"]["slowdown_percent_attached_idle"]
    assert f"{idle:.1f} % of a launch-bound loop on an H100" in said
    false = measured["diagnosis"]
    alarms, hours = false["false_alarms"], false["false_alarm_worker_hours"]
    assert f"raised {alarms:.0f} false alarms in {hours:.0f} hours" in said
    assert "is slowed by less than 1 %" in said
    assert measured["door"]["workload_slowdown_percent"] < 1
