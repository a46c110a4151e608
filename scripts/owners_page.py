"""Write a report that left a host into docs/owners.md, or check that the page has it.

python -m scripts.owners_page --play     play a small fleet, keep its report in docs/assets
python -m scripts.owners_page            write what is kept into the page
python -m scripts.owners_page --check    exit code 1 where the page differs

What is kept is the report's bytes as they lay on the log, and what `agent sent --json` said of it;
what the page shows is made from these by the code of today.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from unittest import mock

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "owners.md"
KEPT: Final = ROOT / "docs" / "assets" / "report-that-left.json"
_MARK: Final = "<!-- {} -->\n"
_END: Final = "<!-- /{} -->"
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


def blocks(kept: dict[str, Any]) -> dict[str, str]:
    """Give every generated block of the page by its name.

    Raises      ReportRejected, ValueError when what is kept is no report, or another's
    """
    from pointillist.cli.sent_text import report_text
    from wire.report import Report

    raw = bytes.fromhex(kept["bytes"])
    if Report.decode(raw).header.report_id.hex() != kept["sent"]["report_id"]:
        raise ValueError(f"{KEPT}: expected the bytes of the report that is shown, got another's")
    asked = f"$ pointillist agent sent --report {kept['sent']['report_id'][:8]}"
    return {
        "bytes": f"```\n{hex_lines(raw)}```\n",
        "sent": f"```\n{asked}\n{report_text(kept['sent'])}\n```\n",
    }


def with_blocks(page: str, made: dict[str, str]) -> str:
    """Put the blocks into the page. Raises ValueError when a mark is missing."""
    for name, text in made.items():
        start = page.index(_MARK.format(name)) + len(_MARK.format(name))
        page = page[:start] + "\n" + text + "\n" + page[page.index(_END.format(name)) :]
    return page


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--play", action="store_true", help="play a fleet, keep its report")
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    asked = parser.parse_args()
    os.environ["COLUMNS"] = "80"
    if asked.play:
        KEPT.write_text(json.dumps(play(), indent=1) + "\n")
    page = PAGE.read_text(encoding="utf-8")
    made = with_blocks(page, blocks(json.loads(KEPT.read_text())))
    if not asked.check:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        sys.stderr.write(f"{PAGE}: a report differs: python -m scripts.owners_page\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
