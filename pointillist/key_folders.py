"""Where key files lie unless somebody says otherwise: each role has a folder of its own inside.

A host's are in /etc: the ledger's fence lies beside the key, and no one backup may take the fence
and the ledger, which is in /var/lib. A party writes a sealing key every day, and its service may
write below /var/lib/pointillist alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import platformdirs

HOST_KEYS: Final = Path("/etc/pointillist/keys")
AGENT_HOME: Final = Path("/var/lib/pointillist/agent")
_PARTIES: Final = Path("/var/lib/pointillist")
ROLES: Final = ("host", "leader", "helper", "witness")


def default_folder(role: str) -> Path:
    """Give root's folder of a role's keys, or that of any other user, which has all roles'."""
    if os.geteuid() != 0:
        return Path(platformdirs.user_config_dir("pointillist")) / "keys"
    return HOST_KEYS if role == "host" else _PARTIES / role / "keys"


def default_folders() -> list[Path]:
    """Give every folder in which a role's keys lie by default."""
    return list(dict.fromkeys(default_folder(role) for role in ROLES))
