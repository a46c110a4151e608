"""The channel over mutual TLS: who has no certificate of the pinned CA speaks to nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from aggregator.party.channel import ChannelHelper, serve
from aggregator.party.channel_address import ChannelAddress
from aggregator.protocol.interfaces import HelperUnavailable
from tests.certificate_kit import Authority
from tests.protocol_kit import Clock, Failures, build_world, start_helper
from transport.files.keyfiles import KeyFileRefused
from transport.process.listening import AddressUnavailable, at, listen
from transport.rpc.pointillist_pb2_grpc import HelperStub
from wire.proto import pointillist_pb2 as pb


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "ca")


@contextmanager
def listening(authority: Authority, tmp_path: Path) -> Iterator[ChannelAddress]:
    """A Helper that listens with a certificate of the CA; the address has a Leader's files."""
    with listen(authority.address, 0, "", 1) as free:
        host_port = at(authority.address, free.getsockname()[1])
    _, state, runner = start_helper(build_world(9), tmp_path, Clock())
    listens = ChannelAddress(None, host_port, authority.issue("helper"))
    failures = Failures()
    server = serve(runner, listens, failures, threading.Lock())
    yield ChannelAddress(None, host_port, authority.issue("leader"), call_timeout_s=10)
    server.stop(0).wait()
    state.close()
    assert failures.seen == []


@pytest.fixture
def address(authority: Authority, tmp_path: Path) -> Iterator[ChannelAddress]:
    with listening(authority, tmp_path) as made:
        yield made


def test_leader_with_a_certificate_of_the_ca_is_answered(address: ChannelAddress) -> None:
    channel = ChannelHelper(address)
    assert channel.status().version == "plst1"
    assert channel.submit_batch(b"\1" * 300, epochs_complete=False).refusal == "version"
    channel.close()


def test_channel_lies_on_ipv6_too(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca", "::1")
    with listening(authority, tmp_path) as address:
        channel = ChannelHelper(address)
        assert channel.status().version == "plst1"
        channel.close()


def test_taken_address_says_who_has_it_and_which_keys_pick_another(
    address: ChannelAddress, authority: Authority, tmp_path: Path
) -> None:
    listens = replace(address, tls=authority.issue("helper"))
    world, other = build_world(9), tmp_path / "other"
    _, state, runner = start_helper(world, other, Clock())
    with pytest.raises(AddressUnavailable) as refused:
        serve(runner, listens, Failures(), threading.Lock())
    state.close()
    assert f"{address.host_port} is taken: process {os.getpid()} (" in str(refused.value)
    assert "address of [listen] in helper.toml" in refused.value.hint


def test_certificate_of_another_ca_is_refused_by_the_helper(
    address: ChannelAddress, authority: Authority, tmp_path: Path
) -> None:
    other = Authority.make(tmp_path / "other").issue("leader")
    trusting = replace(other, ca_file=authority.folder / "ca.pem")
    channel = ChannelHelper(replace(address, tls=trusting, call_timeout_s=3))
    with pytest.raises(HelperUnavailable):
        channel.status()
    channel.close()


def test_helper_of_another_ca_is_refused_by_the_leader(
    address: ChannelAddress, tmp_path: Path
) -> None:
    assert address.tls is not None
    other = Authority.make(tmp_path / "other")
    tls = replace(address.tls, ca_file=other.folder / "ca.pem")
    channel = ChannelHelper(replace(address, tls=tls, call_timeout_s=3))
    with pytest.raises(HelperUnavailable):
        channel.status()
    channel.close()


def test_client_without_a_certificate_is_refused(
    address: ChannelAddress, authority: Authority
) -> None:
    root = (authority.folder / "ca.pem").read_bytes()
    with_tls = grpc.secure_channel(address.host_port, grpc.ssl_channel_credentials(root))
    for channel in (with_tls, grpc.insecure_channel(address.host_port)):
        with pytest.raises(grpc.RpcError):
            HelperStub(channel).Status(pb.StatusRequest(), timeout=3)
        channel.close()


def test_tls_key_that_others_may_read_is_refused(address: ChannelAddress, tmp_path: Path) -> None:
    assert address.tls is not None
    address.tls.key_file.chmod(0o640)
    with pytest.raises(KeyFileRefused, match="0640"):
        ChannelHelper(address)
    linked = tmp_path / "linked.key"
    linked.symlink_to(address.tls.key_file)
    with pytest.raises(OSError, match="symbolic links"):
        ChannelHelper(replace(address, tls=replace(address.tls, key_file=linked)))
