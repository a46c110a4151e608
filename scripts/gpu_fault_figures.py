"""Writes the figures of docs/gpu-faults.md from the committed result of `make bench-diagnosis-gpu`.

scripts/gpu_fault_figures.py            rewrite the part between the marks
scripts/gpu_fault_figures.py --check    fail when it is not what the result says
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
RESULT: Final = ROOT / "bench" / "results" / "diagnosis_gpu.json"
PAGE: Final = ROOT / "docs" / "gpu-faults.md"
START: Final = "<!-- figures: scripts/gpu_fault_figures.py -->"
END: Final = "<!-- end of figures -->"
HELD_OUT: Final = "held out"

Rows = Sequence[Mapping[str, Any]]


def text(result: Mapping[str, Any]) -> str:
    """The part of the page that figures speak in."""
    values = {one["name"]: one["value"] for one in result["figures"]}
    recordings: Rows = result["tables"]["recordings"]
    head = (
        f"{len(recordings)} recordings (`bench/results/{RESULT.name}` has every one), judged by "
        f"{result['model']}; {values['gpu_faults_held_out']:.0f} held-out faults had an impact "
        "(p99 at least 1.3 times)."
    )
    whole = (
        f"Macro-F1 **{values['gpu_fault_f1']:.2f}** (`gpu_fault_f1`); "
        f"{values['gpu_fault_f1_taught']:.2f} on what teaches. "
        f"{values['gpu_negatives_accused']:.0f} of {values['gpu_negatives']:.0f} hard negatives "
        "were taken for a GPU fault. From impact to the cause "
        f"{values['gpu_fault_cause_p95_s']:.0f} s at the 95th percentile."
    )
    wrong = _wrong([one for one in recordings if _is_wrong(one)])
    parts = [head, _classes(result["tables"]["by_cause"]), whole, wrong]
    return "\n\n".join(parts)


def _classes(rows: Rows) -> str:
    lines = [
        "| class | held-out faults | F1 | precision | recall | 95 % |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one['cause']}` | {one['faults']} | **{one['f1']:.2f}** | {_share(one['precision'])} "
        f"| {one['recall']:.2f} | {' to '.join(f'{end:.2f}' for end in one['recall_interval'])} |"
        for one in rows
        if one["split"] == HELD_OUT
    ]
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _is_wrong(one: Mapping[str, Any]) -> bool:
    return bool(one["held_out"] and one.get("impact") and one["answer"] != one["cause"])


def _wrong(rows: Rows) -> str:
    if not rows:
        return "None was answered wrongly."
    alike = Counter((one["injector"], one["cause"], one["answer"] or "nothing") for one in rows)
    levels: dict[str, list[str]] = {}
    for one in rows:
        levels.setdefault(one["injector"], []).append(one["intensity"])
    lines = ["Answered wrongly:", "", "| injector | truth | answer | faults | intensity |",
             "|---|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| `{injector}` | `{cause}` | {answer} | {count} | {', '.join(levels[injector])} |"
        for (injector, cause, answer), count in sorted(alike.items())
    ]
    return "\n".join(lines)


def with_figures(page: str, figures: str) -> str:
    """The page with its part replaced.

    Raises      ValueError when the two marks are not there once each
    """
    if page.count(START) != 1 or page.count(END) != 1:
        raise ValueError(f"docs/gpu-faults.md: expected {START!r} and {END!r} once each")
    before, rest = page.split(START)
    return f"{before}{START}\n{figures}\n{END}{rest.split(END)[1]}"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    page = PAGE.read_text(encoding="utf-8")
    fresh = with_figures(page, text(json.loads(RESULT.read_text(encoding="utf-8"))))
    if fresh == page:
        return 0
    if parser.parse_args().check:
        print(
            "docs/gpu-faults.md quotes other figures than its result; scripts/gpu_fault_figures.py"
        )
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
