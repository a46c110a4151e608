"""What `pointillist stragglers` prints: a document, and a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from edge_agent.stragglers.judge import Judgement, RankResult

_MOST_ROWS: Final = 40
_LEAST_SHARE: Final = 0.001
_HEAD: Final = (
    f"{'rank':>6} {'stage':>5} {'z':>7} {'excess':>8} {'ms/step':>10} {'in steps':>8} "
    f"{'others waited':>14} {'waited':>10}  verdict"
)


def document(
    judged: Judgement, names: Sequence[str] = (), reasons: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Everything, for --json.

    names     of the ranks, where they have any beside their number
    reasons   what the time of a slow rank goes to, where more is known than the trace tells
    """
    return {
        "slow_ranks": [one.rank for one in judged.slow],
        "steps": len(judged.steps),
        "ranks": [_row(one, judged, names, reasons or {}) for one in judged.ranks],
        "slow_links": [
            {"ranks": one.ranks, "excess_ms_per_step": 1e3 * one.compared.excess_s}
            for one in judged.links
        ],
        "uneven_stages": judged.uneven,
        "calls": judged.waits.calls,
        "calls_out_of_order": judged.waits.impossible,
        "waited_ms_per_step": _waits(judged),
    }


def text(told: Mapping[str, Any], every: bool) -> str:
    """Give the table and what is to be said of it."""
    rows = list(told["ranks"])
    if len(rows) > _MOST_ROWS and not every:
        rows = sorted(rows, key=lambda row: (row["verdict"] != "slow", -row["excess_percent"]))
        rows = rows[:_MOST_ROWS]
    lines = [_HEAD, *map(_line, rows)]
    if len(rows) < len(told["ranks"]):
        lines.append(f"... and {len(told['ranks']) - len(rows)} more; --all shows them")
    return "\n".join([*lines, "", *_remarks(told)])


def verdict(told: Mapping[str, Any]) -> str:
    """Say it in a line."""
    slow = [row for row in told["ranks"] if row["verdict"] == "slow"]
    if slow:
        return "slow: rank " + ", ".join(f"{row['rank']} ({_words(row['cause'])})" for row in slow)
    if told["slow_links"]:
        links = ", ".join(" - ".join(map(str, one["ranks"])) for one in told["slow_links"])
        return f"no slow rank; slow link: {links}"
    if all(row["verdict"] in {"no_peers", "too_few_steps"} for row in told["ranks"]):
        return f"nothing can be said ({_words(told['ranks'][0]['verdict'])})"
    return "no slow rank"


def _row(
    one: RankResult, judged: Judgement, names: Sequence[str], reasons: Mapping[int, str]
) -> dict[str, Any]:
    steps = max(len(judged.steps), 1)
    name = {"name": names[one.rank]} if names else {}
    return {"rank": one.rank} | name | {
        "stage": one.stage,
        "verdict": one.verdict,
        "cause": reasons.get(one.rank, one.slowness),
        "test": one.compared.test,
        "z": one.compared.z,
        "excess_percent": 100 * one.compared.excess,
        "excess_ms_per_step": 1e3 * one.compared.excess_s,
        "slow_steps_percent": 100 * one.compared.persistence,
        "from_step": one.slow_steps[0] if one.slow_steps else None,
        "to_step": one.slow_steps[1] if one.slow_steps else None,
        "others_waited_ms_per_step": 1e3 * one.waited_for_s / steps,
        "waited_ms_per_step": 1e3 * one.waited_s / steps,
    }  # fmt: skip


def _waits(judged: Judgement) -> list[dict[str, Any]]:
    """Pairs of ranks, the longest waits first; none below a thousandth of all waiting."""
    per_step = 1e3 * judged.waits.followed / max(len(judged.steps), 1)
    least = _LEAST_SHARE * per_step.sum()
    pairs = [
        {"rank": one.rank, "for": other.rank, "ms": float(per_step[row, column])}
        for row, one in enumerate(judged.ranks)
        for column, other in enumerate(judged.ranks)
        if row != column and per_step[row, column] > least
    ]
    return sorted(pairs, key=lambda pair: -pair["ms"])


def _line(row: Mapping[str, Any]) -> str:
    z = "-" if row["z"] is None else f"{row['z']:.1f}"
    told = _words(row["verdict"])
    if row["verdict"] == "slow":
        told += f": {_words(row['cause'])}"
    if row["from_step"] is not None:
        told += f", steps {row['from_step']} to {row['to_step']}"
    if "name" in row:
        told += f"  {row['name']}"
    return (
        f"{row['rank']:>6} {row['stage']:>5} {z:>7} {row['excess_percent']:>6.1f} % "
        f"{row['excess_ms_per_step']:>10,.1f} {row['slow_steps_percent']:>6.0f} % "
        f"{row['others_waited_ms_per_step']:>11,.1f} ms {row['waited_ms_per_step']:>7,.1f} ms"
        f"  {told}"
    )


def _remarks(told: Mapping[str, Any]) -> list[str]:
    said = [f"{verdict(told)}; {told['steps']} steps"]
    if told["uneven_stages"]:
        stages = ", ".join(map(str, told["uneven_stages"]))
        said.append(f"stage {stages}: each rank's work varies from step to step: uneven input")
    if told["calls_out_of_order"]:
        said.append(
            f"{told['calls_out_of_order']:,} of {told['calls']:,} calls are left out of the waits: "
            "a rank left before another came"
        )
    if not told["calls"]:
        said.append("no calls between ranks were seen: who waited is not known")
    return said


def _words(name: str) -> str:
    return str(name).replace("_", " ")
