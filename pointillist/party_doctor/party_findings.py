"""All checks of a Leader, and of a Helper, in the order in which a person would ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aggregator.party.party_config import HelperConfig, LeaderConfig
from aggregator.protocol.directory import PinnedParties
from pointillist.broker.rights import KafkaRole
from transport.files.keyfiles import KeyFileRefused, load_signing_key
from transport.process.doctor_findings import Check, Finding
from transport.process.machine_findings import clock
from wire.catalogue import Catalogue

from .channel_checks import helper_checks, log_checks, tls_checks
from .finding_of import FindingOf
from .place_checks import copies_check, folder_checks, key_check, running_check, stray_fence_check
from .signed_checks import signed_checks

_WITNESS: Final = "[witness] in helper.toml; docs/aggregators.md says why"


def leader_findings(
    config: LeaderConfig, *, started_by_root: bool
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks of a Leader's configuration."""
    yield "leader", "process", running_check("leader", config.status_file)
    yield "leader", "clock", clock
    yield "keys", "keys", key_check("leader", config.key_dir, config.helper_pk)
    folders = {
        "state": config.state_dir,
        "store": config.database.parent,
        "releases": config.releases_dir,
    }
    yield from folder_checks(folders, started_by_root=started_by_root)
    yield "folders", "copies", copies_check(config.state_dir)
    yield from log_checks(config.transport, KafkaRole.LEADER)
    if config.helper is not None:
        yield from tls_checks(config.helper.tls, "helper")
        yield from helper_checks(config.helper, config.helper_pk)
    own_pk = _own_pk(config.key_dir)
    if own_pk is not None:
        parties = PinnedParties(own_pk, config.helper_pk)
        yield from signed_checks(config.signed_dir, parties, Catalogue.load(config.catalogue).hash)


def helper_findings(
    config: HelperConfig, *, started_by_root: bool
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks of a Helper's configuration."""
    yield "helper", "process", running_check("helper", config.status_file)
    yield "helper", "clock", clock
    yield "keys", "keys", key_check("helper", config.key_dir, config.leader_pk)
    folders = {"state": config.state_dir, "fence folder": config.fence_file.parent}
    yield from folder_checks(folders, started_by_root=started_by_root)
    yield "folders", "copies", copies_check(config.state_dir)
    yield "folders", "fence", stray_fence_check(config.state_dir, config.fence_file)
    yield from tls_checks(config.address.tls, "channel")
    yield "channel", "witness", lambda: _witness(config)
    if config.transport is not None:
        yield from log_checks(config.transport, KafkaRole.HELPER)
    own_pk = _own_pk(config.key_dir)
    if own_pk is not None:
        parties = PinnedParties(config.leader_pk, own_pk)
        catalogue = Catalogue.load().hash
        yield from signed_checks(config.signed_dir, parties, catalogue, config.operators)


def _own_pk(key_dir: Path) -> bytes | None:
    """This party's identity; None where its key is not to be used, which `keys` says."""
    try:
        return load_signing_key(key_dir / "identity.key").public_bytes
    except KeyFileRefused:
        return None


def _witness(config: HelperConfig) -> Finding:
    told = FindingOf("channel", "witness")
    if config.witness is None:
        return told.absent("none: a Helper put back from a backup is not noticed", _WITNESS)
    return told.ok("one is named; `pointillist helper status` says whether it answers")
