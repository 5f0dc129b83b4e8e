"""The Lua scripts of the guard, loaded as package data. The header of each describes its arguments and its reply."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files

from fencing.redis.resp import bulks
from fencing.redis.scripts import Script

_BODY = """
local function body(KEYS, ARGV)
%s
end

local own_keys, own_args, at = {}, {}, 3 * count + 4
for i = count + 1, #KEYS do own_keys[i - count] = KEYS[i] end
for i = at, #ARGV do own_args[i - at + 1] = ARGV[i] end
local succeeded, reply = pcall(body, own_keys, own_args)
if not succeeded then return {'failed', seqs, 0, text_of(reply)} end
if type(reply) == 'table' and reply.err then return {'failed', seqs, 0, reply.err} end
return {'ok', seqs, reply}
"""
"""The caller's Lua behind the check. It has KEYS and ARGV of its own."""


def _text(name: str) -> str:
    return (files("storage_guards.redis") / "lua" / f"{name}.lua").read_text("utf-8")


def _script(name: str, text: str) -> Script:
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, bulks(("EVALSHA", sha)), bulks(("EVAL", text)), frozenset((list,)))


_ADMIT, _COUNT, _COUNTED = _text("check").partition("for i = 1, count do seqs[i]")
_CHECK = _text("mark") + _ADMIT + _COUNT + _COUNTED
_CHECK_ONCE = _text("mark") + _ADMIT + _text("once") + _COUNT + _COUNTED + "note()\n"

CLAIM = _script("claim", _text("mark") + _text("claim"))
READ_MARKS = _script("read_marks", _text("mark") + _text("read_marks"))
READ = _script("read", _text("mark") + _text("read"))
WRITE = _script("write", _CHECK + _text("write"))
WRITE_ONCE = _script("write_once", _CHECK_ONCE + _text("write"))
SETTLE = _script("settle", _text("mark") + _text("settle"))


@lru_cache(maxsize=256)  # scripts in use; a program has a few, and builds no texts from data
def checked_script(lua: str, once: bool = False) -> Script:
    """Return the script that checks the marks first, and then runs the caller's Lua.

    Args:
        lua: the caller's.
        once: it also notes that a key is done.
    """
    return _script("script", (_CHECK_ONCE if once else _CHECK) + _BODY % lua)
