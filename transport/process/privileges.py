"""Giving up root: each role runs as a user of its own, and keeps no capability it did not ask for.

The order is that of capabilities(7): the bounding set, groups and user, exactly the wanted
capabilities, no new privileges. What came out is read back from the kernel. Call it before threads
start: capabilities belong to a thread.

Root's Python often lies below a home folder that nobody else may enter, and libraries import parts
of themselves long after start. So what Python loads from is held open and named by its descriptor:
`/proc/self/fd/N` leads past the closed folders. Modules find their data when they read it: a path
that was made at import is the closed one.
"""

from __future__ import annotations

import ctypes
import fcntl
import grp
import os
import pwd
import resource
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from .foreign import libc

_PROGRAM: Final = Path(sys.executable).resolve()
_OWN_DESCRIPTORS: Final = "/proc/self/fd/"
_held: Final[dict[str, int]] = {}  # what this process holds: path -> descriptor


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How another process of this Python is begun, with -S, also where files are held alone.

    descriptors   what it must inherit
    whole         whether it can read every folder of code; if not, the library at least
    """

    program: str
    environment: Mapping[str, str]
    descriptors: tuple[int, ...]
    whole: bool


def hold_code(uid: int, gid: int) -> None:
    """Hold what Python loads from and a user could not reach; this process loads by it from now."""
    folders = [Path(folder).absolute() for folder in sys.path]
    # Where such a folder's own mode closes it, what was loaded from it is held package by package.
    closed = {
        folder for folder in folders if folder.is_dir() and not _may_enter(folder.stat(), uid, gid)
    }
    roots = [folder for folder in map(Path, _package_folders()) if folder.parent in closed]
    for path in dict.fromkeys((*folders, *roots, _PROGRAM, Path(sys.base_prefix))):
        if path.exists() and not reachable(path, uid, gid):
            _held[str(path)] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if _held:
        sys.path[:] = [_within_reach(str(folder)) for folder in folders]
        for module in list(sys.modules.values()):
            _move(module)


def closed_by_mode() -> str | None:
    """Name the folder of a loaded package that is held and yet may not be read, by its own mode."""
    paths = {str(descriptor): path for path, descriptor in _held.items()}
    for folder in _package_folders():
        number, _, inside = folder.removeprefix(_OWN_DESCRIPTORS).partition("/")
        if folder.startswith(_OWN_DESCRIPTORS) and not os.access(folder, os.R_OK | os.X_OK):
            return str(Path(paths[number], inside))
    return None


def held_descriptors() -> Iterable[int]:
    """Name what a fork that closes the rest must leave open."""
    return _held.values()


def interpreter() -> Interpreter:
    """Give this Python for another process, which finds the same code as this one."""
    folders = [Path(folder).absolute() for folder in sys.path]
    environment = {
        "PYTHONHOME": _within_reach(sys.base_prefix),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }
    whole = all(os.access(folder, os.R_OK | os.X_OK) for folder in folders if folder.is_dir())
    program = _within_reach(str(_PROGRAM))
    return Interpreter(program, environment, tuple(_held.values()), whole)


def reachable(path: Path, uid: int, gid: int) -> bool:
    """Whether a user may enter a folder (execute a file) and all folders on the way, links too."""
    real = path.resolve()
    folders = {path, *path.parents, real, *real.parents}
    return all(_may_enter(folder.stat(), uid, gid) for folder in folders)


def _may_enter(status: os.stat_result, uid: int, gid: int) -> bool:
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _package_folders() -> list[str]:
    """Where Python looks for parts of the loaded packages."""
    return [folder for module in list(sys.modules.values()) for folder in _folders(module)]


def _folders(module: ModuleType) -> list[str]:
    """Where it looks for parts of one; namespace packages follow `sys.path` alone."""
    folders = getattr(module, "__path__", None)
    return folders if isinstance(folders, list) else []


def _move(module: ModuleType) -> None:
    """Let a loaded module find its parts and its data by what is held."""
    folders = _folders(module)
    folders[:] = [_within_reach(folder) for folder in folders]
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    for owner, name in ((module, "__file__"), (spec, "origin"), (loader, "path")):
        path = getattr(owner, name, None)
        if isinstance(path, str) and (moved := _within_reach(path)) != path:
            setattr(owner, name, moved)


def _within_reach(path: str) -> str:
    """Name a path by the nearest held one above it, where there is any."""
    for held in sorted(_held, key=len, reverse=True):  # .venv lies within the checkout
        if path == held or path.startswith(f"{held}/"):
            return f"{_OWN_DESCRIPTORS}{_held[held]}{path[len(held) :]}"
    return path


LEADER_USER: Final = "pointillist-leader"
HELPER_USER: Final = "pointillist-helper"
WITNESS_USER: Final = "pointillist-witness"
AGENT_USER: Final = "pointillist-agent"
LOG_GROUP: Final = "pointillist"
"""Who may write to the embedded log: Leader and agents. The Helper never touches it."""

_GROUPS: Final[Mapping[str, Sequence[str]]] = {
    LEADER_USER: [LOG_GROUP],
    HELPER_USER: [],
    WITNESS_USER: [],
    AGENT_USER: [LOG_GROUP],
}
"""The roles' users, and groups they are in besides their own."""

