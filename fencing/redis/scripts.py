"""The Lua scripts, loaded as package data. The header of each script describes its arguments and its reply."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

from fencing.redis.resp import bulks


class Script(NamedTuple):
    """A script: its text, its SHA-1, and the packed beginnings of a call by SHA-1 and of a call by text."""

    name: str
    text: str
    sha: str
    by_sha: bytes
    by_text: bytes

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


def _load(*parts: str) -> Script:
    """Return the script of these files; the last one has its name."""
    folder = files("fencing.redis") / "lua"
    name, text = parts[-1], "".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, by_sha=bulks(("EVALSHA", sha)), by_text=bulks(("EVAL", text)))


ACQUIRE = _load("acquire_free", "common", "queue", "acquire")
RENEW = _load("renew")
RELEASE = _load("release_alone", "common", "queue", "release")
REMINT = _load("common", "remint")
HOLDER = _load("common", "holder")
FORCE_RELEASE = _load("common", "force_release")
