"""The page about the protocol names every reason for a refusal."""

from __future__ import annotations

import re
from pathlib import Path

from wire.rejection import Reason

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


def test_every_reason_is_a_row_of_the_page() -> None:
    rows = re.findall(r"^\| `([a-z0-9_]+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(reason.value for reason in Reason)
