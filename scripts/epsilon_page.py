"""What an epsilon costs, as the planner has it: table and picture of docs/choosing-epsilon.md.

python -m scripts.epsilon_page            write both
python -m scripts.epsilon_page --check    exit code 1 where the table differs
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

import matplotlib

from pointillist.plan_file import DEFAULT_PATH, plan_from, read_content
from pointillist.plan_report import catalogue_shapes, plan_report
from privacy.errors import ParameterError
from wire.catalogue import Catalogue

matplotlib.use("Agg")

from matplotlib import pyplot as plt

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "choosing-epsilon.md"
PICTURE: Final = ROOT / "docs" / "images" / "epsilon.svg"
EPSILONS: Final = ("0.5", "1", "2", "4", "8")
HOSTS: Final = (1_000, 12_500, 100_000)
_BEGIN: Final = "<!-- planner -->\n"
_END: Final = "<!-- /planner -->"


@dataclass(frozen=True, slots=True)
class Cost:
    """Standard errors of the default plan at one epsilon and size.

    hour_percent    of the kernel mix over an hour, percent of full scale
    week_hosts      of a cause's count in a week, hosts
    """

    hour_percent: float
    week_hosts: float


Costs = Mapping[tuple[str, int], Cost | None]


def cost(epsilon: str, hosts: int) -> Cost | None:
    """Ask the planner; None where it refuses, as each host's own noise would be too little."""
    content = dict(read_content(DEFAULT_PATH))
    content.pop("n_min", None)
    content.pop("t", None)
    plan = plan_from({**content, "hosts": hosts, "epsilon": Decimal(epsilon)})
    try:
        report = plan_report(plan, catalogue_shapes(plan, Catalogue.load()), False)
    except ParameterError:
        return None
    sections = {section.name: section for task in report.tasks for section in task.sections}
    hour, week = sections["kernel_mix"].error_percent["hour"], sections["incidents"].sigma_hosts
    if hour is None or week is None:
        raise ValueError("expected an hour's error of kernel_mix and hosts of incidents")
    return Cost(hour, week)


def costs() -> Costs:
    """Ask the planner for every cell of the table."""
    return {(epsilon, hosts): cost(epsilon, hosts) for epsilon in EPSILONS for hosts in HOSTS}


def table(found: Costs) -> Iterator[str]:
    """Give the lines of the table: of each size the mix of an hour, and a week's count."""
    heads = [f"{hosts:,} hosts: an hour's mix, a week's count" for hosts in HOSTS]
    yield f"| epsilon | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    for epsilon in EPSILONS:
        cells = [found[epsilon, hosts] for hosts in HOSTS]
        yield f"| {epsilon} | {' | '.join(map(_said, cells))} |"


def _said(cell: Cost | None) -> str:
    if cell is None:
        return "refused"
    return f"± {cell.hour_percent:.2g} %, ± {cell.week_hosts:.0f} hosts"


def draw(found: Costs) -> str:
    """Draw the error of an hour's mix over epsilon, a line for each size."""
    figure, axis = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    at = [float(epsilon) for epsilon in EPSILONS]
    for hosts in HOSTS:
        cells = [found[epsilon, hosts] for epsilon in EPSILONS]
        errors = [float("nan") if cell is None else cell.hour_percent for cell in cells]
        axis.plot(at, errors, "o-", label=f"{hosts:,} hosts")
    axis.set(xscale="log", yscale="log", xlabel="epsilon of a host's week: less is more private")
    axis.set_ylabel("standard error of an hour's kernel mix, %")
    axis.set_xticks(at, list(EPSILONS))
    axis.minorticks_off()
    axis.axvline(2, color="#999999", linestyle=":")
    axis.annotate("the shipped plan", (2, axis.get_ylim()[1]), (2.1, axis.get_ylim()[1] * 0.7))
    axis.grid(visible=True, alpha=0.3)
    axis.legend()
    out = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "pointillist"}):
        figure.savefig(out, format="svg", facecolor="white", metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def filled(page: str, found: Costs) -> str:
    """Put the table between its marks."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{chr(10).join(table(found))}\n\n{_END}{after}"


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found, page = costs(), PAGE.read_text(encoding="utf-8")
    made = filled(page, found)
    if check:
        sys.exit(0 if made == page else f"{PAGE}: `python -m scripts.epsilon_page` writes it anew")
    PAGE.write_text(made, encoding="utf-8")
    PICTURE.write_text(draw(found), encoding="utf-8")


if __name__ == "__main__":
    main()
