"""What `agent sent` prints: a table of reports, one in full, a check in sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from edge_agent.local.words import quantity
from pointillist.table import Column, cells_of, table_lines, terminal_columns

Body = Mapping[str, Any]
"""A report, or a part of it, as `--json` prints it."""

_SHOWN_CELLS: Final = 6
_ID_SHOWN: Final = 8
_PROSE: Final = 100
_STATES: Final = {
    "waits": "waits on this host",
    "sent": "sent",
    "expired": "never sent: past the time at which anybody takes it",
    "too_long": "never sent: longer than the log takes",
    "not_kept": "spent by an earlier agent, which kept no more",
}
_BESIDE: Final = (
    "Beside these an epoch leaves each hour: 2,500 bytes of keys, sealed to the two parties."
)


_KEPT: Final = "What was put in, before it was clipped and rounded."
_GONE: Final = (
    "What was put in is no longer kept here, or not yet: the local history is shorter, off, or "
    "written within 10 s."
)
_NOISE: Final = (
    "The noise as one standard deviation: this host's own, and that of the sum of all hosts "
    "in a release of the fewest that are allowed, "
)


# Many -----------------------------------------------------------------------------------------


def reports_text(bodies: Sequence[Body], left_out: int, asked: bool) -> str:
    if not bodies:
        return "no report in this span; --since 35d shows all that are kept"
    columns = [column for column in _COLUMNS if asked or column.head != "release"]
    lines = table_lines(columns, cells_of(columns, bodies), terminal_columns())
    notes = [_BESIDE, "--report ID shows one in full."]
    if left_out:
        notes.insert(0, f"{left_out} earlier left out: --limit shows more.")
    if not asked:
        notes.append(
            "Which release each entered is in the parties' transcripts: --leader-transcript FILE "
            "and --helper-transcript FILE."
        )
    return "\n".join([*lines, "", *_folded(notes)])


def _left(body: Body) -> str:
    return (
        f"sent {_time(body['state_s'], body['window_end'])}"
        if body["state"] == "sent"
        else str(body["state"])
    )


def _spent(body: Body) -> str:
    budget = body["budget"]
    return "-" if budget is None else f"{100 * budget['share']:.3g} %"


def _release(body: Body) -> str:
    release = body["release"]
    if release is None:
        return "-"
    if release["verdict"] == "released":
        return str(release["release"])[:_ID_SHOWN]
    suppressed = release["verdict"] == "suppressed"  # other reasons are sentences of --report
    return f"{release['verdict']}: {release['why']}" if suppressed else str(release["verdict"])


_COLUMNS: Final = (
    Column("window (UTC)", lambda body: _moment(body["window_start"])),
    Column("series", lambda body: body["series"], folds=True),
    Column("report", lambda body: (body["report_id"] or "")[:_ID_SHOWN]),
    Column("bytes", lambda body: f"{body['report_bytes'] or 0:,}", right=True, leaves=1),
    Column("left", _left, leaves=2),
    Column("release", _release, folds=True),
    Column("week spent", _spent, right=True, leaves=0),
)


# One in full ----------------------------------------------------------------------------------


def report_text(body: Body) -> str:
    if body["state"] == "not_kept":
        return f"{body['series']}, window {_moment(body['window_start'])}: {_STATES['not_kept']}"
    lines = [*_pairs(_facts(body)), "", *_sections(body), "", *_pairs(_after(body))]
    return "\n".join(lines)


def _facts(body: Body) -> Iterable[tuple[str, str]]:
    yield "report", body["report_id"]
    if "version" in body:
        yield "task", f"{body['series']}, version {body['version']}"
    else:
        yield "task", f"{body['series']}; what it asked is no longer kept"
    length_s = body["window_end"] - body["window_start"]
    span = f"{_moment(body['window_start'])} to {_moment(body['window_end'])}"
    yield "window", f"{span}, {length_s} s"
    end_s = body["window_end"]
    state = _STATES[body["state"]]
    at = f" {_time(body['state_s'], end_s)}" if body["state_s"] else ""
    yield "left", f"sealed {_time(body['sealed_s'], end_s)}, {state}{at}"
    if body["log"]:
        yield "to", f"{body['log']}, topic {body['topic']}"
    yield "host", f"{body['host_id']}, cohort {body['cohort']}"
    numbers = f" for {body['coordinates']:,} numbers, whatever they are"
    yield "bytes", f"{body['report_bytes']:,}{numbers if 'coordinates' in body else ''}"
    if "leader" in body:
        yield "Leader", body["leader"]
        yield "Helper", body["helper"] or "none: the host's own noise protects it"


def _sections(body: Body) -> Iterable[str]:
    if "sections" not in body:
        return
    yield from _folded([f"{_KEPT if body['inputs_kept'] else _GONE} {_NOISE}{body['n_min']:,}."])
    yield ""
    width = terminal_columns()
    rows = [row for section in body["sections"] for row in _section_rows(section)]
    yield from table_lines(_SECTION, rows, width)
    hidden = sum(max(0, len(s["cells"] or ()) - _SHOWN_CELLS) for s in body["sections"])
    if hidden:
        yield f"{hidden} smaller values left out: --json has them"
    reasons: dict[str, list[str]] = {}
    for section in body["sections"]:
        if section.get("unmeasured") is not None:
            reasons.setdefault(section["unmeasured"], []).append(section["name"])
    for said, names in reasons.items():
        yield ""
        yield from _folded([f"Not measured, {said}: {', '.join(names)}."])


def _section_rows(section: Body) -> Iterable[list[str]]:
    many = f"{section['name']}, {section['coordinates']:,} numbers"
    if not section["cells"]:
        put_in = "all 0" if section["cells"] is not None else ""
        if section.get("unmeasured") is not None:
            put_in = "not measured: 0"
        noises = section["noise"], section["release_noise"]
        yield [many, put_in, *(_with_unit(noise, section["unit"]) for noise in noises)]
        return
    yield [many, "", "", ""]
    grows = section["release_noise"] / section["noise"]
    for cell in section["cells"][:_SHOWN_CELLS]:
        numbers = cell["value"], cell["noise"], cell["noise"] * grows
        yield [f"  {cell['cell']}", *(_with_unit(number, cell["unit"]) for number in numbers)]


def _with_unit(value: float, unit: str) -> str:
    return quantity(value, unit)


_SECTION: Final = (
    Column("section", folds=True),
    Column("put in", right=True, folds=True),
    Column("own noise", right=True, folds=True),
    Column("noise of sum", right=True, folds=True),
)


def _after(body: Body) -> Iterable[tuple[str, str]]:
    budget = body["budget"]
    if budget is None:
        yield "budget", "the ledger no longer holds that week"
    else:
        share = f"{100 * budget['share']:.3g} % of the week that ended with it was spent"
        delta = f"{budget['delta']:g}".replace("e-0", "e-")
        of = f"{budget['epsilon']:.2f} of {budget['epsilon_most']:g}"
        yield "budget", f"{share}: epsilon {of} at delta {delta}"
    yield "release", _release_sentence(body["release"])


def _release_sentence(release: Body | None) -> str:
    if release is None:
        return "not looked up: name both parties' transcripts"
    if release["verdict"] == "released":
        return f"{release['release']}, of {release['hosts']} hosts"
    why = f": {release['why']}" if release["why"] else ""
    problems = "; ".join(release["failed"] or release["could_not_be_checked"])
    return f"{release['verdict']}{why}" + (f" ({problems})" if problems else "")


# A check --------------------------------------------------------------------------------------


def check_text(body: Body) -> str:
    found = body["release"]
    lines = [f"report {body['report_id']}"]
    lines.append(f"of {body['series']}, window {_moment(body['window_start'])}")
    for head, name in (
        ("holds", "held"), ("DOES NOT HOLD", "failed"),
        ("could not be checked", "could_not_be_checked"),
    ):  # fmt: skip
        if found[name]:
            lines += ["", head, *_listed(found[name])]
    lines += ["", *_folded([_conclusion(found)])]
    return "\n".join(lines)


def _conclusion(found: Body) -> str:
    release = found["release"]
    conclusions = {
        "released": f"The report is in release {release}, one of {found['hosts']} hosts.",
        "does not hold": "Somebody's transcript is wrong: show both files to both parties.",
        "not in the release": f"The window was released without this report: {found['why']}.",
        "suppressed": f"The window was not released, and never will be: {found['why']}.",
        "not yet": "No release of this window yet.",
        "cannot be told": "What is here does not prove that the report is in the release.",
    }
    return conclusions[str(found["verdict"])]


# Words ----------------------------------------------------------------------------------------


def _moment(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S}"


def _time(unix_s: int, beside_s: int) -> str:
    """Give the time of day, with the date where it is not that of the other time."""
    same = unix_s // 86_400 == beside_s // 86_400
    return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S}" if same else _moment(unix_s)


def _pairs(facts: Iterable[tuple[str, str]]) -> list[str]:
    pairs = list(facts)
    width = max(len(name) for name, _ in pairs)
    room = max(20, min(terminal_columns(), _PROSE) - width - 2)
    lines = []
    for name, text in pairs:
        first, *more = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
        lines += [f"{name:<{width}}  {first}", *(f"{'':<{width}}  {line}" for line in more)]
    return lines


def _folded(paragraphs: Iterable[str]) -> list[str]:
    width = min(terminal_columns(), _PROSE)
    return [
        line for text in paragraphs for line in textwrap.wrap(text, width, break_on_hyphens=False)
    ]


def _listed(sentences: Iterable[str]) -> list[str]:
    width = min(terminal_columns(), _PROSE)
    return [
        line
        for text in sentences
        for line in textwrap.wrap(text, width, initial_indent="- ", subsequent_indent="  ")
    ]
