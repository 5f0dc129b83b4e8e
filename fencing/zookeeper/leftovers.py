"""Deletes the nodes of a session that nobody uses, when it is connected again.

A restored snapshot brings back nodes that were deleted since. The session may be one of those in the snapshot, and then
it would keep them for as long as its process runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fencing.zookeeper.calls import delete, ephemerals, exists

Unused = Callable[[Sequence[str]], Sequence[str]]
"""Says which of these nodes nobody uses."""


def sweep(session: Any, unused: Unused) -> None:
    """Delete what is not used. It goes on in kazoo's threads; if the connection is lost, the next one does it again."""
    session.send(ephemerals()).rawlink(partial(_listed, session, unused))


def _listed(session: Any, unused: Unused, result: Any) -> None:
    if result.exception is None:  # servers before 3.6 have no such request
        for path in unused(result.value):
            session.send(exists(path)).rawlink(partial(_seen, session, unused, path))


def _seen(session: Any, unused: Unused, path: str, result: Any) -> None:
    stat = None if result.exception else result.value
    if stat is not None and unused([path]):
        session.send(delete(path, stat.version))  # whoever takes it meanwhile changes the version
