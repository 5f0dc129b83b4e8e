"""The Lua scripts, loaded as package data. The header of each script describes its arguments and its reply."""

from __future__ import annotations

import hashlib
import importlib
import os
from typing import Any, NamedTuple

from fencing.redis.resp import bulks


class Script(NamedTuple):
    """A script: its text, its SHA-1, the packed beginnings of a call by SHA-1 and of a call by text, and the types of
    its replies."""

    name: str
    text: str
    sha: str
    by_sha: bytes
    by_text: bytes
    replies: frozenset[type]

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


def load(*parts: str, replies: tuple[type, ...], package: str = "fencing.redis") -> Script:
    """Return the script of these files; the last one has its name. ``common`` is that of this package."""
    name, text = parts[-1], ""
    for part in parts:
        home: Any = importlib.import_module("fencing.redis" if part == "common" else package)
        # As importlib.resources does, also from a zip file; but that loads some thirty modules on Python 3.15.
        text += home.__loader__.get_data(os.path.join(os.path.dirname(home.__file__), "lua", f"{part}.lua")).decode()
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    by_sha, by_text = bulks(("EVALSHA", sha)), bulks(("EVAL", text))
    return Script(name, text, sha, by_sha, by_text, frozenset(replies))


def command_of(*words: str, replies: tuple[type, ...]) -> Script:
    """Return a plain command in the form of a script."""
    packed = bulks(words)
    return Script(" ".join(words), "", "", packed, packed, frozenset(replies))


ACQUIRE = load("acquire_free", "common", "queue", "acquire", replies=(bytes, list))
ACQUIRE_ANY = load("common", "acquire_any", replies=(bytes, list))
RENEW = load("grant", "renew", replies=(bytes,))
RELEASE = load("release_alone", "common", "queue", "release", replies=(int,))
RELEASE_LATER = load("common", "queue", "release_later", replies=(int,))
RELEASE_SEVERAL = load("common", "queue", "release_several", replies=(bytes,))
REMINT = load("common", "grant", "remint", replies=(bytes, list))
HOLDER = load("common", "holder", replies=(list,))
HOLDERS = load("common", "holders", replies=(list,))
FORCED_BY = load("forced_by", replies=(bytes,))
WAIT = Script("WAIT", "", "", b"", b"", frozenset((int,)))
"""No script, but a command that is called like one."""

ASK_REPLICAS = Script("INFO", "", "", b"", b"", frozenset((bytes,)))
"""The same for the question how many replicas there are."""

FORCE_RELEASE = load("common", "force_release", replies=(bytes, list))
