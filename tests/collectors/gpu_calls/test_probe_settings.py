"""The probes' section of the agent's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.open_agent import sources_of
from tests.config_kit import parse_config
from transport.settings.config import ConfigError
from wire.catalogue import Catalogue

CATALOGUE = Catalogue.load()
SAMPLE = Path(__file__).parents[3] / "deploy" / "config" / "agent.toml"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("budget_percent = 0.5", "budget_percent = 0.001", "expected a number from 0.01 to 50"),
        (
            "budget_percent = 0.5",
            'budget_percent = "much"',
            'expected a number from .*, got "much"',
        ),
        ("leave_out = []", 'leave_out = "x"', "expected an array"),
        ("tables = []", "table = []", "expected one of"),
    ],
)
def test_settings_that_cannot_be_are_refused(old: str, new: str, said: str) -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(ConfigError, match=said):
        parse_config(text.replace(old, new))


def test_reload_restarts_the_probes_when_their_settings_change() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    configs = [
        text,
        text.replace("port = 9469", "port = 9470"),
        text.replace("budget_percent = 0.5", "budget_percent = 1"),
        text.replace("[sources.probes]\nenabled = true", "[sources.probes]\nenabled = false"),
    ]
    same, other_port, other_budget, none = (sources_of(parse_config(c), CATALOGUE) for c in configs)
    assert same.settings("probes") == other_port.settings("probes")
    assert same.settings("probes") != other_budget.settings("probes")
    assert "probes" not in none
