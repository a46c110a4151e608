"""The agent's configuration: the sample parses, an unknown key does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.config import load_config
from pointillist.cli.agent_run import Options
from tests.config_kit import parse_config
from transport.settings.config import ConfigError

SAMPLE = Path("deploy/config/agent.toml")


def test_agent_config_sample_parses_into_the_documented_bounds() -> None:
    config = load_config(SAMPLE)
    assert config.bounds.epsilon_millionths == 2_000_000
    assert config.spool.max_bytes == 256 << 20
    assert len(config.trust.leaders) == len(config.trust.helpers) == 1
    assert config.fence_file.parent == config.host.key_file.parent


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            ("[spool]", "[spool]\nmax_recrods = 1"),
            r"spool\.max_recrods: unknown key .*; expected one of",
        ),
        (("[spool]", "[spoool]"), r"spoool: unknown key \(did you mean 'spool'\?\); expected"),
        (
            ("max_records = 20_000", 'max_records = "many"'),
            "expected an integer, got .many",
        ),
        (("max_records = 20_000", "max_records = true"), "expected an integer, got true"),
        (("host = true", "host = 1"), r"sources\.host: expected true or false, got 1"),
        (('loader = "auto"', 'loader = "kprobe"'), r"sources\.loader: expected one of auto"),
        (('user = "pointillist-agent"', "user = 5"), r"host\.user: expected text in quotes, got 5"),
        (('leaders = ["00', 'leaders = ["zz'), r"trust\.leaders\[0\]: expected lower-case hex"),
        (('leaders = ["0011', 'leaders = ["'), "expected keys of 32 bytes"),
        (
            ('helpers = ["', f'helpers = ["{"00112233445566778899aabbccddeeff" * 2}", "'),
            r"trust: helpers: expected a key in one role, leaders or helpers, got 0011.* in both",
        ),
        (("[host]", "[host"), "expected TOML"),
        (('folder = "/var/lib/pointillist/log"', ""), r"transport: expected either folder"),
        (("allow_local = []", "allow_local = 5"), "expected an array, got 5"),
        (
            ("[diagnosis]", '[diagnosis]\nmodel = "m.json"'),
            r"diagnosis\.model is gone: leave it out, .* the hand rules speak",
        ),
    ],
)
def test_agent_config_refuses_with_place_and_expectation(
    change: tuple[str, str], complaint: str
) -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    assert change[0] in text
    with pytest.raises(ConfigError, match=complaint):
        parse_config(text.replace(*change, 1))


def test_agent_config_takes_replays_as_an_array_of_tables() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    more = text + '\n[[sources.replay]]\npath = "trace.json"\nspeed = 10\n'
    (replay,) = parse_config(more).sources.replay
    assert (replay.path, replay.speed, replay.loop) == (Path("trace.json"), 10.0, True)


def test_agent_asks_for_no_capability_that_no_source_needs() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    ours = ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
    assert parse_config(text).sources.capabilities == (*ours, "CAP_SYSLOG")
    text = text.replace("[sources.probes]\nenabled = true", "[sources.probes]\nenabled = false")
    assert parse_config(text).sources.capabilities == (*ours[:2], "CAP_SYSLOG")
    without = text.replace("ebpf = true", "ebpf = false")
    assert parse_config(without).sources.capabilities == ("CAP_SYSLOG",)
    neither = parse_config(without.replace("faults = true", "faults = false"))
    assert neither.sources.capabilities == ()


def test_loader_flag_asks_for_the_ebpf_source() -> None:
    tree = Options(loader="bcc", assignments=("sources.host=false",)).overrides()
    assert tree == {"sources": {"ebpf": True, "loader": "bcc", "host": False}}
    with pytest.raises(ConfigError, match='expected one of auto, libbpf, bcc, got "perf"'):
        load_config(SAMPLE, Options(loader="perf").overrides())
