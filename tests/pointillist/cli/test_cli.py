"""The command's frame: what `--help` costs, exit codes, JSON, errors."""

from __future__ import annotations

import dataclasses
import enum
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from pointillist.cli import main
from pointillist.cli import root as cli
from pointillist.cli.agent import COMMANDS
from pointillist.cli.output import (
    CommandError,
    ExitCode,
    emit,
    jsonable,
    refused,
    reported,
    unavailable,
    usage_error,
    wrapped,
)
from pointillist.cli.root import REMOVED, removed
from privacy.errors import ParameterError
from tests.child_kit import as_user, in_child
from tests.golden_kit import commands
from transport.files.keyfiles import KeyFileAbsent, KeyFileExists, KeyFileRefused
from transport.interface import TransportUnavailable
from transport.process import unforeseen
from transport.process.privileges import AGENT_USER, PrivilegeError, drop_to, ensure_users
from wire.rejection import Reason, ReportRejected

REPOSITORY = Path(__file__).resolve().parents[3]


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the whole command line; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["pointillist", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    code = exit_.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("json", [(), ("--json",)])
@pytest.mark.parametrize("name", list(REMOVED))
def test_what_was_a_command_or_an_option_is_refused_by_name_with_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str,
    json: tuple[str, ...],
) -> None:  # fmt: skip
    command, dashes, option = name.partition(" --")
    words = option.split()
    given = (
        ["here", f"--{'='.join(words if len(words) > 1 else [*words, 'x'])}"]
        if dashes
        else ["here"]
    )
    assert run_main(monkeypatch, *command.split(), *given, *json) == ExitCode.USAGE
    told = " ".join(capsys.readouterr().err.split())
    assert f"{name}: there is no such thing any more" in told
    assert REMOVED[name] in told


@pytest.mark.parametrize(
    "words", ["diagnosis evaluate here --modelled", "agent top --model x", "diagnosis", ""]
)
def test_words_that_only_look_like_what_was_are_none_of_it(words: str) -> None:
    assert removed(words.split()) is None


