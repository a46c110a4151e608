"""One HTML file with everything in it: no network, no script, figures as inline SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from .experiment_file import Experiment, ExperimentPart
from .figure_frame import Row, points, swept
from .figures import OF_KIND, PlotFolder, draw

PAGE: Final = Path(__file__).with_name("report.html")
CSS: Final = PAGE.with_suffix(".css")
MOST_TABLE_ROWS: Final = 60

_HIDDEN: Final = {
    "part", "kind", "key", "stages", "cells", "curves", "lies", "faults", "tricks", "guesses",
    "plan", "scenario", "section", "delta", "refusal", "fidelity", "reports", "gpus", "seed",
    "windows",
}  # fmt: skip
"""Columns that the table below a figure leaves to the Parquet file."""


@dataclass(frozen=True, slots=True)
class ReportedPart:
    part: ExperimentPart
    rows: Sequence[Row]
    pictures: PlotFolder | None


def show(experiment: Experiment, rows: Sequence[Row]) -> list[ReportedPart]:
    found = []
    for part in experiment.parts:
        own = [row for row in rows if row["part"] == part.name]
        if own:
            pictures = draw(part.figure or OF_KIND[part.kind], own)
            found.append(ReportedPart(part, own, pictures))
    return found


def write_figures(shown: Sequence[ReportedPart], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for reported in shown:
        if reported.pictures is not None:
            (folder / f"{reported.part.name}.svg").write_text(reported.pictures.svg)
            (folder / f"{reported.part.name}.png").write_bytes(reported.pictures.png)


def report_html(
    experiment: Experiment, shown: Sequence[ReportedPart], command: str, runs: int
) -> str:
    """Write the report; `runs` is how many are asked for, of which fewer may be finished."""
    chapters: dict[str, list[ReportedPart]] = {}
    for reported in shown:
        chapters.setdefault(reported.part.chapter or "Results", []).append(reported)
    finished = sum(len(reported.rows) for reported in shown)
    part_way = (
        f"<p><b>{finished} of {runs} runs are finished</b>; the command below goes on.</p>"
        if finished < runs
        else ""
    )
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in chapters)
    body = ""
    for name, parts in chapters.items():
        figures = "".join(_figure(reported, command) for reported in parts)
        head = f'<h2 id="{_anchor(name)}">{escape(name)}</h2>'
        body += f'<section>{head}<div class="figures">{figures}</div></section>\n'
    about = experiment.about.strip().split("\n\n")
    return Template(PAGE.read_text()).substitute(
        title=escape(experiment.title or experiment.name),
        css=CSS.read_text(),
        about="".join(f"<p>{escape(text)}</p>" for text in about if text),
        part_way=part_way,
        links=links,
        tiles=_tiles(shown),
        body=body,
        finished=finished,
        command=escape(command),
    )


def _anchor(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def _figure(reported: ReportedPart, command: str) -> str:
    part = reported.part
    wide = ' class="wide"' if part.kind == "seen" else ""
    plate, sentence = "", "No run of it released anything that could be drawn."
    if reported.pictures is not None:
        plate = f'<div class="plate">{_named_apart(reported.pictures.svg, part.name)}</div>'
        sentence = reported.pictures.sentence
    note = f'<p class="note">{escape(part.note)}</p>' if part.note else ""
    return (
        f'<figure{wide} id="{escape(part.name)}"><h3>{escape(part.title or part.name)}</h3>{plate}'
        f"<figcaption><p>{escape(sentence)}</p>{note}"
        f'<p class="note">{escape(origin(reported.rows))}</p>'
        f'<p class="how"><code>{escape(command)} --part {escape(part.name)}</code></p>'
        f"{_table(reported.rows)}</figcaption></figure>\n"
    )


def _named_apart(svg: str, name: str) -> str:
    """Give the ids of one drawing a name of their own: several share the page."""
    for quote in ('id="', 'xlink:href="#', "url(#"):
        svg = svg.replace(quote, f"{quote}{name}-")
    return svg.replace("<svg ", '<svg role="img" ', 1)


def origin(rows: Sequence[Row]) -> str:
    """Say what the rows rest on: fleet, fidelity, and how much of it is recorded."""
    first = rows[0]
    sizes = sorted({row["hosts"] for row in rows})
    hosts = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    said = [f"Scenario {first['scenario']}, plan {first['plan']}, {hosts} hosts"]
    if first.get("fidelity"):
        said.append(f"{' and '.join(sorted({r['fidelity'] for r in rows if r.get('fidelity')}))} "
                    f"fidelity, {first['hours']:g} h each")  # fmt: skip
    seeds = len({row["seed"] for row in rows})
    said.append(f"{seeds} seeds" if seeds > 1 else "one seed")
    text = "; ".join(said) + ". "
    if first.get("recorded_share") is not None:
        return text + (
            f"{100 * first['recorded_share']:.0f} % of the busy GPUs run an application as it was "
            "recorded, the rest are variants by rule."
        )
    if first.get("tables"):
        known = sum(row["tables"] - row["variants"] for row in rows)
        return text + (
            f"{known} of its applications are recordings as they are, the others are variants."
            if known
            else "All of its applications are variants of recordings, by rule."
        )
    if first.get("recordings") is not None:
        most = max(rows, key=lambda row: row["tables_met"])
        return text + (
            f"Of up to {most['tables_met']} tables that were met {most['recordings']} are "
            f"recordings and {most['variants']} variants by rule."
        )
    return text


def _table(rows: Sequence[Row]) -> str:
    names = [
        name
        for name in dict.fromkeys(key for row in rows for key in row)
        if name not in _HIDDEN and any(row.get(name) not in (None, "") for row in rows)
        and (name.startswith("axis_") or len({repr(row.get(name)) for row in rows}) > 1
             or len(rows) == 1)
    ]  # fmt: skip
    head = "".join(f"<th>{escape(name.removeprefix('axis_'))}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row.get(name)))}</td>" for name in names) + "</tr>"
        for row in rows[:MOST_TABLE_ROWS]
    )
    refused = sorted({str(row["refusal"]) for row in rows if row.get("refusal")})
    told = "".join(f"<p>refused: {escape(text)}</p>" for text in refused)
    return (
        f"<details><summary>{len(rows)} run{'s' * (len(rows) > 1)} as numbers</summary>{told}"
        f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div></details>'
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")


def _tiles(shown: Sequence[ReportedPart]) -> str:
    drawn = [reported for reported in shown if reported.pictures is not None]
    makers = [(_TILES.get(r.part.figure or OF_KIND[r.part.kind]), r.rows) for r in drawn]
    made = [make(rows) for make, rows in makers if make is not None]
    tiles = [tile for tile in made if tile is not None]
    cards = "".join(
        f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>'
        for big, small in tiles[:8]
    )
    return f'<div class="tiles">{cards}</div>\n' if cards else ""


def _error_tile(rows: Sequence[Row]) -> tuple[str, str] | None:
    row = next((r for r in rows if r.get("axis_epsilon") == 2 and r["hosts"] >= 10_000), None)
    if row is None or "epsilon" not in swept(rows) or row.get("standard_error_points_day") is None:
        return None
    return (
        f"± {row['standard_error_points_day']:.2g}",
        f"points: standard error of a share over a day, {row['hosts']:,} hosts, epsilon 2",
    )


def _cost_tile(rows: Sequence[Row]) -> tuple[str, str]:
    row = max(rows, key=lambda candidate: candidate["hosts"])
    return (
        f"{row['cpu_us_host_window'] / 1000:.2g} ms",
        f"CPU for a host and window, agent and aggregators, among {row['hosts']:,} hosts",
    )


def _seen_tile(rows: Sequence[Row]) -> tuple[str, str]:
    row = min(rows, key=lambda candidate: abs(candidate["applications"] - 84))
    hours = row["hours_to_99"]
    return (
        f"{hours:g} h" if hours is not None else f"> {row['days']} d",
        (
            f"until 99 % of {row['applications']} applications are seen, {row['gpus']:,} GPUs at "
            f"{100 * row['busy_share']:.0f} % load"
        ),
    )


def _dropout_tile(rows: Sequence[Row]) -> tuple[str, str] | None:
    row = min(rows, key=lambda candidate: abs(candidate["axis_dropout"] - 0.15))
    share = 100 * row["reports_released"] / max(row["reports"], 1)
    return (
        f"{share:.0f} %",
        (
            "of the reports that come are in a release when "
            f"{100 * row['axis_dropout']:g} % of the hosts are silent"
        ),
    )


def _mix_tile(rows: Sequence[Row]) -> tuple[str, str]:
    row = rows[0]
    return (
        f"{row['classes_seen']} of {row['classes_true']}",
        (
            f"classes told from zero, {row['hosts']:,} hosts of one operator, {row['hours']:g} h, "
            f"each ± {points(row['standard_error_points_mean'])}"
        ),
    )


_TILES: Final[Mapping[str, Callable[[Sequence[Row]], tuple[str, str] | None]]] = {
    "error": _error_tile,
    "cost": _cost_tile,
    "seen": _seen_tile,
    "dropout": _dropout_tile,
    "mix": _mix_tile,
}
