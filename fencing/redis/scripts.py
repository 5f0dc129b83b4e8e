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


def _load(name: str, *more: str) -> Script:
    folder = files("fencing.redis") / "lua"
    text = "".join((folder / f"{part}.lua").read_text("utf-8") for part in ("common", *more, name))
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, by_sha=bulks(("EVALSHA", sha)), by_text=bulks(("EVAL", text)))


ACQUIRE = _load("acquire", "queue")
RENEW = _load("renew")
RELEASE = _load("release", "queue")
REMINT = _load("remint")
HOLDER = _load("holder")
FORCE_RELEASE = _load("force_release")
