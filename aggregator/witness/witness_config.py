"""Configuration of a witness process: TOML read once, unknown keys refused, secrets are paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aggregator.party.channel_address import ChannelAddress, ChannelTable, check_paths
from aggregator.party.party_config import (
    WITNESS_MESSAGE_BYTES,
    WITNESS_TIMEOUT_S,
    HttpAddress,
    check_key,
)
from transport.settings.config_tree import ConfigError, build, limited, read_table


@dataclass(frozen=True, slots=True)
class WitnessConfig:
    """What a witness process is told.

    key_dir     identity.key, 0600
    helper_pks  identities of the Helpers whose chains it keeps, 32 B each
    peer_group  group that may reach the socket: the Helper's own
    """

    key_dir: Path
    state_dir: Path
    helper_pks: tuple[bytes, ...]
    user: str
    address: ChannelAddress
    peer_group: str | None
    status_file: Path
    http: HttpAddress | None = None


@dataclass(frozen=True, slots=True)
class _WitnessTable:
    key_dir: Path
    state_dir: Path
    helper_pks: tuple[bytes, ...] = limited(fewest=1, most=64)
    user: str = "pointillist-witness"
    status_file: Path | None = None

    def __post_init__(self) -> None:
        check_paths(self)
        for key in self.helper_pks:
            check_key("helper_pks", key)


@dataclass(frozen=True, slots=True)
class _WitnessListenTable(ChannelTable):
    peer_group: str | None = None


@dataclass(frozen=True, slots=True)
class _WitnessFile:
    witness: _WitnessTable
    listen: _WitnessListenTable
    http: HttpAddress | None = None


def load_witness_config(path: Path) -> WitnessConfig:
    """Read witness.toml.

    Raises      ConfigError, OSError
    """
    table = read_table(path)
    if "helper" in table or "leader" in table:
        raise ConfigError(f"{path}: this looks like an aggregator's file; expected a witness's")
    file = build(_WitnessFile, table, f"{path}: ")
    witness = file.witness
    return WitnessConfig(
        key_dir=witness.key_dir,
        state_dir=witness.state_dir,
        helper_pks=witness.helper_pks,
        user=witness.user,
        address=file.listen.bounded(WITNESS_MESSAGE_BYTES, WITNESS_TIMEOUT_S),
        peer_group=file.listen.peer_group or None,
        status_file=witness.status_file or witness.state_dir / "status.json",
        http=file.http,
    )
