"""The demo's pages: served as its processes, heard of without waiting, ended with it."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from pointillist.cli.browser import open_page
from pointillist.demo.demo_pages import DemoPages
from pointillist.demo.folders import RunFolders
from pointillist.demo.role_processes import Family

PATIENCE_S = 60


@pytest.mark.slow
def test_fleet_s_page_is_served_while_the_demo_runs_and_not_after(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path, several_users=False)
    for folder in (folders.releases, folders.logs):
        folder.mkdir()
    with Family(folders.logs) as family:
        pages = DemoPages(folders, family)
        assert pages.look() == {}
        pages.show_fleet()
        ends = time.monotonic() + PATIENCE_S
        while not pages.look() and time.monotonic() < ends:
            family.check()
            time.sleep(0.05)
        address = pages.look()["the fleet"]
        with urlopen(f"{address}fleet", timeout=PATIENCE_S) as answer:
            assert b"What do the GPUs spend their time on" in answer.read()
    assert pages.look() == {}
    pages.serve()  # nothing is left to wait for


def test_machine_without_a_screen_is_told_the_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def taken(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", taken)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    open_page("http://127.0.0.1:1/")
    assert opened == []  # a browser of the terminal would have taken it, and a CI machine hung
    assert "open http://127.0.0.1:1/" in capsys.readouterr().err
    monkeypatch.setenv("DISPLAY", ":0")
    open_page("http://127.0.0.1:1/")
    assert opened == ["http://127.0.0.1:1/"]
