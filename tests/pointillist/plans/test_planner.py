"""The planner reproduces the design's figures, and computes them all."""

import json
import re
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest

from pointillist.plan_file import default_plan, equal_sections, load_plan, plan_names, plan_path
from pointillist.plan_report import (
    DRAW_CPU_S,
    PlanReport,
    catalogue_shapes,
    plan_report,
    report_cpu_s,
)
from pointillist.plan_text import beside_text
from privacy.accountant import GATE_MARGIN, SectionNoise, epsilon_of, gate, sum_gap
from privacy.errors import ParameterError
from privacy.plan import (
    LLAMA3_INTERRUPTIONS,
    LONGEST_EPOCH_S,
    Plan,
    PlannedSection,
    SectionFigures,
    SectionShape,
    coalition_epsilons,
    collusion_epsilons,
    epsilon_of_mu,
    epsilon_of_share,
    error_percents,
    expected_rows,
    group_epsilons,
    section_figures,
)
from tests.wire.test_catalogue_file import TOY
from wire.catalogue import Catalogue
from wire.fields import MAX_EPOCH_S

COHORT = {"hosts": 12_500, "n_min": 10_000, "t": 1_250}
MIX = SectionShape("mix", 60, 64, 64, 1)


def figures(plan: Plan) -> SectionFigures:
    return section_figures(plan, plan.tasks[0], plan.tasks[0].sections[0], MIX)


@pytest.fixture(scope="module")
def default_report() -> PlanReport:
    plan = default_plan()
    return plan_report(plan, catalogue_shapes(plan, Catalogue.load()))


def cells(report: PlanReport) -> dict[str, SectionFigures]:
    return {section.name: section for task in report.tasks for section in task.sections}


@pytest.mark.parametrize(
    ("sections", "sigmas", "errors"),
    [
        (10, (903.16, 9.6552, 1079.48), ("8.636", "1.115", "0.2276", "0.0860")),
        (1, (285.60, 3.0532, 341.36), ("2.731", "0.353", "0.072", "0.0272")),
    ],
)
def test_worked_default_to_four_digits(
    sections: int, sigmas: tuple[float, ...], errors: tuple[str, ...]
) -> None:
    got = figures(equal_sections(COHORT, 60, sections))
    assert (got.sigma_total, got.sigma_local, got.sigma_released) == pytest.approx(sigmas, rel=5e-5)
    for value, text in zip(got.error_percent.values(), errors, strict=True):
        assert value is not None
        digits = len(text.partition(".")[2])
        assert f"{value:.{digits}f}" == text


def test_local_scheme_has_the_whole_noise_on_each_host() -> None:
    got = figures(equal_sections(COHORT | {"scheme": "local"}, 60, 10))
    assert got.sigma_local == pytest.approx(got.sigma_total)
    assert got.error_percent["hour"] == pytest.approx(104, abs=0.5)
    assert got.error_percent["day"] == pytest.approx(21, abs=0.5)
    assert got.error_percent["week"] == pytest.approx(8.0, abs=0.05)


def test_hourly_error_hardly_depends_on_the_window() -> None:
    minute = figures(equal_sections(COHORT, 60, 10)).error_percent["hour"]
    quarter = figures(equal_sections(COHORT, 900, 10)).error_percent
    assert quarter["minute"] is None
    assert quarter["hour"] == pytest.approx(minute, rel=2e-3)
    assert error_percents(0.5, 7200)["hour"] is None


@pytest.mark.parametrize(
    ("hosts", "errors"), [(500, (125, 16.1, 3.28)), (2000, (31.2, 4.02, 0.82))]
)
def test_operator_task_at_weight_three_tenths(hosts: int, errors: tuple[float, ...]) -> None:
    plan = equal_sections({"hosts": hosts}, 60, 1)
    section = PlannedSection("section_1", 300_000)
    task = replace(plan.tasks[0], sections=(section,))
    plan = replace(plan, tasks=(task,))
    assert (plan.n_min, plan.t) == (hosts * 4 // 5, hosts // 10)
    got = figures(plan).error_percent
    assert (got["minute"], got["hour"], got["day"]) == pytest.approx(errors, rel=4e-3)


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("kernel_mix", (8.04, 1.037, 0.212)),
        ("kernel_mix_by_model", (13.65, 1.763, 0.360)),
        ("copies", (36.8, 4.75, 0.970)),
        ("kernel_duration", (18.4, 2.38, 0.485)),
        ("gpu_temperature", (36.8, 4.75, 0.970)),
        ("host_network", (36.8, 4.75, 0.970)),
    ],
)
def test_default_plan_has_the_designs_errors(
    default_report: PlanReport, name: str, errors: tuple[float, ...]
) -> None:
    got = cells(default_report)[name].error_percent
    assert (got["minute"], got["hour"], got["day"]) == pytest.approx(errors, rel=1.3e-2)


