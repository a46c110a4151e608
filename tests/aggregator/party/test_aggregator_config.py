"""Configuration of the aggregators: the shipped samples parse, anything unknown is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.party.config import (
    DeadLetterQuota,
    Quotas,
    WitnessProcess,
    WitnessSettings,
    load_helper_config,
    load_leader_config,
)
from aggregator.party.postgresql_settings import PostgresqlSettings
from aggregator.witness.service import load_witness_config
from transport.factory import EmbeddedSettings
from transport.settings.config import ConfigError

SAMPLES = Path(__file__).resolve().parents[3] / "deploy" / "config"


def test_leader_sample_parses() -> None:
    config = load_leader_config(SAMPLES / "leader.toml")
    assert config.helper is not None
    assert config.helper.socket == Path("/run/pointillist/helper/helper.sock")
    assert len(config.helper_pk) == 32


@pytest.mark.parametrize(
    ("line", "named"),
    [("minute = 0", "keep_days.minute"), ('minute = "all"', "keep_days.minute"), ("= 3", "TOML")],
)
def test_leader_config_reads_how_long_windows_are_kept(
    line: str, named: str, tmp_path: Path
) -> None:
    text = (SAMPLES / "leader.toml").read_text()
    assert load_leader_config(SAMPLES / "leader.toml").keep_days == {}
    path = tmp_path / "leader.toml"
    in_force = text.replace("# [store.keep_days]", "[store.keep_days]")
    path.write_text(in_force.replace("# minute = 400", "minute = 400"))
    assert load_leader_config(path).keep_days == {"minute": 400}
    path.write_text(in_force.replace("# minute = 400", line))
    with pytest.raises(ConfigError, match=named):
        load_leader_config(path)


@pytest.mark.parametrize("address", ["unix:7443", "dns:7443", "helper", "helper:0", "helper:77443"])
def test_address_that_is_no_host_and_port_is_refused(address: str, tmp_path: Path) -> None:
    text = (SAMPLES / "leader.toml").read_text()
    files = "".join(f'\n{name}_file = "/tls/{name}"' for name in ("ca", "cert", "key"))
    socket = 'socket = "/run/pointillist/helper/helper.sock"'
    assert socket in text
    path = tmp_path / "leader.toml"
    for told in ("helper:7443", "[::1]:7443", address):
        path.write_text(text.replace(socket, f'address = "{told}"{files}'))
        if told != address:
            config = load_leader_config(path)
            assert config.helper is not None
            assert config.helper.host_port == told
    with pytest.raises(ConfigError, match=f'helper.address: expected host:port.*"{address}"'):
        load_leader_config(path)


def test_leader_config_reads_quotas(tmp_path: Path) -> None:
    text = (SAMPLES / "leader.toml").read_text()
    assert load_leader_config(SAMPLES / "leader.toml").quotas == Quotas()
    path = tmp_path / "leader.toml"
    tables = "[quotas.operators]\nnorth = 1\n[quotas.dead_letters]\n"
    path.write_text(text.replace("retries = 3\n", f"retries = 3\n{tables}"))
    expected = Quotas(operators={"north": 1}, dead_letters=DeadLetterQuota())
    assert load_leader_config(path).quotas == expected
    assert (expected.excess("north", 4), expected.excess("south", 4)) == (4, 12)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("retries = 3", "retries = -1", "quotas.retries"),
        ("retries = 3", "retry = 3", "retry"),
        ("# window_bytes = 8_589_934_592", "window_bytes = 1024", "quotas.window_bytes"),
        ("# [quotas.operators]\n# north = 1", "[quotas.operators]\nnorth = -1", "north"),
        (
            "# [quotas.dead_letters]\n# per_minute = 600",
            "[quotas.dead_letters]\nper_minute = 0",
            "quotas.dead_letters.per_minute",
        ),
    ],
)
def test_leader_config_names_what_is_wrong_with_a_quota(
    old: str, new: str, named: str, tmp_path: Path
) -> None:
    text = (SAMPLES / "leader.toml").read_text()
    assert old in text
    (tmp_path / "leader.toml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=named):
        load_leader_config(tmp_path / "leader.toml")


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


def helper_with(tables: str, folder: Path) -> Path:
    """The sample with these of its tables in force: what stands behind `# ` of them."""
    lines, inside = [], False
    for line in (SAMPLES / "helper.toml").read_text().splitlines():
        bare = line.removeprefix("# ")
        if bare.startswith("["):
            inside = bare.strip("[]") in tables.split()
        lines.append(bare if inside and (bare.startswith("[") or " = " in bare) else line)
    path = folder / "helper.toml"
    path.write_text("\n".join(lines))
    return path


def test_witness_and_log_of_the_sample_parse(tmp_path: Path) -> None:
    assert load_helper_config(SAMPLES / "helper.toml").witnesses == ()
    config = load_helper_config(helper_with("witness witness.process transport", tmp_path))
    (one,) = config.witnesses
    assert isinstance(one.witness, WitnessProcess)
    assert one.witness.address.call_timeout_s == one.timeout_s == 5.0
    assert config.transport == EmbeddedSettings(Path("/var/lib/pointillist/log"), "pointillist")
    config = load_helper_config(helper_with("witness witness.postgresql", tmp_path))
    (one,) = config.witnesses
    assert isinstance(one.witness, PostgresqlSettings)
    assert one.witness.host == "db.example.org"


@pytest.mark.parametrize(
    ("table", "server"),
    [
        ('[witness.process]\nsocket = "/run/w"\nwitness_pk = "{}"', "ab" * 32),
        ('[witness.postgresql]\nhost = "/run/{}"', "postgresql"),
    ],
)
def test_two_witnesses_are_two(table: str, server: str, tmp_path: Path) -> None:
    path = tmp_path / "helper.toml"

    def named(*servers: str) -> tuple[WitnessSettings, ...]:
        tables = "".join("\n[[witness]]\n" + table.format(one) for one in servers)
        path.write_text((SAMPLES / "helper.toml").read_text() + tables)
        return load_helper_config(path).witnesses

    assert len(named(server, server[::-1])) == 2
    with pytest.raises(ConfigError, match="got one twice"):
        named(server, server)
    with pytest.raises(ConfigError, match="witness: expected an array of at most 2"):
        named(server, server[::-1], server[1:] + server[:1])


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ("witness", "either .witness.process. or .witness.postgresql."),
        ("witness.process witness.postgresql", "either .witness.process. or .witness.postgresql."),
    ],
)
def test_helper_has_one_witness_or_none(tables: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        load_helper_config(helper_with(tables, tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("timeout_s = 5.0", "timeout_s = 500.0", "timeout_s"),
        ("timeout_s = 5.0", "timeouts = 5.0", "timeouts"),
        ('witness_pk = "ff', 'witness_pk = "', "witness_pk: expected 32 bytes"),
        ('witness_pk = "', 'key = "', "key"),
        ('ca_file = "/etc/pointillist/tls/w', '#"', "with ca_file"),
    ],
)
def test_witness_table_names_what_is_wrong(old: str, new: str, named: str, tmp_path: Path) -> None:
    path = helper_with("witness witness.process", tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=named):
        load_helper_config(path)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('helper_pks = ["0011', 'helper_pks = ["', "helper_pks: expected 32 bytes"),
        ("[listen]", "[listens]", "listens"),
        ("[witness]", "[helper]", "an aggregator's file"),
        ('address = "0', 'adress = "0', "adress"),
    ],
)
def test_witness_config_names_what_is_wrong(old: str, new: str, named: str, tmp_path: Path) -> None:
    text = (SAMPLES / "witness.toml").read_text()
    assert old in text
    path = tmp_path / "witness.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=named):
        load_witness_config(path)
