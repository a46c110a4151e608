"""The command, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from pointillist.cli import root as cli


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs `pointillist` with arguments; gives its exit code."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["pointillist", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return run
