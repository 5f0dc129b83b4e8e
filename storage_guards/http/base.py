"""What both HTTP guards share: the requests as data, and what their replies mean."""

from __future__ import annotations

import time
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import httpx2

from fencing.kernel import process
from fencing.kernel.admission import sorted_fences
from fencing.kernel.effects import Plan
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Fence, HasFence, Mark, check_number, check_resource
from fencing.kernel.process import OfThisProcess
from fencing.kernel.retry import Backoff, NoReply, retry
from storage_guards.bounds import check_timeout, wait_seconds
from storage_guards.http.claims import VERSION, numbers_of
from storage_guards.http.header import HEADER, header_of
from storage_guards.http.problems import MALFORMED_TYPE, UNKNOWN_TOKEN, error_of, json_object
from storage_guards.http.signatures import check_key

MOST_BYTES = 65_536
"""The longest reply that is read."""

MOST_URL = 8192
"""The longest URL, in characters. A resource is added to it to read a mark, and httpx2 takes 65,536."""

MOST_DETAIL = 300
"""The most characters of an answer in a message."""

_BACKOFF = Backoff(0.1, 2.0)
_AWAY = (429, 502, 503, 504)
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_used_by: WeakKeyDictionary[httpx2.Client | httpx2.AsyncClient, int] = WeakKeyDictionary()
"""The process in which a guard was the first to send a request through a client."""


class Call(NamedTuple):
    """The effect: send a request, and read its reply, within this many seconds."""

    method: str
    url: httpx2.URL
    headers: dict[str, str]
    timeout: float


class Reply(NamedTuple):
    """A reply: its status, its media type and its body."""

    status: int
    content_type: str
    body: bytes


class HTTPBase(OfThisProcess):
    """The plans of both HTTP guards."""

    _client: Any

    def __init__(
        self, url: str | httpx2.URL, client: httpx2.Client | httpx2.AsyncClient, timeout: float, key: bytes | None
    ) -> None:
        self._timeout = check_timeout(timeout)
        self._key = None if key is None else check_key(key)
        try:
            self._url = client.build_request("POST", url).url  # relative to the client's base_url
            shown = self._url.copy_with(username=None, password=None, query=None, fragment=None)
        except httpx2.InvalidURL:  # its text may quote the URL, and with it a password
            raise ValueError(f"url is no URL: {len(str(url))} characters that httpx2 cannot read") from None
        scheme, size = self._url.scheme, len(str(self._url))
        if scheme not in ("http", "https") or not self._url.host:
            raise ValueError(
                f"an http or https URL is needed, not one of the scheme {scheme[:80]!r}; or give the client a base_url"
            )
        if size > MOST_URL:
            raise ValueError(f"the URL has {size} characters: use one of {MOST_URL} at most")
        self._shown = str(shown)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._shown}, timeout {self._timeout:g} s>"

    def _plan_claim(self, holders: tuple[Fence | HasFence, ...], timeout: float | None) -> Plan[None]:
        fences = sorted_fences(holders)
        seconds = wait_seconds(holders, self._timeout, timeout)
        is_signed, path = self._key is not None, self._url.path
        value = header_of(*fences, key=self._key, path=path if is_signed else None)
        reply = yield from self._request("POST", self._url, {HEADER: value}, seconds, fences[0].resource)
        if refused := error_of(*reply, sent=fences, path=path, is_signed=is_signed):
            raise refused
        if self._content(reply).get("claimed") != numbers_of(fences):
            raise self._unusable(reply)

    def _plan_mark(self, resource: str) -> Plan[Mark | None]:
        url = self._url.copy_merge_params({"resource": check_resource(resource)})
        reply = yield from self._request("GET", url, {}, self._timeout, resource)
        content = self._content(reply)
        if content.get("resource") != resource:
            raise self._unusable(reply)
        try:
            number, seq, readers = content["number"], content["seq"], content.get("readers", 0)
            if number is not None:
                return Mark(number, UNKNOWN_TOKEN, seq, readers)
            if type(readers) is not int or readers:
                check_number(readers)
            return None
        except (KeyError, TypeError, ValueError):
            raise self._unusable(reply) from None

    def _request(
        self, method: str, url: httpx2.URL, headers: dict[str, str], seconds: float, resource: str
    ) -> Plan[Reply]:
        """Send a request that may be repeated. An attempt has half of the time, so that a lost reply is one of two."""

        def give_up(failed: NoReply, may_have_run: bool) -> GuardUnavailable:
            done = "a claim may have happened" if may_have_run else "nothing was claimed"
            return GuardUnavailable(
                f"no answer from {self._shown} within {seconds:.3g} s ({failed}); {done}; retry",
                resource=resource,
            )

        if _used_by.setdefault(self._client, process.pid()) != process.pid():
            raise GuardNotEnforceable(
                "the guard's client was used before this process was forked, and the parent uses its connections; "
                "nothing was claimed. Make the client, the guard and its coordinator in each process"
            )
        headers = {"Accept-Encoding": "identity", **headers}
        answered = yield from retry(
            lambda timeout, _: Call(method, url, headers, timeout),
            clock=time.monotonic,
            attempt_seconds=seconds / 2,
            deadline=time.monotonic() + seconds,
            backoff=_BACKOFF,
            give_up=give_up,
        )
        reply: Reply = answered.value
        return reply

    def _content(self, reply: Reply) -> dict[str, Any]:
        """Return what an answer says, in the version that this one knows."""
        if reply.status != 200:
            raise self._unusable(reply)
        content = json_object(reply.body)
        version = content.get("version", VERSION)
        if type(version) is not int or version < VERSION:
            raise self._unusable(reply)
        if version > VERSION:
            raise GuardNotEnforceable(
                f"{self._shown} answered in version {version} of claims, and this client knows {VERSION}: the service "
                f"is newer, and a claim may have happened; upgrade this library here"
            )
        return content

    def _unusable(self, reply: Reply) -> GuardUnavailable | GuardNotEnforceable:
        answered = f"{self._shown} answered with status {reply.status}"
        if reply.status >= 500:
            return GuardUnavailable(f"{answered}; a claim may have happened; see the log of the service, and retry")
        if 300 <= reply.status < 400:
            return GuardNotEnforceable(f"{answered}: redirects are refused, so pass the final URL")
        content = json_object(reply.body)
        detail = content.get("detail")
        said = f": {detail[:MOST_DETAIL]}" if isinstance(detail, str) else ""
        if said and content.get("type") == MALFORMED_TYPE:
            return GuardNotEnforceable(f"{answered}{said}")
        return GuardNotEnforceable(
            f"{answered}{said}, which is no answer to a claim: pass the URL of its claims_path, and let the client "
            f"authenticate, if it must"
        )


def checked(status: int, content_type: str, body: bytes) -> Reply:
    """Return the reply, unless the service was away.

    Raises:
        NoReply: it was. Another attempt may succeed.
    """
    if status in _AWAY:
        raise NoReply(ConnectionError(f"status {status}"), may_have_run=True)
    return Reply(status, content_type, body)


def failure_of(error: Exception) -> NoReply:
    """Return what a failed attempt means."""
    return NoReply(error, may_have_run=not isinstance(error, _NEVER_SENT))


def check_client(client: Any, wanted: type, other: type, instead: str) -> None:
    """Raise TypeError if ``client`` is no client of the wanted kind."""
    if isinstance(client, other):
        raise TypeError(f"this is an httpx2.{other.__name__}; use {instead}")
    if not isinstance(client, wanted):
        kind = type(client)
        raise TypeError(f"an httpx2.{wanted.__name__} is needed, not {kind.__module__}.{kind.__qualname__}")
