"""The demo's page in a person's browser, where there is one."""

from __future__ import annotations

import pytest

from pointillist.cli.output import open_page


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
