"""Deletes the nodes of a session that nobody uses: no ttl ends them, because the session is kept alive.

A lease was dropped, a release or a try got no answer, a waiter's event loop has ended, a restored snapshot has brought
back what was deleted. So the nodes are looked through at each new connection, and a while after anything of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from fencing.zookeeper.calls import delete, ephemerals, exists


class KeepsNodes(Protocol):
    """What knows which nodes are in use. Any thread may call it."""

    @property
    def held_nodes(self) -> Iterable[str]:
        """The tokens that have a node."""

    def session_is_over(self, session: int) -> None:
        """Note that a session is over, with all of its nodes."""

    def unused_of(self, paths: Sequence[str]) -> Sequence[str]:
        """Return those of the session's nodes that nobody uses."""

    def forget_missing(self, tokens: Iterable[str], paths: Sequence[str]) -> None:
        """Forget those of the tokens that have none of these nodes, which are all of the session."""


Nodes = Callable[[], KeepsNodes | None]
"""A weak reference: kazoo's threads must not keep a coordinator."""


def sweep(session: Any, nodes: Nodes) -> None:
    """Delete what is not used. It goes on in kazoo's threads; if the connection is lost, the next one does it again."""
    keeper = nodes()
    if keeper is not None:
        session.send(ephemerals()).rawlink(partial(_listed, session, nodes, list(keeper.held_nodes)))


def _listed(session: Any, nodes: Nodes, before: list[str], result: Any) -> None:
    keeper = nodes()
    if keeper is not None and result.exception is None:
        keeper.forget_missing(before, result.value)
        for path in keeper.unused_of(result.value):
            session.send(exists(path)).rawlink(partial(_seen, session, nodes, path))


def _seen(session: Any, nodes: Nodes, path: str, result: Any) -> None:
    stat, keeper = None if result.exception else result.value, nodes()
    if stat is not None and keeper is not None and keeper.unused_of([path]):
        session.send(delete(path, stat.version))  # whoever takes it meanwhile changes the version
