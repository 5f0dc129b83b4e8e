"""How connections like the user's client's are made, and what redis-py's errors mean. What both colours share.

The client's address, TLS, credentials, database and Sentinel are kept. Its retries are not: our scripts are
idempotent, and the plans repeat them under the caller's deadline.
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
from fencing.redis.calls import Call
from fencing.redis.wire import bulks, script_call

__all__ = [
    "NOT_READY",
    "REFUSED",
    "Blueprint",
    "command",
    "logged_out",
    "no_connection",
    "nobody_will_ask_again",
    "translated",
]

NOT_READY = (BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
REFUSED = (AuthenticationError, AuthorizationError)


class Blueprint:
    """How to make connections like the client's."""

    def __init__(self, client: Any) -> None:
        self.pool = client.connection_pool  # kept: a Sentinel's connections ask it for the primary's address
        options = dict(self.pool.connection_kwargs)
        self.user_timeout = min(
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
        options.pop("maint_notifications_pool_handler", None)  # the pool's own; it would keep track of our connections
        if "maint_notifications_config" in options:
            from redis.maint_notifications import MaintNotificationsConfig  # not in older versions of redis-py

            options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
        self.options = options
        self.address = str(options.get("path") or f"{options.get('host', '?')}:{options.get('port', '?')}")
        if "service_name" in vars(self.pool):
            self.address = f"the Sentinel service {self.pool.service_name!r}"

    def make(self) -> Any:
        return self.pool.connection_class(**self.options)


def command(call: Call, *, whole: bool = False) -> bytes:
    """The call as bytes to send; whole: with the script's text, for a server that does not know it yet."""
    if call.packed is not None and not whole:
        return call.packed
    script = call.script.by_text if whole else call.script.by_sha
    return script_call(script, len(call.keys), len(call.args)) + bulks((*call.keys, *call.args))


def translated(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """An error of redis-py's as one of ours: worth another attempt, or not."""
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


def logged_out(error: BaseException) -> bool:
    """Whether the server does not, or no longer, know who is asking. Long commands it then refuses with other words."""
    return isinstance(error, AuthenticationError) or "unauthenticated" in str(error)


def no_connection(error: Exception, address: str) -> NoReply | CoordinatorUnavailable:
    """What failed while connecting: nothing was sent, so another attempt is worth it, unless the server has refused."""
    if isinstance(error, REFUSED + NOT_READY):
        return translated(error, address)
    return NoReply(error, may_have_run=False)


def nobody_will_ask_again(call: Call, interrupted: bool) -> bool:
    """After a failure: whether what the call may have taken is to be given back.

    Only then: the plan repeats a failed call under the same token, and an undo that arrives after the repetition would
    free what that was granted.
    """
    return call.undo is not None and (call.last or interrupted)
