"""What an etcd coordinator requests, as data, and what the gateway's replies mean. No I/O.

The gateway speaks JSON. Keys and values are in base64, and integers of 64 bits are texts:
https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import NoReply

_UNKNOWN, _CANCELLED, _TIMEOUT, _NOT_FOUND, _DENIED, _EXHAUSTED, _PRECONDITION = 2, 1, 4, 5, 7, 8, 9
_UNAVAILABLE, _UNAUTHENTICATED = 14, 16
"""Codes of gRPC: https://grpc.io/docs/guides/status-codes/"""

_MAY_HAVE_RUN = {_CANCELLED: True, _TIMEOUT: True, _EXHAUSTED: False, _UNAVAILABLE: True}
"""Codes after which another attempt may succeed: whether the request may have run."""

_NEVER_RAN = ("no leader", "too many requests", "learner", "not capable", "space exceeded")
"""Parts of messages of requests that etcd has refused before it wrote anything."""

_HINTS = {
    "database space exceeded": "compact and defragment it, or raise its quota; then `etcdctl alarm disarm`",
    "permission denied": "grant its user readwrite on the prefix fencing/1/ (--prefix=true)",
    "authentication failed": "check user and password",
    "learner": "name members with a vote",
}
"""The next step after a refusal, by a part of its message."""

_LOG_IN = ("invalid auth token", "user name is empty")
"""Parts of messages of requests that need another token."""

MOST_DETAIL = 200


class Call(NamedTuple):
    """The effect: one request. The result is a :class:`Reply`.

    Args:
        path: of the method, below ``/v3/``.
        body: the JSON.
        timeout: seconds for the whole reply.
        is_release: it is made even if the coordinator is closed.
        credentials: the token of an authenticated user; empty: none.
    """

    path: str
    body: bytes
    timeout: float
    is_release: bool = False
    credentials: str = ""

    def __repr__(self) -> str:
        shown = b"..." if self.path == AUTHENTICATE else self.body
        return f"Call({self.path!r}, {shown!r}, {self.timeout!r}, is_release={self.is_release!r})"


AUTHENTICATE = "auth/authenticate"


class Refusal(NamedTuple):
    """Why a reply has no message.

    Args:
        text: etcd's own.
        is_unauthenticated: the credentials have expired, or were never good.
    """

    text: str
    is_unauthenticated: bool = False


class Reply(NamedTuple):
    """The messages of a reply, or why there are none."""

    messages: Sequence[dict[str, Any]]
    refused: Refusal | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The only message."""
        return self.messages[0]

    @property
    def succeeded(self) -> bool:
        """Whether all conditions of a transaction held."""
        return bool(self.message.get("succeeded"))

    @property
    def revision(self) -> int:
        """The revision of the store at this reply."""
        return int(self.message["header"]["revision"])

    @property
    def terms(self) -> set[str]:
        """The terms of the election in which the member was that has answered, when it made each message."""
        return {str(each["header"].get("raft_term")) for each in self.messages}

    def keys(self, step: int) -> list[Key]:
        """Return the keys that a step of the transaction has read."""
        found = self.message["responses"][step]["response_range"].get("kvs", ())
        return [
            Key(
                b64decode(each["key"]).decode(errors="replace"),
                b64decode(each.get("value", "")).decode(errors="replace"),
                int(each["create_revision"]),
                int(each["mod_revision"]),
                int(each.get("lease", 0)),
            )
            for each in found
        ]

    def count(self, step: int) -> int:
        """Return how many keys are in the range of a step, whatever its limit."""
        return int(self.message["responses"][step]["response_range"].get("count", 0))

    def first_key(self, step: int) -> Key | None:
        """Return the first key that a step has read; None: there is none."""
        found = self.keys(step)
        return found[0] if found else None


class Key(NamedTuple):
    """A key that was read."""

    name: str
    value: str
    created: int
    modified: int
    lease: int


def encode(text: str) -> str:
    """Return a key or value as the gateway takes it."""
    return b2a_base64(text.encode(), newline=False).decode()


_encoded = lru_cache(maxsize=256)(encode)
"""The same for names, which return: those of the locks that are taken now. Values are secret, and differ."""


def end_of(prefix: str) -> str:
    """Return the end of the range of all keys that begin with a prefix, whose last character is of ASCII."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


Step = str
"""The JSON of a condition, of a step of a transaction, or of a transaction.

Nothing in it needs to be quoted: names and values are in base64, all else are numbers and words of etcd. To encode a
dictionary took 30 µs more of a lock.
"""

_FIELDS = {"CREATE": "create_revision", "MOD": "mod_revision", "VALUE": "value"}


