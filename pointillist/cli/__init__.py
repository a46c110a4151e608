"""The `pointillist` command; each group is a module of this package, loaded when it is used."""

from __future__ import annotations

from .root import app, main

__all__ = ["app", "main"]
