"""Calls in a child forked off the test, which has imported everything: as another user, say."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any


def in_child(call: Callable[[], object]) -> Any:
    """Call something in a child of this process; give what it gave, by JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writing, json.dumps(call()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as told:
        said = told.read()
    assert os.waitpid(child, 0)[1] == 0, said
    return json.loads(said)


def as_user(user: int, call: Callable[[], object]) -> Any:
    """Call something as another user: root's to do."""

    def become() -> object:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        return call()

    return in_child(become)
