"""Configuration of a witness process: TOML read once, unknown keys refused, secrets are paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aggregator.party.channel_address import ChannelAddress, ChannelTable
from aggregator.party.party_config import (
    WITNESS_MESSAGE_BYTES,
    WITNESS_TIMEOUT_S,
    HttpAddress,
    PartyFiles,
    check_key,
)
from transport.settings.config import ConfigError, build, limited, read_table


@dataclass(frozen=True, kw_only=True)
class WitnessFiles(PartyFiles):
    """The table [witness].

    helper_pks  identities of the Helpers whose chains it keeps, 32 B each
    """

    user: str = "pointillist-witness"
    helper_pks: tuple[bytes, ...] = limited(fewest=1, most=64)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.helper_pks:
            check_key("helper_pks", key)


@dataclass(frozen=True, kw_only=True)
class WitnessConfig(WitnessFiles):
    """What a witness process is told.

    peer_group  group that may reach the socket: the Helper's own
    """

    address: ChannelAddress
    peer_group: str | None
    http: HttpAddress | None = None


@dataclass(frozen=True, slots=True)
class _WitnessListenTable(ChannelTable):
    peer_group: str | None = None


@dataclass(frozen=True, slots=True)
class _WitnessFile:
    witness: WitnessFiles
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
    return WitnessConfig(
        **vars(file.witness),
        address=file.listen.bounded(WITNESS_MESSAGE_BYTES, WITNESS_TIMEOUT_S),
        peer_group=file.listen.peer_group or None,
        http=file.http,
    )
