"""Agent configurations out of text."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from edge_agent.config import AgentConfig, load_config


def parse_config(text: str) -> AgentConfig:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "agent.toml"
        path.write_text(text, encoding="utf-8")
        return load_config(path)
