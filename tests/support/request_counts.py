"""Counts of the requests that a client sends to an object store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.support.servers import HttpProxy, Request


class RequestCounts:
    """A count of the requests through a proxy to an S3. The proxy passes on all of them."""

    def __init__(self, proxy: HttpProxy) -> None:
        self._seen: list[Request] = []
        proxy.hold_when(self._see)

    def _see(self, request: Request) -> bool:
        self._seen.append(request)
        return False

    def during(self, action: Callable[[], object]) -> Counter[str]:
        """Return the requests of an action by kind: put, get, head, list, delete, upload (its begin and end)."""
        self._seen.clear()
        action()
        return Counter(map(_kind, self._seen))


def _kind(request: Request) -> str:
    query = request.path.partition("?")[2]
    if request.method == "GET":
        return "list" if "list-type" in query else "get"
    if request.method == "POST":
        return "delete" if query.startswith("delete") else "upload"
    return request.method.lower()