_LOCK: Final = "/run/pointillist-users.lock"

CAPABILITIES: Final = {
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYSLOG": 34,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
"""What may be kept at all; a role that needs more runs it in a child that never sees a key."""

SYS_ADMIN: Final = 21
"""Kept by such a child alone, and by no role."""

_PR_SET_DUMPABLE: Final = 4
_PR_SET_KEEPCAPS: Final = 8
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_LAST_CAPABILITY: Final = 63
_DESCRIPTORS: Final = 16_384

became: Final[list[str]] = []
"""Whom this process became when it gave root up, for its words about files; empty: it did not."""


class PrivilegeError(Exception):
    """Privileges could not be given up as asked; the process must not go on."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Who the process is now; `line` is what a shell prints about it."""

    user: str
    changed: bool
    kept: tuple[str, ...]
    line: str


class CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class CapabilitySets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def ensure_users() -> bool:
    """Create missing users and the log's group; False where not root. Raises PrivilegeError."""
    if os.geteuid() != 0:
        return False
    if not (_group_exists(LOG_GROUP) and all(map(_user_exists, _GROUPS))):
        try:
            # Of two useradd for one user both succeed, and the second gives it another number.
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(_LOCK, flags, 0o600)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                _create_users()
        except OSError as error:
            raise PrivilegeError(
                f"{_LOCK}: {error.strerror}; create {LOG_GROUP} by hand"
            ) from error
    return True


def _create_users() -> None:
    if not _group_exists(LOG_GROUP):
        _admin("groupadd", "--system", LOG_GROUP)
    for user, groups in _GROUPS.items():
        if not _user_exists(user):
            extra = ["--groups", ",".join(groups)] if groups else []
            shell = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin") or "/bin/false"
            home = ["--home-dir", "/nonexistent", "--no-create-home"]
            _admin("useradd", "--system", "--user-group", *home, "--shell", shell, *extra, user)


def drop_to(user: str, keep_caps: Collection[str] = ()) -> Dropped:
    """Become `user` for good.

    keep_caps   names from `CAPABILITIES`; one that the machine does not grant is left out of `kept`
    Returns     unchanged, with a line that says so, where the process is not root
    Raises      PrivilegeError, after which the process must end; ValueError for another capability
    """
    unknown = set(keep_caps) - CAPABILITIES.keys()
    if unknown:
        raise ValueError(f"capabilities that no role may keep: {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        known = [one.pw_name for one in pwd.getpwall() if one.pw_uid == os.geteuid()]
        own = known[0] if known else str(os.geteuid())
        harden()
        return Dropped(own, False, (), f"not root: runs as {own}, with that user's rights")
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise PrivilegeError(f"user {user} does not exist; ensure_users creates it") from error
    if entry.pw_uid == 0:
        raise PrivilegeError(f"user {user} is root")
    permitted = int(process_status()["CapPrm"], 16)
    asked = {CAPABILITIES[name] for name in keep_caps}
    wanted = frozenset(number for number in asked if permitted >> number & 1)
    hold_code(entry.pw_uid, entry.pw_gid)
    _become(entry, wanted)
    _verify(entry, wanted)
    became.append(user)
    if folder := closed_by_mode():
        raise PrivilegeError(
            f"{folder}: expected that {user} may read the code in it; chmod -R go+rX {folder}"
        )
    kept = tuple(sorted(name for name, number in CAPABILITIES.items() if number in wanted))
    tail = f", keeps {', '.join(kept)}" if kept else ""
    return Dropped(user, True, kept, f"runs as {user}{tail}")


def harden() -> None:
    """No core dump, no ptrace by the same user, no privilege gained by a later exec."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)


def take_descriptors() -> int:
    """Raise the soft limit of open files as far as the hard one allows, to 16,384; give it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def give_up_capabilities() -> None:
    """Keep none, for a process that left root. Raises PrivilegeError."""
    if os.geteuid() == 0:
        return
    try:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        _set_capabilities(frozenset())
    except OSError as error:
        raise PrivilegeError(f"cannot give up capabilities: {error}") from error


def hold_only(capability: int) -> None:
    """Stay root by number, with one of root's rights. Raises PrivilegeError."""
    try:
        _drop_bounds(frozenset({capability}))
        _set_capabilities(frozenset({capability}))
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        harden()
    except OSError as error:
        raise PrivilegeError(f"cannot give up capabilities: {error}") from error


def _drop_bounds(wanted: frozenset[int]) -> None:
    for capability in range(_LAST_CAPABILITY + 1):
        # -1 with EINVAL is how the kernel says that it has no capability of this number.
        there = libc().prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1
        if there and capability not in wanted:
            _prctl(_PR_CAPBSET_DROP, capability)


def _become(entry: pwd.struct_passwd, wanted: frozenset[int]) -> None:
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    try:
        _prctl(_PR_SET_KEEPCAPS, 1 if wanted else 0)
        _drop_bounds(wanted)
        os.setgroups(groups)
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
        _set_capabilities(wanted)
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        _prctl(_PR_SET_KEEPCAPS, 0)
        harden()
    except OSError as error:
        raise PrivilegeError(f"cannot become {entry.pw_name}: {error}") from error


def _verify(entry: pwd.struct_passwd, wanted: frozenset[int]) -> None:
    mask = sum(1 << capability for capability in wanted)
    status = process_status()
    uids, gids = os.getresuid(), os.getresgid()
    if uids != (entry.pw_uid,) * 3 or gids != (entry.pw_gid,) * 3:
        raise PrivilegeError(f"expected user {entry.pw_uid}:{entry.pw_gid}, got {uids}:{gids}")
    expected = {"CapInh": 0, "CapPrm": mask, "CapEff": mask, "CapAmb": 0}
    for name, value in expected.items():
        if int(status[name], 16) != value:
            raise PrivilegeError(f"{name}: expected {value:016x}, got {status[name]}")
    if int(status["CapBnd"], 16) & ~mask:
        raise PrivilegeError(f"CapBnd: expected at most {mask:016x}, got {status['CapBnd']}")
    if status["NoNewPrivs"] != "1":
        raise PrivilegeError("NoNewPrivs: expected 1")


def process_status() -> dict[str, str]:
    lines = Path("/proc/thread-self/status").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}


def _set_capabilities(wanted: frozenset[int]) -> None:
    header = CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    sets = (CapabilitySets * 2)()
    for capability in wanted:
        bit = 1 << capability % 32
        sets[capability // 32].effective |= bit
        sets[capability // 32].permitted |= bit
    if libc().capset(ctypes.byref(header), ctypes.byref(sets)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def _prctl(option: int, value: int) -> None:
    if libc().prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def _group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _admin(*command: str) -> None:
    """Run useradd or groupadd; another program may come first, so "exists" is success."""
    exists = _group_exists if command[0] == "groupadd" else _user_exists
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PrivilegeError(f"{command[0]}: {error}; create {command[-1]} by hand") from error
    if result.returncode != 0 and not exists(command[-1]):
        raise PrivilegeError(f"{command[0]} {command[-1]}: {result.stderr.strip()}")


def way_in(error: BaseException) -> str | None:
    """Say what to do where the kernel refused a file; None where it is no such refusal.

    Root is never told to become root: it became a role's user, or the file's owner is meant.
    """
    found = error if isinstance(error, PermissionError) else error.__cause__
    if not isinstance(found, PermissionError) or found.errno is None:
        return None
    if found.strerror != os.strerror(found.errno):
        return None  # our own words, which say it
    if found.filename is None:
        return None if os.geteuid() == 0 else f"give the command as root: `{typed_as(0)}`"
    return _way_to(Path(os.fsdecode(found.filename)).absolute())


def user_name(number: int) -> str:
    """Give a user's name, or `#NUMBER` where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"


def typed_as(user: int) -> str:
    """Write this command as it is given as a user."""
    program = sys.argv[0] if os.access(sys.argv[0], os.X_OK) else "pointillist"
    command = shlex.join([program, *sys.argv[1:]])
    if user == os.geteuid():
        return command
    if os.geteuid() != 0:
        named = "" if user == 0 else f"-u {shlex.quote(user_name(user))} "
        return f"sudo {named}{command}"
    try:
        return f"runuser -u {shlex.quote(pwd.getpwuid(user).pw_name)} -- {command}"
    except KeyError:
        return f"setpriv --reuid {user} --clear-groups {command}"


def way_to_own(path: Path, owner: int, wanted: int) -> str:
    """Say what to do about a file of `owner` that must be the user `wanted`'s."""
    chown = shlex.join(["chown", user_name(wanted).removeprefix("#"), str(path)])
    if became:
        return f"as root: `{chown}`"
    if os.geteuid() != 0:
        chown = f"sudo {chown}"
    if wanted != os.geteuid():
        return f"`{chown}`"
    return f"give the command as {user_name(owner)}: `{typed_as(owner)}`, or `{chown}`"


def _way_to(path: Path) -> str:
    closed = _closed(path)
    try:
        status = closed.lstat()
    except OSError:
        return f"give the command as the user to whom {closed} belongs"
    owner, me = status.st_uid, os.geteuid()
    whose = f"{closed} is {user_name(owner)}'s, mode {stat.S_IMODE(status.st_mode):04o}"
    if became:
        folder = closed.is_dir()
        opens = f"chmod o+x {closed}" if folder else f"chown {became[-1]} {closed}"
        moved = f", or put it where {became[-1]} may go" if folder else ""
        return f"the command became {became[-1]}, and {whose}: as root `{opens}`{moved}"
    if owner != me:
        return f"{whose}: give the command as {user_name(owner)}: `{typed_as(owner)}`"
    if me != 0:
        return f"{whose}: `chmod u+rwX {closed}`"
    return (
        f"{whose}, and refused to root itself: an immutable file (`lsattr`), a file system of "
        "another machine, or a container without CAP_DAC_OVERRIDE"
    )


def _closed(path: Path) -> Path:
    """Give the first folder on the way that is closed to this user, else the file or its folder."""
    for folder in reversed(path.parents):
        if folder.is_dir() and not os.access(folder, os.X_OK, effective_ids=True):
            return folder
    return path if os.path.lexists(path) else path.parent
