"""How connections like the user's client's are made, and what their errors mean: shared by threads and asyncio.

The client's address, TLS, credentials, database and Sentinel are kept. Its retries are not: our scripts are idempotent,
and the plans repeat them under the caller's deadline.
"""

from __future__ import annotations

from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import NoReply
from fencing.redis import quirks
from fencing.redis.calls import Call
from fencing.redis.resp import bulks, script_call

LEAST_SECONDS = 0.001

NOT_READY = (BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
REFUSED = (AuthenticationError, AuthorizationError)

REPLIED = (ResponseError, BusyLoadingError, AuthenticationError)
"""What redis-py raises for a reply that is an error. The connection is in order."""


class ConnectionFactory:
    """Makes connections like the client's.

    Attributes:
        address: where they lead, for messages.
        options: what they are made with.
    """

    def __init__(self, client: Any) -> None:
        pool, self._make, options = quirks.pool_of(client)
        self._pool = pool  # kept: a Sentinel's connections ask it for the primary's address
        self._user_timeout = min(
            (seconds for seconds in (options.get("socket_timeout"), options.get("socket_connect_timeout")) if seconds),
            default=float("inf"),
        )
        asynchronous = isinstance(client, redis.asyncio.Redis)
        options.update(
            socket_timeout=None,  # each call sets its own
            socket_connect_timeout=None,
            retry=(AsyncRetry if asynchronous else Retry)(NoBackoff(), 0),
            retry_on_timeout=False,
            retry_on_error=[],
            protocol=2,  # our replies are the same in 3, where others might come in between
            health_check_interval=0,  # a connection that was idle is looked at, and every wait is bounded
            decode_responses=False,
            encoding="utf-8",
            encoding_errors="strict",
        )
        quirks.refuse_maintenance(options)
        self.options = options
        self.address = str(options.get("path") or f"{options.get('host', '?')}:{options.get('port', '?')}")
        if service := quirks.sentinel_service(pool):
            self.address = f"the Sentinel service {service!r}"

    def make(self) -> Any:
        """Make a connection that is not open yet."""
        return self._make(**self.options)

    def limited(self, seconds: float) -> float:
        """Return how many seconds a wait may take at most, given the client's own time-outs, and never none."""
        return max(min(seconds, self._user_timeout), LEAST_SECONDS)


def command(call: Call, *, whole: bool = False) -> bytes:
    """Pack a call into bytes; whole: with the script's text, for a server that does not know it yet."""
    if call.packed is not None and not whole:
        return call.packed
    script = call.script.by_text if whole else call.script.by_sha
    return script_call(script, len(call.keys), len(call.args)) + bulks((*call.keys, *call.args))


def map_error(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Map an error of redis-py to one of ours: NoReply where another attempt is worth it."""
    if isinstance(error, REFUSED):
        return CoordinatorUnavailable(
            f"Redis at {address} refused the credentials: {error}; correct the client's username and password",
            address=address,
        )
    if isinstance(error, NOT_READY) or (
        isinstance(error, ResponseError) and str(error).startswith(("BUSY ", "LOADING ", "ERR max number of clients"))
    ):
        return NoReply(error, may_have_run=False)
    if isinstance(error, ResponseError):
        hint = ""
        if "WRONGTYPE" in str(error):  # Redis 6.2 says so in the middle
            hint = "; the key of that name holds other data: choose another resource name, or another Redis database"
        return CoordinatorUnavailable(
            f"Redis at {address} refused to run a script: {error}; nothing was changed{hint}", address=address
        )
    return NoReply(error, may_have_run=True)


def map_connect_error(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Map an error of connecting: nothing was sent, so another attempt is worth it unless the server has refused."""
    if isinstance(error, REFUSED + NOT_READY):
        return map_error(error, address)
    return NoReply(error, may_have_run=False)


def is_logged_out(error: BaseException) -> bool:
    """Return whether the server knows no user here, or no longer. It refuses long commands in other words."""
    return isinstance(error, AuthenticationError) or "unauthenticated" in str(error)


def must_undo(call: Call, *, interrupted: bool) -> bool:
    """Return whether a call that failed must be followed by its compensation.

    Only the last attempt and an interrupted one must. Otherwise the plan repeats the call under the same token, and a
    compensation that arrives after the repetition would free what that was granted.
    """
    return call.may_take is not None and (call.last_attempt or interrupted)
