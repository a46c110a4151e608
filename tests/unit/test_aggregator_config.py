"""Configuration of the aggregators: the shipped samples parse, anything unknown is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.party_config import load_helper_config, load_leader_config
from transport.config_tree import ConfigError

SAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "config"


def test_leader_sample_parses() -> None:
    config = load_leader_config(SAMPLES / "leader.toml")
    assert config.helper is not None
    assert config.helper.socket == Path("/run/pointillist/helper/helper.sock")
    assert len(config.helper_pk) == 32


def test_helper_sample_parses_and_its_fence_is_off_the_state() -> None:
    config = load_helper_config(SAMPLES / "helper.toml")
    assert not config.fence_file.is_relative_to(config.state_dir)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('user = "pointillist-helper"', 'usr = "x"', "usr"),
        ("[listen]", "[listn]", "listen"),
        ('leader_pk = "00', 'leader_pk = "zz', "leader_pk"),
        ('state_dir = "/', 'state_dir = "', "state_dir"),
        ("67_108_864", "-1", "max_message_bytes"),
        ("[helper]", "[helper", "TOML"),
    ],
)
def test_helper_config_names_what_is_wrong(old: str, new: str, named: str, tmp_path: Path) -> None:
    text = (SAMPLES / "helper.toml").read_text()
    assert old in text
    path = tmp_path / "helper.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=named):
        load_helper_config(path)


def test_file_of_the_other_party_is_recognised() -> None:
    with pytest.raises(ConfigError, match="looks like a Leader's file"):
        load_helper_config(SAMPLES / "leader.toml")
    with pytest.raises(ConfigError, match="looks like a Helper's file"):
        load_leader_config(SAMPLES / "helper.toml")