def loaded(names: set[str], *arguments: str) -> tuple[list[str], str]:
    """Give which of the modules a command loads, and what it writes on stdout."""
    program = (
        "import sys\n"
        "from pointillist.cli import main\n"
        f"sys.argv = {['pointillist', *arguments]}\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(*sorted({names} & sys.modules.keys()), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    return result.stderr.splitlines()[-1].split(), result.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = {"numpy", "opendp", "duckdb", "pandas", "matplotlib", "grpc", "cryptography"}
    found, shown = loaded(heavy, "--help")
    assert found == []
    for group in cli.GROUPS:
        assert group.name in shown


def test_agent_run_imports_nothing_that_it_does_not_use() -> None:
    heavy = {"opendp", "duckdb", "pandas", "matplotlib", "grpc", "scipy", "mpmath", "pyarrow"}
    shown = {"rich", "jinja2", "uvicorn", "pointillist.table", "edge_agent.host_page"}
    others = {f"pointillist.cli.{one.module}" for one in COMMANDS if one.module != "agent_run"}
    found, _ = loaded(heavy | shown | others, "agent", "run", "--config", "/nowhere/agent.toml")
    assert found == []


@pytest.mark.parametrize("group", ["leader", "helper", "keys"])
def test_commands_of_parties_load_nothing_of_an_agent(group: str) -> None:
    found, _ = loaded({"edge_agent", "collectors", "pynvml"}, group, "--help")
    assert found == []


@pytest.mark.slow
def test_every_command_shows_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Help texts are markup: a path in square brackets once ended `agent run --help`."""
    for path in commands():
        assert run_main(monkeypatch, *path, "--help") == ExitCode.OK, path
        assert "Usage" in capsys.readouterr().out
    assert {("agent", "run"), ("agent", "profile"), ("agent", "ledger", "show")} <= set(commands())


@pytest.mark.slow
def test_no_help_text_loses_what_stands_in_square_brackets() -> None:
    """Markup takes `[[operator]]` for a style, and shows `[]`."""
    for command in commands().values():
        options = (getattr(option, "help", None) for option in command.params)
        for text in (command.help, command.epilog, command.short_help, *options):
            styles = re.findall(r"(?<!\\)\[/?([a-z][^\]]*)\]", text or "")
            assert set(styles) <= {"bold"}, text


def every_option() -> Iterator[tuple[str, Any]]:
    """Give each option and argument of each command, with the command's words."""
    for path, command in commands().items():
        yield from ((" ".join(path), option) for option in command.params)


@pytest.mark.slow
def test_one_name_says_where_a_result_goes_and_limits_are_short_numbers() -> None:
    for path, option in every_option():
        assert "--output" not in option.opts, f"{path}: --out, as the others have it"
        least = getattr(option, "min", None)
        assert least is None or len(f"{least}") <= 7, f"{path} {option.opts}: {least}"


def test_every_group_is_there_and_shows_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for group in cli.GROUPS:
        assert run_main(monkeypatch, group.name, "--help") == ExitCode.OK
        shown = capsys.readouterr().out
        assert f"pointillist {group.name}" in shown
        assert "xample" in shown, f"the help of {group.name} should teach by example"


def test_missing_group_is_a_failure_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = cli.CommandGroup("absent", "absent", "never there")
    monkeypatch.setattr(cli, "GROUPS", (*cli.GROUPS, absent))
    assert run_main(monkeypatch, "absent") == ExitCode.FAILED
    assert "'absent' is not part of this installation" in capsys.readouterr().err
    assert run_main(monkeypatch, "keys", "--help") == ExitCode.OK


def absent(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Have no command find a package."""

    def import_module(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {package!r} ({name})", name=package)

    monkeypatch.setattr("importlib.import_module", import_module)


def test_missing_package_of_a_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent(monkeypatch, "fastapi.routing")
    assert run_main(monkeypatch, "web") == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "this needs the package fastapi, which is not installed" in said
    assert "pip install 'pointillist[web]'" in said


def test_missing_module_that_no_extra_has_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "aggregator.lost")
    monkeypatch.setattr(sys, "argv", ["pointillist", "query"])
    with pytest.raises(ModuleNotFoundError, match=r"aggregator\.lost"):
        cli.main()


def test_version_and_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "--version") == ExitCode.OK
    assert capsys.readouterr().out.startswith("pointillist ")
    assert run_main(monkeypatch, "no-such-group") == ExitCode.USAGE
    assert run_main(monkeypatch, "keys", "generate", "nobody") == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "expected"), [("pointillist ", "leader"), ("pointillist keys ", "announce")]
)
def test_completion_knows_groups_and_their_commands(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    expected: str,
) -> None:
    monkeypatch.setenv("_POINTILLIST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert run_main(monkeypatch) == 0
    assert expected in capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (usage_error("u"), ExitCode.USAGE),
        (refused("r"), ExitCode.REFUSED),
        (unavailable("w"), ExitCode.UNAVAILABLE),
        (TransportUnavailable("t"), ExitCode.UNAVAILABLE),
        (KeyFileRefused("k"), ExitCode.REFUSED),
        (KeyFileAbsent("k: no such key file; make one"), ExitCode.USAGE),
        (KeyFileExists("k: exists; move it away"), ExitCode.USAGE),
        (ParameterError("sigma_local", "at least 2 steps", 1), ExitCode.REFUSED),
        (ReportRejected(Reason.LENGTH, 10, 9), ExitCode.USAGE),
        (PrivilegeError("p"), ExitCode.UNAVAILABLE),
        (FileNotFoundError(2, "No such file", "plan.toml"), ExitCode.USAGE),
        (OSError(28, "No space left on device"), ExitCode.UNAVAILABLE),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_errors_end_with_their_documented_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: ExitCode,
) -> None:
    group = typer.Typer()

    @group.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli.LazyGroup, "load", lambda self: cli.as_group(group, self.name))
    assert run_main(monkeypatch, "plan", "fail") == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_interrupt_while_the_commands_load_has_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "command", interrupted)
    assert run_main(monkeypatch, "plan") == ExitCode.INTERRUPTED


KEY = bytes(range(64, 96))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Have `pointillist plan` fail as nobody foresaw; give where details of this process lie."""

    def fail() -> None:
        key, vector = KEY, np.arange(30)
        try:
            raise KeyError(key)
        except KeyError as error:
            words = f"no room for {vector} of {key.hex()}\nand {key!r}"
            raise ValueError(words) from error

    def run(*options: str) -> Path:
        monkeypatch.setattr(cli, "command", lambda: lambda **_: fail())
        monkeypatch.setattr(sys, "argv", ["pointillist", "plan", *options])
        monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == int(ExitCode.UNFORESEEN) == unforeseen.EXIT_CODE
        return tmp_path / unforeseen.FOLDER

    return run


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_nobody_foresaw_is_one_line_and_a_file_without_secrets(
    failing: Callable[..., Path], capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    (file,) = failing(*options).iterdir()
    told = capsys.readouterr().err
    said = json.loads(told)["error"] if options else told
    assert told.count("\n") == 1
    assert "ValueError: no room for (held back) of (held back)" in said
    assert str(file) in said
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    kept = file.read_text()
    assert "pointillist plan, Python 3" in kept
    assert "KeyError: (held back)" in kept
    assert "in fail" in kept
    for secret in (KEY.hex(), KEY.decode(), "14 15 16", "17, 18"):
        assert secret not in kept + said


@pytest.mark.parametrize(
    "secret",
    [
        repr(bytes(range(256))),
        repr(bytes(range(30, 50)))[:-3],
        f"{'ab/' * 3}{'Q7' * 8}/{'cd9' * 6}",
        repr([1.5e-05, 2.25e10, 3.125e-07]),
        repr({1: 22, 2: 33, 3: 44, 4: 55}),
        repr([np.float64(0.25), np.float64(0.5)]),
        "password=abc",
    ],
)
def test_nothing_of_a_secret_is_in_a_line(secret: str) -> None:
    said = unforeseen._held_back(f"no room for {secret}")
    assert said.removeprefix("no room for ").strip("[(held back)]") == ""


def test_details_are_bounded_in_number(
    failing: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = failing()
    first = next(folder.iterdir())
    (folder / "note").touch()
    for _ in range(unforeseen.MOST_FILES):
        failing()
    assert len(list(folder.iterdir())) == unforeseen.MOST_FILES + 1
    assert not first.exists()
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))
    failing()
    assert sum(file.name.startswith("1970") for file in folder.iterdir()) == 1


@pytest.mark.root
def test_details_go_where_the_user_may_write_and_through_no_link(tmp_path: Path) -> None:
    own, linked, closed = (tmp_path / name for name in ("own", "linked", "closed"))
    for folder in (own, linked, closed):
        folder.mkdir()
        os.chown(folder, 65534, 65534)
    closed.chmod(0o500)
    tmp_path.chmod(0o755)
    (linked / unforeseen.FOLDER).symlink_to(own)

    def told() -> str:
        os.environ["STATE_DIRECTORY"] = f"{linked}:{own}"
        unforeseen.keep_in(closed)
        return unforeseen.line(ValueError("a bug"))

    for above in tmp_path.parents:
        if above.stat().st_uid == os.geteuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
    assert str(own / unforeseen.FOLDER) in as_user(65534, told)


def test_thread_that_ends_says_one_line_and_the_process_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    with unforeseen.told():
        thread = threading.Thread(target=[].pop)
        thread.start()
        thread.join()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "IndexError: pop from empty list; details: " in said


@pytest.mark.parametrize("ended", [KeyboardInterrupt, SystemExit(3), GeneratorExit])
def test_other_ways_out_stay_as_they_are(ended: BaseException | type[BaseException]) -> None:
    kind = ended if isinstance(ended, type) else type(ended)
    with pytest.raises(kind), unforeseen.told():
        raise ended


def test_errors_are_json_where_json_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_main(monkeypatch, "keys", "show", "--json", "--folder", str(tmp_path)) == 2
    error = json.loads(capsys.readouterr().err)
    assert error["exit_code"] == 2
    assert "no key files" in error["error"]
    assert "pointillist keys generate" in error["hint"]


@pytest.mark.parametrize(
    "arguments",
    [("keys", "generate", "nobody"), ("keys", "show", "--nothing"), ("task", "show"), ("nobody",)],
)
def test_wrong_options_are_json_where_json_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run_main(monkeypatch, *arguments, "--json") == 2
    error = json.loads(capsys.readouterr().err)
    assert (error["exit_code"], "--help" in error["hint"]) == (2, True)


def test_json_of_a_command_that_works_ends_with_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = ("keys", "generate", "leader", "--folder", str(tmp_path), "--json")
    assert run_main(monkeypatch, *made) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["kind"] == "signing"
    assert run_main(monkeypatch, *made) == ExitCode.USAGE
    assert "move it away" in json.loads(capsys.readouterr().err)["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("leader", "status", "-c", "no.toml"),
        ("helper", "run", "-c", "no.toml"),
        ("witness", "run", "-c", "no.toml"),
        ("agent", "run", "-c", "no.toml"),
        ("task", "sign", "no.task", "--key", "no.key"),
        ("task", "show", "no.task"),
        ("keys", "show", "no.key"),
        ("plan", "--plan", "no.toml"),
        ("leader", "roster", "show", "no.roster"),
        ("leader", "transcript", "export", "no.sqlite", "out.json"),
        ("query", "SELECT 1; SELECT 2"),
    ],
)
def test_absent_inputs_are_wrong_usage_and_said_in_words(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setenv("POINTILLIST_RELEASES", str(tmp_path))
    assert run_main(monkeypatch, *arguments) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "Errno" not in said
    assert "expected" in said


def test_restore_without_a_witness_is_refused_and_says_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = Path(__file__).resolve().parents[3] / "deploy" / "config" / "helper.toml"
    asked = ("helper", "run", "--config", str(sample), "--after-restore")
    assert run_main(monkeypatch, *asked) == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert "[witness]" in said
    assert "new identity" in said


def test_schema_of_a_witness_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "witness", "schema") == ExitCode.OK
    assert "CREATE TABLE pointillist_links" in capsys.readouterr().out


def test_text_shows_dates_and_small_tables(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {
        "expiry": 0,
        "first_window": 86_400,
        "last_window": (1 << 48) - 1,
        "rejected": {"tag": 2},
        "sections": [{"name": "a", "weight": 0.5}, {"name": "long", "weight": 0.25}],
        "hosts": [],
    }
    emit(answer, json=False)
    assert capsys.readouterr().out.splitlines() == [
        "expiry        never",
        "first_window  1970-01-02 00:00:00Z",
        "last_window   281474976710655",
        "rejected",
        "  tag  2",
        "sections",
        "  name  weight",
        "  a        0.5",
        "  long    0.25",
        "hosts         none",
    ]


def test_reported_turns_errors_into_exit_codes() -> None:
    with (
        pytest.raises(CommandError, match="not a number") as error,
        reported(ExitCode.USAGE, ValueError, hint="try 5"),
    ):
        raise ValueError("not a number")
    assert (error.value.code, error.value.hint) == (ExitCode.USAGE, "try 5")


class _Colour(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    key: bytes
    path: Path
    colour: _Colour
    values: tuple[int, ...]
    by_name: dict[str, object]


def test_jsonable_covers_what_commands_answer() -> None:
    answer = _Answer(
        b"\x01\xff", Path("a/b"), _Colour.RED, (1, 2), {"n": np.int64(3), "v": np.arange(2)}
    )
    assert json.loads(json.dumps(jsonable(answer))) == {
        "key": "01ff",
        "path": "a/b",
        "colour": "red",
        "values": [1, 2],
        "by_name": {"n": 3, "v": [0, 1]},
    }


def test_emit_prints_text_or_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"sigma": 1.5, "hosts": 3}, json=True)
    assert json.loads(capsys.readouterr().out) == {"sigma": 1.5, "hosts": 3}
    emit({"sigma": 1.5, "hosts": 3}, json=False)
    assert capsys.readouterr().out == "sigma  1.5\nhosts  3\n"
    emit([1], json=False, text=lambda value: f"text of {value}")
    assert capsys.readouterr().out == "text of [1]\n"


def test_emit_refuses_numbers_that_json_does_not_know() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        emit({"error": float("nan")}, json=True)


def test_exit_codes_are_documented() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert f"| {int(code)} | {code.name} |" in text


def test_long_message_is_wrapped_at_words_and_no_path_or_option_is_broken() -> None:
    path = "/srv/" + "x-" * 30
    said = wrapped(f"{path}: expected a folder, got a file; or --key-file\n  SELEC x\n  ^", 40)
    assert said.splitlines() == [
        f"{path}:", "  expected a folder, got a file; or", "  --key-file", "  SELEC x", "  ^",
    ]  # fmt: skip


def said_as_another(become: Callable[[], object], *arguments: str) -> str:
    """Run the command line in a child that becomes another user; give its stderr, unfolded."""

    def run() -> tuple[int, str]:
        become()
        sys.argv, sys.stderr = ["pointillist", *arguments], io.StringIO()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(str(ended.value.code)), sys.stderr.getvalue()

    code, said = in_child(run)
    assert code == ExitCode.UNAVAILABLE, said
    return " ".join(said.split())


@pytest.fixture
def closed_file() -> Iterator[Path]:
    """A file in a folder that is root's alone, in one that everybody may pass."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        path = Path(folder, "closed", "a.task")
        path.parent.mkdir(mode=0o700)
        path.write_text("a task", encoding="utf-8")
        yield path


@pytest.mark.root
def test_what_another_user_may_read_says_whose_it_is_and_what_to_type(closed_file: Path) -> None:
    asked = ("task", "show", str(closed_file))
    said = said_as_another(lambda: os.setresuid(1234, 1234, 1234), *asked)
    assert f"{closed_file}: Permission denied" in said
    whose = f"{closed_file.parent} is root's, mode 0700: give the command as root:"
    assert f"{whose} `sudo pointillist task show {closed_file}`" in said
    os.chown(closed_file.parent, 4321, -1)
    said = said_as_another(lambda: os.setresuid(1234, 1234, 1234), *asked)
    assert "is #4321's, mode 0700: give the command as #4321: `sudo -u '#4321' pointillist" in said


@pytest.mark.root
def test_root_is_not_told_to_become_root(closed_file: Path) -> None:
    """What began as root and became a role's user: the owner is what is wrong."""
    ensure_users()
    said = said_as_another(lambda: drop_to(AGENT_USER), "task", "show", str(closed_file))
    assert "give the command as root" not in said
    assert f"became {AGENT_USER}, and {closed_file.parent} is root's, mode 0700" in said
    assert f"as root `chmod o+x {closed_file.parent}`" in said


def test_file_of_another_kind_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.task").write_text("pointillist-key of another kind")
    assert run_main(monkeypatch, "task", "show", str(tmp_path / "a.task")) == ExitCode.USAGE
    assert f"{tmp_path / 'a.task'}: expected a task" in capsys.readouterr().err
