"""Each role ends as its own user, with nothing left of root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privacy.signing import SigningKey
from tests.closed_kit import REPOSITORY, closed, may_mount, mounted
from transport.embedded.embedded import EmbeddedLog
from transport.files.keyfiles import write_signing_key
from transport.process.privileges import (
    AGENT_USER,
    HELPER_USER,
    LEADER_USER,
    LOG_GROUP,
    PrivilegeError,
    drop_to,
    ensure_users,
    process_status,
)

ROLES = (LEADER_USER, HELPER_USER, AGENT_USER)

_CHILD = """
import json, os, sys
from pathlib import Path
from transport.embedded.embedded import EmbeddedLog
from transport.files.keyfiles import KeyFileRefused, load_signing_key
from transport.interface import TransportUnavailable
from transport.process.privileges import drop_to, process_status
user, keep, folder, roles = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
dropped = drop_to(user, keep)
loaded, opened = [], []
for other in roles:
    path = folder / other / "own.key"
    try:
        opened.append((path.open("rb").close(), other)[1])
    except PermissionError:
        pass
    try:
        loaded.append((load_signing_key(path), other)[1])
    except KeyFileRefused:
        pass
try:
    with EmbeddedLog(folder / "log") as log:
        log.create_topic("reports", 2)
        producer = log.producer()
        producer.send("reports", user.encode(), user.encode())
        producer.close()
    wrote = True
except TransportUnavailable:
    wrote = False
try:
    os.setuid(0)
    back = True
except PermissionError:
    back = False
status = process_status()
print(json.dumps({"kept": dropped.kept, "loaded": loaded, "opened": opened, "back": back,
    "wrote": wrote, "caps": {n: int(status[n], 16) for n in status if n.startswith("Cap")},
    "no_new_privs": status["NoNewPrivs"], "ids": os.getresuid() + os.getresgid(),
    "environ_owner": os.stat("/proc/self/environ").st_uid}))
"""


def run_as(user: str, folder: Path, keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a process that became `user` finds it can do."""
    command = closed([sys.executable, "-c", _CHILD, user, json.dumps(keep), folder, *ROLES])
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY
    )
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.fixture
def role_folders() -> Iterator[Path]:
    """Every role's key, in folders that all may pass (pytest's own are private), and the log."""
    ensure_users()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        for role in ROLES:
            (folder / role).mkdir(mode=0o711)
            write_signing_key(folder / role / "own.key", SigningKey.generate())
            shutil.chown(folder / role / "own.key", user=role)
        with EmbeddedLog(folder / "log", group=LOG_GROUP):
            pass
        yield folder


@pytest.mark.root
def test_roles_cannot_read_the_keys_of_each_other(role_folders: Path) -> None:
    answers = {role: run_as(role, role_folders) for role in ROLES}
    assert {role: answer["opened"] for role, answer in answers.items()} == {r: [r] for r in ROLES}
    assert {role: answer["loaded"] for role, answer in answers.items()} == {r: [r] for r in ROLES}


@pytest.mark.root
def test_dropped_role_keeps_no_capability(role_folders: Path) -> None:
    answer = run_as(HELPER_USER, role_folders)
    assert answer["caps"] == {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}
    assert answer["no_new_privs"] == "1"
    assert answer["back"] is False
    assert 0 not in answer["ids"]
    assert answer["environ_owner"] == 0  # not dumpable: its memory belongs to root alone


@pytest.mark.root
def test_agent_keeps_only_the_capabilities_it_asked_for(role_folders: Path) -> None:
    answer = run_as(AGENT_USER, role_folders, ("CAP_BPF", "CAP_PERFMON"))
    # A container may lack them; what the machine grants must arrive, and nothing else.
    mask = int(process_status()["CapPrm"], 16) & (1 << 38 | 1 << 39)
    assert len(answer["kept"]) == mask.bit_count()
    assert answer["caps"] == {
        "CapInh": 0,
        "CapPrm": mask,
        "CapEff": mask,
        "CapBnd": mask,
        "CapAmb": 0,
    }


