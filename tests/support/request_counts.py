"""What a client asks of an object store, counted on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.support.servers import HttpProxy, Request


class RequestCounts:
    """Counts what goes through a proxy to an S3, which passes all of it on."""

    def __init__(self, proxy: HttpProxy) -> None:
        self._seen: list[Request] = []
        proxy.hold_when(self._see)

    def _see(self, request: Request) -> bool:
        self._seen.append(request)
        return False

    def during(self, action: Callable[[], object]) -> Counter[str]:
        """What an action asks for: puts, gets, heads, lists, deletes, and what begins and ends an upload."""
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