def test_default_plan_sees_what_the_design_says(default_report: PlanReport) -> None:
    assert cells(default_report)["applications_seen"].sigma_hosts == pytest.approx(64.35, abs=0.05)
    week, eight_weeks = default_report.visible
    assert week.standard_error_hosts == pytest.approx(32.1, abs=0.05)
    assert {row.cause: round(row.expected_hosts) for row in week.above} == {
        "faulty GPU": 117,
    }
    assert [round(row.expected_hosts) for row in eight_weeks.above] == [
        937, 456, 342, 222, 203, 120, 108,
    ]  # fmt: skip
    assert week.below + len(week.above) == len(LLAMA3_INTERRUPTIONS) == 18


def test_published_rates_name_the_catalogues_first_faults() -> None:
    assert len(Catalogue.load().classes("hardware_fault")) == 18
    assert sum(count for _, count in LLAMA3_INTERRUPTIONS) == 419
    total = sum(row.expected_hosts for row in expected_rows(12_500, 7, 21.5))
    assert total == pytest.approx(331, abs=1)


@pytest.mark.parametrize("name", plan_names())
def test_shipped_plan_spends_no_more_than_its_budget(name: str) -> None:
    plan = load_plan(plan_path(name))
    assert plan.name == name
    assert sum(task.weight_millionths for task in plan.tasks) == 10**6
    week = plan_report(plan, catalogue_shapes(plan, Catalogue.load()), True).accountant_epsilon
    assert week is not None
    assert 1.99 < week <= 2


def test_weekly_applications_free_budget_for_the_minute_and_say_what_is_lost() -> None:
    before, after = (
        plan_report(plan, catalogue_shapes(plan, Catalogue.load()))
        for plan in map(load_plan, map(plan_path, ("default", "weekly_applications")))
    )
    for name, section in cells(before).items():
        other = cells(after)[name]
        if section.window_s == 60:
            assert section.sigma_released / other.sigma_released == pytest.approx(1.373, abs=2e-3)
        else:
            assert other.sigma_hosts == pytest.approx(section.sigma_hosts, rel=2e-3)
    seen = {row.section: row for row in after.crowding}["applications_seen"]
    assert seen.m < seen.least_m == 44
    assert seen.bias_hosts > 5_000
    assert after.weekly_indicator_hosts == before.weekly_indicator_hosts
    text = beside_text(after, before, 100)
    assert re.search(r"kernel_mix +8.04 % a minute +5.85 % a minute +1.37 times", text)
    assert re.search(r"applications_seen +64.3 hosts a day +64.3 hosts a week .* 14 / 5,641", text)
    hourly = load_plan(plan_path("operator_500"))
    hours = plan_report(hourly, catalogue_shapes(hourly, Catalogue.load()))
    assert re.search(r"kernel_duration .* a minute +-\n", beside_text(hours, before, 100))


def test_layers_that_may_not_know_each_other_agree_on_an_epochs_length() -> None:
    assert LONGEST_EPOCH_S == MAX_EPOCH_S


def test_section_of_ones_own_costs_the_default_plan_nothing(
    tmp_path: Path, default_report: PlanReport
) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text('format = 2\nextends = "default"\n' + TOY)
    plan, catalogue = default_plan(), Catalogue.load(path)
    assert catalogue.section("toy").length == 2
    assert plan_report(plan, catalogue_shapes(plan, catalogue)) == default_report


