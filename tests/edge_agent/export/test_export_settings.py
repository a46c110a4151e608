"""`[export]` is off, refuses what it does not know, and lets nothing leave loopback in clear."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.config import load_config
from tests.config_kit import parse_config
from transport.settings.config import ConfigError

SAMPLE = Path("deploy/config/agent.toml")
OTLP = "[export.otlp]\nenabled = false"


def test_nothing_is_exported_until_it_is_asked_for() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    head, _, rest = text.partition("[export.prometheus]")
    without = parse_config(head + "[log]" + rest.partition("[log]")[2])
    assert not without.export.enabled
    assert load_config(SAMPLE).export == without.export, "the sample states the defaults"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('endpoint = "http://collector.example.org:4318"', "expected https:// beyond loopback"),
        ('endpoint = "http://10.0.0.7:4318"', "expected https:// beyond loopback"),
        ('endpoint = "http://127.0.0.1.example.org:4318"', "expected https:// beyond loopback"),
        ('endpoint = "http://0.0.0.0:4318"', "expected https:// beyond loopback"),
        ('endpoint = "grpc://127.0.0.1:4317"', "expected http:// or https://"),
        ('endpoint = "127.0.0.1:4318"', "expected http:// or https://"),
        ('endpoint = "https://:443"', "expected http:// or https://"),
        ('endpoint = "https://x:y@collector.example.org"', "expected no user"),
        ('endpoint = "https://collector.example.org/?key=1"', "expected no user, query"),
        ("every_s = 0", "1 to 3,?600"),
        ("most_waiting = 100_000", "1 to 1,?000"),
        ("evry_s = 15", r"unknown key \(did you mean 'every_s'\?\)"),
    ],
)
def test_otlp_settings_are_refused_with_what_was_expected(line: str, complaint: str) -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    name = line.partition(" ")[0]
    kept = [one for one in text.splitlines() if not one.startswith(f"{name} = ")]
    with pytest.raises(ConfigError, match=complaint) as refused:
        parse_config("\n".join(kept).replace(OTLP, f"{OTLP}\n{line}", 1))
    assert "x:y" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_otlp_goes_in_clear_to_loopback_alone(host: str) -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    found = parse_config(text.replace("http://127.0.0.1:4318", f"http://{host}:4318"))
    assert found.export.otlp.endpoint == f"http://{host}:4318"


def test_readers_are_names_of_users() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    found = parse_config(text.replace("readers = []", 'readers = ["prometheus"]'))
    assert found.export.prometheus.readers == ("prometheus",)
    with pytest.raises(ConfigError, match=r"export\.prometheus\.readers\[0\]"):
        parse_config(text.replace("readers = []", 'readers = ["*"]'))


def test_an_agent_that_exports_nothing_loads_nothing_for_it() -> None:
    code = (
        "import sys, pointillist.cli.agent_run as run, edge_agent.open_agent, edge_agent.service."
        "agent_service; from edge_agent.config import load_config; from pathlib import Path;"
        "assert run.export_of(load_config(Path('deploy/config/agent.toml')), '1') is None;"
        "sys.exit(any(name.startswith(('opentelemetry', 'edge_agent.export.', 'urllib3'))"
        " for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
