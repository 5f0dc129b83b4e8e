"""Requests to Redis, as a proxy sees them."""

from __future__ import annotations

from fencing.redis.scripts import Script


def asks_for(script: Script, request: bytes) -> bool:
    """Return whether the request runs this script, by its digest or by its text."""
    return b"EVAL" in request and (script.sha.encode() in request or script.text.encode() in request)