def test_operator_cap_is_forty_percent(default_report: PlanReport) -> None:
    assert default_report.operator_cap_hosts == 5_000
    assert default_report.operator_cap_percent == 40
    assert default_report.sigma_factor_at_cap == pytest.approx(1.32, abs=0.005)
    at_cap = figures(equal_sections(COHORT | {"t": 5_000}, 60, 10)).sigma_local
    before = figures(equal_sections(COHORT, 60, 10)).sigma_local
    assert at_cap / before == pytest.approx(default_report.sigma_factor_at_cap, rel=1e-5)


def test_group_privacy_is_computed_from_the_trade_off() -> None:
    plan = equal_sections(COHORT, 60, 10)
    assert group_epsilons(plan) == pytest.approx(
        {"hosts_2": 4.20, "hosts_8": 20.3, "weeks_4": 4.20, "weeks_52": 17.9, "replace": 2.89},
        rel=3e-3,
    )
    smaller = group_epsilons(equal_sections(COHORT | {"epsilon": 1}, 60, 10))
    assert smaller["hosts_2"] == pytest.approx(2.07, abs=0.01)


def test_collusion_leaves_no_meaningful_protection() -> None:
    plan = equal_sections(COHORT, 60, 10)
    got = collusion_epsilons(plan)
    assert got["week"] == pytest.approx(737, abs=0.5)
    assert got["hour"] == pytest.approx(18, abs=0.5)
    assert got["window"] == pytest.approx(1.9, abs=0.05)
    # Against outsiders the same arithmetic without sqrt h gives the plan's epsilon back.
    assert epsilon_of_mu(plan.mu_1e9 / 1e9, 1e-9) == pytest.approx(2, abs=1e-7)
    assert collusion_epsilons(replace(plan, scheme="local")) == {}


def test_t_covers_one_operator_and_several_weaken_the_promise() -> None:
    plan = default_plan()
    got = coalition_epsilons(plan)
    assert got == pytest.approx({"operators_2": 2.17, "operators_3": 2.39}, abs=5e-3)
    assert coalition_epsilons(replace(plan, t=5_000)) == {}  # two of 5,000 leave none of 10,000
    assert coalition_epsilons(replace(plan, min_operators=0)) == {}
    assert coalition_epsilons(replace(plan, scheme="local")) == {}


def test_long_windows_count_whole_when_aggregators_collude() -> None:
    """A report of eight weeks contains this hour: half of that section's weight is in it."""
    got = collusion_epsilons(default_plan())
    assert got["week"] == pytest.approx(737, abs=0.5)
    share = 0.34 * 60 / 10_081 + 0.402 / 8 + 0.112 / 2 + 0.146 / 2
    expected = epsilon_of_mu(0.351549815 * sqrt(8750 * share), 1e-9)
    assert got["hour"] == pytest.approx(expected, rel=1e-6)


def test_part_of_a_budget_amounts_to_less() -> None:
    assert epsilon_of_share(351_549_815, 1.0, 1000) == pytest.approx(2, abs=1e-7)
    assert epsilon_of_share(351_549_815, 0.0, 1000) == 0
    quarter = epsilon_of_share(351_549_815, 0.25, 1000)
    assert quarter == pytest.approx(epsilon_of_mu(0.351549815 / 2, 1e-9), rel=1e-9)
    with pytest.raises(ParameterError):
        epsilon_of_share(351_549_815, 1.01, 1000)


def test_epsilon_of_mu_refuses_nonsense() -> None:
    for mu in (0.0, -1.0, 1001.0):
        with pytest.raises(ParameterError):
            epsilon_of_mu(mu, 1e-9)


def test_accountant_agrees_on_a_week() -> None:
    plan = equal_sections(COHORT, 60, 10)
    shapes = dict.fromkeys((section.name for section in plan.tasks[0].sections), MIX)
    assert plan_report(plan, shapes, accountant=True).accountant_epsilon == pytest.approx(
        2.0, abs=1e-3
    )
    default = default_plan()
    shapes = catalogue_shapes(default, Catalogue.load())
    got = plan_report(default, shapes, accountant=True).accountant_epsilon
    assert got is not None
    assert 1.99 < got < 2 + GATE_MARGIN


