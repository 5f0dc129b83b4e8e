"""The requests to ZooKeeper, as kazoo's own objects, and the effects of the plans. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import KazooException, NoNodeError, RolledBackError
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    Exists,
    GetChildren,
    GetChildren2,
    GetData,
    SetData,
    Sync,
    Transaction,
    write_string,
)

EPHEMERAL, SEQUENTIAL, CONTAINER = 1, 2, 4
"""Flags of a node: ``CreateMode`` of ZooKeeper's Java client."""

ANY_VERSION = -1


class CreateContainer(Create2):  # type: ignore[misc] # kazoo has no types
    """The request to create a container, which the servers delete some time after its last child. 3.6 and later."""

    type = 19


class Ephemerals(GetChildren):  # type: ignore[misc]
    """The request for the paths of all nodes that the session has. 3.6 and later. The reply is as one of children."""

    type = 103

    def serialize(self) -> bytearray:
        """Return it as it is sent."""
        return bytearray(write_string(self.path))


class Reply(NamedTuple):
    """The replies to the requests of one effect.

    Args:
        values: of each request, in their order. An exception stands for a node that is missing, or that exists.
        session: the id of the session in which they were made.
        alive_at: a moment at which the session certainly had its full time-out: see :class:`Touches`.
        position: of the log, as the server has told it last.
    """

    values: list[Any]
    session: int
    alive_at: float
    position: int


class Ask(NamedTuple):
    """The effect: make requests, one behind the other, without waiting for the replies between them.

    ZooKeeper performs the requests of a session in the order in which they were sent. The result is a :class:`Reply`.
    """

    requests: tuple[Any, ...]
    timeout: float
    is_release: bool = False
    keeps_refusals: bool = False
    """Whether a request that the user has no right to make has its error as its value."""


class Wait(NamedTuple):
    """The effect: wait until a node is deleted, at most ``seconds``. The result is whether it was, or may have been.

    Args:
        waiter: keeps the watch.
        path: of the node.
    """

    waiter: Any
    path: str
    seconds: float


class Leave(NamedTuple):
    """The effect: give up the watch of a waiter."""

    waiter: Any


def create(path: str, data: bytes, acl: Sequence[Any], flags: int = 0) -> Any:
    """Return the request to create a node. Its value is the path and the stat."""
    return Create2(path, data, acl, flags)


def create_container(path: str, acl: Sequence[Any]) -> Any:
    """Return the request to create a container."""
    return CreateContainer(path, b"", acl, CONTAINER)


def create_in_multi(path: str, data: bytes, acl: Sequence[Any], flags: int = 0) -> Any:
    """Return the request to create a node in a transaction. Its value has no stat there."""
    return Create(path, data, acl, flags)


def put(path: str, data: bytes, version: int = ANY_VERSION) -> Any:
    """Return the request to store data. Its value is the stat."""
    return SetData(path, data, version)


def delete(path: str, version: int = ANY_VERSION) -> Any:
    """Return the request to delete a node."""
    return Delete(path, version)


def read(path: str) -> Any:
    """Return the request for data and stat."""
    return GetData(path, None)


def exists(path: str) -> Any:
    """Return the request for the stat; its value is None if there is no node."""
    return Exists(path, None)


def children(path: str) -> Any:
    """Return the request for the names of all children, and the stat."""
    return GetChildren2(path, None)


def ephemerals() -> Any:
    """Return the request for the paths of all nodes that the session has."""
    return Ephemerals("/", None)


def sync(path: str) -> Any:
    """Return the request that lets later reads of the session see what the leader had by then."""
    return Sync(path)


def check(path: str, version: int = ANY_VERSION) -> Any:
    """Return the condition of a transaction that a node exists."""
    return CheckVersion(path, version)


def multi(*operations: Any) -> Any:
    """Return a transaction. It goes through the leader even if it has only conditions."""
    return Transaction(list(operations))


def failed_at(values: Sequence[Any]) -> int | None:
    """Return which operation of a transaction has failed; None: it has succeeded."""
    for index, value in enumerate(values):
        if isinstance(value, KazooException) and not isinstance(value, RolledBackError):
            return index
    return None


def is_missing(value: Any) -> bool:
    """Return whether a node was missing."""
    return isinstance(value, NoNodeError)
