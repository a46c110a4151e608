"""What pages have from code: a report that left a host, and what an epsilon costs.

`python -m scripts.figures` writes each block between its marks, and checks them all.

python -m scripts.page_blocks play    play a small fleet, keep its report in docs/assets
python -m scripts.page_blocks draw    draw docs/images/epsilon.svg

What is kept of a report is its bytes as they lay on the log, and what `agent sent --json` said of
it; what the page shows is made from these by the code of today.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from pointillist.plan_file import DEFAULT_PATH, plan_from, read_content
from pointillist.plan_report import catalogue_shapes, plan_report
from privacy.errors import ParameterError
from wire.catalogue import Catalogue

ROOT: Final = Path(__file__).resolve().parents[1]
KEPT: Final = ROOT / "docs" / "assets" / "report-that-left.json"
PICTURE: Final = ROOT / "docs" / "images" / "epsilon.svg"
EPSILONS: Final = ("0.5", "1", "2", "4", "8")
HOSTS: Final = (1_000, 12_500, 100_000)
_BYTES_A_LINE: Final = 16
_PARTS: Final = (
    (0, 16, "host", "which host: made from its key"),
    (16, 32, "epoch", "which of its keys, new each hour"),
    (32, 64, "task", "what was asked, and by whom"),
    (64, 80, "kind", "the letters of plst1/report"),
    (80, 84, "cohort", "which part of the fleet"),
    (84, 88, "length", "how many numbers are inside"),
    (88, 96, "window", "when the window began"),
    (96, 112, "report", "a random number, its id"),
    (112, 128, "tag", "made with the keys of this hour"),
)
_NUMBERS: Final = ("the numbers: noise added, then", "masked, then sealed")


def hex_lines(report: bytes) -> str:
    """Give the bytes with their parts named; of the numbers the beginning and the end."""
    lines: list[str] = []
    for start, end, name, tells in _PARTS:
        first, *more = _hex(report[start:end])
        lines += [f"{first:<34}{name:<9}{tells}", *more]
    box = report[128:]
    head, (tail,) = _hex(box[: 2 * _BYTES_A_LINE]), _hex(box[-_BYTES_A_LINE:])
    names = ("numbers", "")
    lines += [
        f"{row:<34}{name:<9}{what}" for row, name, what in zip(head, names, _NUMBERS, strict=True)
    ]
    left_out = len(box) - 3 * _BYTES_A_LINE
    return "\n".join([*lines, f"({left_out} bytes more)", tail]) + "\n"


def _hex(part: bytes) -> list[str]:
    return [part[at : at + _BYTES_A_LINE].hex() for at in range(0, len(part), _BYTES_A_LINE)]


def report_blocks() -> dict[str, str]:
    """Give the kept report, its bytes and what is said of it.

    Raises      ReportRejected, ValueError when what is kept is no report, or another's
    """
    from pointillist.cli.sent_text import report_text
    from wire.report import Report

    os.environ["COLUMNS"] = "80"
    kept = json.loads(KEPT.read_text())
    raw = bytes.fromhex(kept["bytes"])
    if Report.decode(raw).header.report_id.hex() != kept["sent"]["report_id"]:
        raise ValueError(f"{KEPT}: expected the bytes of the report that is shown, got another's")
    asked = f"$ pointillist agent sent --report {kept['sent']['report_id'][:8]}"
    return {
        "bytes": f"```\n{hex_lines(raw)}```\n",
        "sent": f"```\n{asked}\n{report_text(kept['sent'])}\n```\n",
    }


def play() -> dict[str, Any]:
    """Play a fleet of twenty hosts through Leader and Helper; give the last report of one."""
    from privacy.noise import OpenDpSampler
    from tests.sent_kit import sent_fleet

    with tempfile.TemporaryDirectory() as folder:
        fleet = sent_fleet(Path(folder))
        fleet.start(OpenDpSampler())
        reports = [fleet.window(number) for number in range(3)]
        fleet.stop()
        report = reports[-1]
        identity = report.header.report_id.hex()
        both = ["--leader-transcript", folder, "--helper-transcript", folder]
        sent = _asked(fleet.config_file, "--report", identity, *both)
        return {
            "bytes": report.encode().hex(),
            "sent": sent | {"log": "embedded log /srv/fleet/log"},
        }


def _asked(config: Path, *arguments: str) -> dict[str, Any]:
    from pointillist.cli import main

    sys.argv = ["pointillist", "agent", "sent", "--config", str(config), *arguments, "--json"]
    out = io.StringIO()
    with (
        mock.patch("pointillist.cli.agent_file.become_agent"),  # whoever makes it keeps its files
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main()
    return dict(json.loads(out.getvalue()))


class Cost(NamedTuple):
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
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

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


BLOCKS: Final[Mapping[str, Callable[[], Mapping[str, str]]]] = {
    "docs/owners.md": report_blocks,
    "docs/choosing-epsilon.md": lambda: {"planner": "\n".join(table(costs())) + "\n"},
}
"""Page -> its blocks, by the name in their marks."""


def with_blocks(name: str, page: str) -> str:
    """Put what code gives into a page. Raises ValueError when a mark is missing."""
    for block, text in BLOCKS[name]().items() if name in BLOCKS else ():
        mark = f"<!-- {block} -->\n"
        start = page.index(mark) + len(mark)
        page = f"{page[:start]}\n{text}\n{page[page.index(f'<!-- /{block} -->', start) :]}"
    return page


def main() -> None:
    """Make what blocks are made from, or the picture beside one."""
    parser = argparse.ArgumentParser(prog="scripts.page_blocks")
    parser.add_argument("what", choices=["play", "draw"])
    if parser.parse_args().what == "play":
        KEPT.write_text(json.dumps(play(), indent=1) + "\n")
    else:
        PICTURE.write_text(draw(costs()), encoding="utf-8")


if __name__ == "__main__":
    main()