def compare(key: str, target: str, value: object, *, result: str = "EQUAL", all_below: bool = False) -> Step:
    """Return a condition of a transaction: CREATE, MOD or VALUE of a key, or of all keys that begin with it."""
    names = _names(key, end_of(key)) if all_below else _names(key)
    return f'{{{names},"target":"{target}","{_FIELDS[target]}":"{value}","result":"{result}"}}'


def put(key: str, value: str, lease: int = 0) -> Step:
    """Return the step that puts a key."""
    return f'{{"request_put":{{{_names(key)},"value":"{encode(value)}","lease":"{lease}"}}}}'


def delete(key: str) -> Step:
    """Return the step that deletes a key."""
    return f'{{"request_delete_range":{{{_names(key)}}}}}'


def read(key: str) -> Step:
    """Return the step that reads a key."""
    return _read(_names(key))


def read_range(first: str, end: str, limit: int) -> Step:
    """Return the step that reads the first keys of a range, in the order of their names."""
    return _read(f'{_names(first, end)},"limit":"{limit}"')


def read_oldest(prefix: str) -> Step:
    """Return the step that reads the key that was created first, of all that begin with the prefix."""
    return _read(_sorted(prefix, "ASCEND", 1))


def read_newest(prefix: str, limit: int, up_to: int | None = None) -> Step:
    """Return the step that reads the keys that were created last, up to a revision."""
    most = "" if up_to is None else f',"max_create_revision":"{up_to}"'
    return _read(_sorted(prefix, "DESCEND", limit) + most)


def _read(what: str) -> Step:
    return f'{{"request_range":{{{what}}}}}'


def _names(key: str, end: str = "") -> str:
    return f'"key":"{_encoded(key)}","range_end":"{_encoded(end)}"' if end else f'"key":"{_encoded(key)}"'


def _sorted(prefix: str, order: str, limit: int) -> str:
    return f'{_names(prefix, end_of(prefix))},"sort_target":"CREATE","sort_order":"{order}","limit":"{limit}"'


def transaction(conditions: list[Step], success: list[Step], failure: list[Step]) -> Step:
    """Return a transaction."""
    return f'{{"compare":[{",".join(conditions)}],"success":[{",".join(success)}],"failure":[{",".join(failure)}]}}'


def nested(steps: Step) -> Step:
    """Return a transaction as the step of another one."""
    return f'{{"request_txn":{steps}}}'


def body_of(message: Step | dict[str, Any]) -> bytes:
    """Return the body of a request."""
    return (message if isinstance(message, str) else json.dumps(message, separators=(",", ":"))).encode()


def of_leases(leases: Sequence[int]) -> bytes:
    """Return the body of a request about leases: a stream of messages."""
    return b"\n".join(b'{"ID":"%d"}' % lease for lease in leases)


_decode = json.JSONDecoder().raw_decode


def _messages(content: bytes) -> list[dict[str, Any]]:
    """Return the messages of a body; none if it is no JSON."""
    try:
        text = content.decode()
        message, end = _decode(text)  # nearly always there is one
        found = [message] if end == len(text) else [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError:
        return []
    return [line for line in found if isinstance(line, dict)]


def reply_of(status: int, content: bytes, address: str) -> Reply:
    """Return what an HTTP answer means.

    Raises:
        NoReply: another attempt may succeed.
        CoordinatorUnavailable: it would not.
    """
    found = _messages(content)
    if status == 200 and found:
        return Reply([line.get("result", line) for line in found if "error" not in line])
    body = found[0] if found else {}
    if isinstance(body.get("error"), dict):  # of a stream
        body = body["error"]
    code = int(body.get("code") or body.get("grpc_code") or 0)
    text = str(body.get("message") or body.get("error") or content.decode(errors="replace").strip())[:MOST_DETAIL]
    text = text or f"HTTP {status}"
    text += "".join(f": {hint}" for part, hint in _HINTS.items() if part in text)
    if code in (_NOT_FOUND, _PRECONDITION):
        return Reply((), Refusal(text))
    if code == _UNAUTHENTICATED or any(part in text for part in _LOG_IN):
        return Reply((), Refusal(text, is_unauthenticated=True))
    if code in _MAY_HAVE_RUN or (code in (0, _UNKNOWN) and status >= 500) or "learner" in text:
        may_have_run = _MAY_HAVE_RUN.get(code, True) and not any(part in text for part in _NEVER_RAN)
        raise NoReply(ConnectionError(text), may_have_run=may_have_run, is_answer=True)
    is_no_etcd = status == 404 and not code
    if is_no_etcd:
        text = (
            f"{text}; it is no etcd of version 3.4 or later, or its gateway is off (--enable-grpc-gateway), or this is "
            f"the port for its peers"
        )
    raise CoordinatorUnavailable(
        f"etcd at {address} refused the request: {text}",
        address=address,
        refused=code == _DENIED or "authentication failed" in text or is_no_etcd,
    )