def test_accountant_cross_check() -> None:
    assert epsilon_of([(10.0, 100)], 1e-9) == pytest.approx(6.174, abs=1e-3)


def test_gate_refuses_a_week_that_costs_more() -> None:
    plan = equal_sections(COHORT, 60, 10)
    sigma = figures(plan).sigma_local_1024
    honest = [SectionNoise(64**2, sigma, 10_081, 60, 8_750)] * 10
    assert gate(honest, 2 * 10**6, 1000) < 2.001
    with pytest.raises(ParameterError, match="epsilon of a week"):
        gate([*honest, honest[0]], 2 * 10**6, 1000)


def test_gate_charges_cut_tails_to_delta() -> None:
    def cost(coordinates: int) -> float:
        return gate([SectionNoise(1_000, 1 << 20, 10, coordinates, 9)], 2 * 10**6, 1000)

    assert cost(4) < cost(4 * 10**21)
    with pytest.raises(ParameterError, match="epsilon of a week"):
        cost(10**23)


def test_gap_of_a_sum_at_two_steps() -> None:
    assert sum_gap(2048, 8_750) == pytest.approx(7.2e-17, rel=1e-2)
    assert sum_gap(2048, 1) == 0
    slack = SectionNoise(64**2, 2048, 10_081, 1_000, 8_750).slack
    assert slack == pytest.approx(7.2e-17 * 1_000 * 10_081, rel=1e-2)


def test_plan_below_two_steps_of_noise_is_refused() -> None:
    coarse = SectionShape("indicators", 64, 1, 2, 1)
    plan = default_plan()
    week = plan.tasks[2]
    with pytest.raises(ParameterError, match="sigma_local"):
        section_figures(plan, week, week.sections[0], coarse)


def test_plan_that_would_wrap_is_refused() -> None:
    fine = SectionShape("mix", 60, 1 << 18, 1 << 18, 1)
    plan = equal_sections(COHORT, 60, 1)
    with pytest.raises(ParameterError, match="modulus"):
        section_figures(plan, plan.tasks[0], plan.tasks[0].sections[0], fine)


def test_pages_quote_the_numbers_that_are_computed() -> None:
    """The threat model and the privacy page say what the planner says."""
    docs = Path(__file__).parents[3] / "docs"
    threats = _as_read(docs / "threat-model.md")
    worked = equal_sections(COHORT, 60, 10)
    groups, alone = group_epsilons(worked), collusion_epsilons(worked)
    assert f"| 2 hosts of one person | {groups['hosts_2']:.2f} |" in threats
    assert f"| 8 hosts of one person | {groups['hosts_8']:.1f} |" in threats
    assert f"| 4 weeks of one host | {groups['weeks_4']:.2f} |" in threats
    assert f"| 52 weeks of one host | {groups['weeks_52']:.1f} |" in threats
    assert f"instead of zeros | {groups['replace']:.2f} |" in threats
    assert f"**{alone['week']:.0f} a week, {alone['hour']:.0f} an hour" in threats
    assert f"is at {collusion_epsilons(default_plan())['hour']:.0f}" in threats
    pooled = coalition_epsilons(default_plan())
    assert f"{pooled['operators_2']:.2f}, of three {pooled['operators_3']:.2f}" in threats
    mixes = _as_read(docs / "privacy.md")
    plan = default_plan()
    report = plan_report(plan, catalogue_shapes(plan, Catalogue.load()))
    error = cells(report)["kernel_mix"].error_percent
    assert f"| {error['minute']:.2f} % | {error['hour']:.2f} % |" in mixes


def _as_read(page: Path) -> str:
    """A page without the marks of its generated figures."""
    return re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"))


def test_cpu_of_a_report_but_its_noise_is_what_the_benchmark_measured() -> None:
    """Within half, as another machine or a busy one may have written the result."""
    path = Path(__file__).parents[3] / "bench" / "results" / "round.json"
    found = {figure["name"]: figure["value"] for figure in json.loads(path.read_text())["figures"]}
    measured_s = (found["publish_us_per_report_d1000"] - found["agent_noise_us_d1000"]) / 1e6
    assert report_cpu_s(1000) - 1000 * DRAW_CPU_S == pytest.approx(measured_s, rel=0.5)