@pytest.mark.root
def test_shared_log_takes_leader_and_agent_but_not_the_helper(role_folders: Path) -> None:
    wrote = {role: run_as(role, role_folders)["wrote"] for role in ROLES}
    assert wrote == {LEADER_USER: True, AGENT_USER: True, HELPER_USER: False}


@pytest.mark.root
def test_users_are_created_once() -> None:
    assert ensure_users()
    assert ensure_users()


_AT_ONCE = """
import os, pwd
from transport.process.privileges import AGENT_USER, HELPER_USER, LEADER_USER, WITNESS_USER
from transport.process.privileges import ensure_users

users = LEADER_USER, HELPER_USER, WITNESS_USER, AGENT_USER
for _ in range(3):
    for user in users:
        os.system(f"userdel {user} 2>/dev/null")
    begin, go = os.pipe()
    for _ in range(8):
        if os.fork() == 0:
            os.close(go)
            os.read(begin, 1)
            ensure_users()
            ids = [pwd.getpwnam(user).pw_uid for user in users]
            os.write(1, f"{ids}\\n".encode())
            os._exit(0)
    os.close(begin)
    os.close(go)
    assert [os.wait()[1] for _ in range(8)] == [0] * 8
    os.write(1, b"next\\n")
"""


@pytest.mark.root
@pytest.mark.skipif(not may_mount(), reason="needs root that may mount")
def test_users_that_several_programs_create_at_once_have_one_number_each(tmp_path: Path) -> None:
    own = [f"mount -t tmpfs tmpfs {tmp_path}", f"cp -a /etc {tmp_path}/", f"cd {REPOSITORY}"]
    command = mounted([*own, f"mount --bind {tmp_path}/etc /etc"], [sys.executable, "-c", _AT_ONCE])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rounds = [set(each.split()) for each in done.stdout.replace(", ", ",").split("next")[:-1]]
    assert [len(told) for told in rounds] == [1, 1, 1], done.stdout


@pytest.mark.root
def test_drop_refuses_a_user_that_does_not_exist_or_is_root() -> None:
    with pytest.raises(PrivilegeError, match="does not exist"):
        drop_to("pointillist-nobody-knows")
    with pytest.raises(PrivilegeError, match="is root"):
        drop_to("root")
    assert os.geteuid() == 0


def test_drop_refuses_capabilities_that_no_role_may_keep() -> None:
    with pytest.raises(ValueError, match="CAP_SYS_ADMIN"):
        drop_to(AGENT_USER, ["CAP_BPF", "CAP_SYS_ADMIN"])


def test_drop_without_root_keeps_the_user_and_still_hardens() -> None:
    program = (
        "import ctypes, os, sys\n"
        "from transport.process.privileges import drop_to\n"
        "prctl, get_dumpable, set_dumpable = ctypes.CDLL(None).prctl, 3, 4\n"
        "if os.geteuid() == 0: os.setresuid(54321, 54321, 54321)\n"
        "prctl(set_dumpable, 1, 0, 0, 0)  # as a process is that never was root\n"
        "before = os.getresuid()\n"
        "dropped = drop_to('pointillist-leader')\n"
        "assert os.getresuid() == before and not dropped.changed\n"
        "assert prctl(get_dumpable, 0, 0, 0, 0) == 0\n"
        "print(dropped.line)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=60, check=True, cwd=REPOSITORY,
    )  # fmt: skip
    assert result.stdout.startswith("not root: runs as ")


@pytest.mark.parametrize(("hard", "soft_after"), [(2000, 2000), (20_000, 16_384)])
def test_descriptors_are_taken_as_far_as_allowed_and_of_use(hard: int, soft_after: int) -> None:
    code = (
        "import resource\n"
        "from transport.process.privileges import take_descriptors\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {hard}))\n"
        "print(take_descriptors(), *resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(soft_after), str(soft_after), str(hard)]
