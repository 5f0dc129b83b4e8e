"""What a Redis keeps, for the tests that hold it against its golden form."""

from __future__ import annotations

import re
from typing import Any

from fencing.redis.calls import Call
from fencing.redis.scripts import Script

TIME = re.compile(rb"\b[0-9]{16}\b")
"""A moment in microseconds; as a number it has as many digits."""


def send(client: Any, call: Call, *more: str | int) -> Any:
    """Run a call's script with the call's own keys and arguments, and ``more`` behind them."""
    args = (*call.args, *more)
    return client.eval(call.script.text, len(call.keys), *call.keys, *args)


def kept_in(client: Any) -> dict[str, Any]:
    """Return each key with its type, whether it expires, and its value. Moments are ``<us>``."""
    found: dict[str, Any] = {}
    for key in sorted(client.scan_iter()):
        kind, lifetime = client.type(key).decode(), "for ever" if client.ttl(key) == -1 else "a ttl"
        if kind == "string":
            value: Any = without_times(client.get(key))
        elif kind == "hash":
            value = {field.decode(): without_times(text) for field, text in sorted(client.hgetall(key).items())}
        else:
            value = [(member, score) for member, score in client.zrange(key, 0, -1, withscores=True)]
        found[key.decode()] = (kind, lifetime, value)
    return found


def without_times(text: bytes) -> bytes:
    return TIME.sub(b"<us>", text)


def shas_of(module: Any) -> dict[str, str]:
    """Return the SHA-1 of each script of a module, as a server computes it, by the name in the module."""
    return {name: each.sha for name, each in vars(module).items() if isinstance(each, Script) and each.sha}
