"""Signatures of claims: HMAC-SHA-256 (RFC 2104) over a fence and the path of its request.

A claim raises a mark, and so shuts out older holders. With a key, only those who have it can claim. The path is that of
the request, percent-decoded and without the query: of the URL at the client, and as the server names it at the service.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable

from fencing.kernel.fence import Fence

LEAST_KEY_BYTES = 16
"""128 bits, as a token has them. RFC 2104, section 3, advises 32 for SHA-256: ``secrets.token_bytes(32)``."""

MOST_KEYS = 2
"""The old and the new one, while they rotate."""

_PURPOSE = "fencing-claim-1"
"""Begins each text that is signed, and names its version. So no signature of another program, or of a later version
that covers more, passes under the same key."""


def check_key(key: object, name: str = "key") -> bytes:
    """Return ``key`` if it can sign; raise TypeError or ValueError otherwise. No message shows it."""
    if not isinstance(key, bytes):
        hint = "; decode it, as bytes.fromhex does" if isinstance(key, str) else ""
        raise TypeError(f"{name} must be bytes, not {type(key).__name__}{hint}")
    if len(key) < LEAST_KEY_BYTES:
        raise ValueError(
            f"{name} has {len(key)} bytes, and needs {LEAST_KEY_BYTES} or more random ones: use secrets.token_bytes(32)"
        )
    return key


def check_keys(keys: object) -> tuple[bytes, ...]:
    """Return the keys of a service as a tuple; None: it has none. Raise TypeError or ValueError otherwise."""
    if keys is None:
        return ()
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise TypeError(f"keys must be a list of one key or two, not {type(keys).__name__}; write keys=[key]")
    checked = tuple(check_key(key, "each of keys") for key in keys)
    if not 1 <= len(checked) <= MOST_KEYS:
        raise ValueError(
            f"keys has {len(checked)} keys: pass one, or two while they rotate; None takes unsigned claims"
        )
    return checked


def sign(key: bytes, fence: Fence, path: str) -> str:
    """Return the signature of a fence for a request to this path, in base64.

    Neither the purpose nor the text of a fence has a line break. So no two pairs of fence and path have the same text.
    """
    text = f"{_PURPOSE}\n{fence}\n{path}".encode("utf-8", "surrogatepass")
    return base64.b64encode(hmac.digest(key, text, "sha256")).decode()


def is_signed(keys: Iterable[bytes], fence: Fence, path: str, signature: str) -> bool:
    """Return whether one of the keys has made this signature."""
    return any(hmac.compare_digest(sign(key, fence, path), signature) for key in keys)
