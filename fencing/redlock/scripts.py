"""The Lua scripts of one node, loaded as package data. The header of each describes its arguments and its reply."""

from __future__ import annotations

from functools import partial

from fencing.redis.scripts import load

_load = partial(load, package="fencing.redlock")

ACQUIRE = _load("acquire_free", "common", "member", "grant", "acquire", replies=(bytes, list))
REMINT = _load("common", "member", "grant", "remint", replies=(bytes, list))
FORCE_RELEASE = _load("common", "member", "grant", "force_release", replies=(bytes, list))
RENEW = _load("common", "member", "renew", replies=(bytes, list))
HIGHEST = _load("common", "member", "highest", replies=(list,))
JOIN = _load("common", "member", "join", replies=(list,))
