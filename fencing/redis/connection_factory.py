"""A factory of connections with the settings of the user's client, and the mapping of their errors.

It serves threads and asyncio.

The client's address, TLS, credentials, database and Sentinel are used. Its retries are not: our scripts are idempotent,
and the plans repeat them until the caller's deadline.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.redis import quirks
from fencing.redis.calls import Call
from fencing.redis.resp import bulks, script_call

logger = logging.getLogger("fencing")

ASK_POLICY = b"*2\r\n" + bulks(("INFO", "memory"))
"""The question for the policy of eviction, packed."""

SAFE_POLICY = "noeviction"

NOT_READY = (BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
MAY_BE_ANOTHER = (BusyLoadingError, MasterDownError, ReadOnlyError)
"""The errors of a server that is not ready, after which the next connection may find another server."""

REFUSED = (AuthenticationError, AuthorizationError)

REPLIED = (ResponseError, BusyLoadingError, AuthenticationError)
"""The exceptions of redis-py for an error reply. The connection still works."""


class ConnectionFactory:
    """A factory of connections with the client's settings.

    Attributes:
        address: the server's address, for messages.
        location: the address and the database.
        options: the arguments of each connection.
    """

    def __init__(self, client: Any) -> None:
        pool, self._make, options = quirks.pool_of(client)
        self._pool = pool  # referenced here because a Sentinel's connections ask it for the primary's address
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
            protocol=2,  # our replies are the same in 3, but there the server may send other data in between
            health_check_interval=0,  # not needed: an idle connection is checked, and every wait is bounded
            decode_responses=False,
            encoding="utf-8",
            encoding_errors="strict",
        )
        quirks.refuse_maintenance(options)
        self.options = options
        self._policy_asked = False
        self.address = str(options.get("path") or f"{options.get('host', '?')}:{options.get('port', '?')}")
        if service := quirks.sentinel_service(pool):
            self.address = f"the Sentinel service {service!r}"
        self.location = f"{self.address}, database {options.get('db') or 0}"

    def make(self) -> Any:
        """Make a connection that is not open yet."""
        return self._make(**self.options)

    def must_ask_policy(self) -> bool:
        """Return True the first time: the server must be asked once for its policy of eviction."""
        asked, self._policy_asked = self._policy_asked, True
        return not asked

    def check_policy(self, reply: Any) -> None:
        """Warn if the reply to ``ASK_POLICY`` names a policy that evicts locks. A server may refuse to tell."""
        found = re.search(rb"maxmemory_policy:([a-z-]+)", reply) if isinstance(reply, bytes) else None
        policy = SAFE_POLICY if found is None else found[1].decode()
        if policy != SAFE_POLICY:
            logger.warning(
                "Redis at %s may evict locks that are held (maxmemory-policy %s), so that two clients hold one lock; "
                "set maxmemory-policy noeviction",
                self.address,
                policy,
            )

    def limit_seconds(self, seconds: float) -> float:
        """Return the time limit of a wait: at most the client's own time-outs, and always more than 0."""
        return max(min(seconds, self._user_timeout), LEAST_SECONDS)


def command(call: Call, *, by_text: bool = False) -> bytes:
    """Pack a call into bytes; ``by_text``: with the script's text, for a server that does not know the script yet."""
    if not by_text:
        return call.packed
    keys, args = call.keys, call.args
    return script_call(call.script.by_text, len(keys), len(args), bulks((*keys, *args)))


def map_error(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Map an error of redis-py to one of ours: NoReply if another attempt may succeed."""
    if isinstance(error, REFUSED) or is_logged_out(error):
        return CoordinatorUnavailable(
            f"Redis at {address} refused the credentials: {error}; correct the client's username and password",
            address=address,
        )
    if isinstance(error, NOT_READY) or (
        isinstance(error, ResponseError) and str(error).startswith(("BUSY ", "LOADING ", "ERR max number of clients"))
    ):
        return NoReply(error, may_have_run=False)
    if isinstance(error, AskError):
        kind = "MOVED" if isinstance(error, MovedError) else "ASK"
        redirected = CoordinatorUnavailable(
            f"Redis at {address} is a node of a Redis Cluster, and another node has this name's slot ({kind} {error}); "
            f"pass a redis.RedisCluster, or for asyncio a redis.asyncio.RedisCluster",
            address=address,
        )
        redirected.__cause__ = error  # a client of the Cluster follows it
        return redirected
    if isinstance(error, ResponseError):
        hint = ""
        if "WRONGTYPE" in str(error):  # Redis 6.2 has it in the middle of the text
            hint = "; the key of that name has other data: choose another resource name, or another Redis database"
        return CoordinatorUnavailable(
            f"Redis at {address} refused to run a script: {error}; nothing was changed{hint}", address=address
        )
    return NoReply(_without_objects(error), may_have_run=True)


def _without_objects(error: RedisError | OSError) -> RedisError | OSError:
    """Return the error without the long text of redis-py's own objects, such as each Sentinel's pool."""
    text, _, objects = str(error).partition(" : <")
    return redis.ConnectionError(text) if objects else error


def map_connect_error(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Map an error of connecting: nothing was sent, so another attempt may succeed unless the server refused."""
    if isinstance(error, (*REFUSED, *NOT_READY, ResponseError)):
        mapped = map_error(error, address)
        if isinstance(mapped, NoReply) or isinstance(error, REFUSED) or is_logged_out(error):
            return mapped
        return CoordinatorUnavailable(
            f"Redis at {address} refused the connection: {error}; correct the client's settings, "
            f"such as its database number (db)",
            address=address,
        )
    return NoReply(_without_objects(error), may_have_run=False)


def not_of_a_script(reply: object) -> RedisError:
    """Return the error of a reply that no script of ours returns, so that another server or a proxy sent it."""
    return redis.ConnectionError(f"this is not a reply of our scripts: {reply!r:.100}")


def is_logged_out(error: BaseException) -> bool:
    """Return whether the connection has no authenticated user, or no longer. Long commands get another error text."""
    return isinstance(error, AuthenticationError) or "unauthenticated" in str(error)


def must_undo(call: Call, *, interrupted: bool) -> bool:
    """Return whether a call that failed must be followed by its compensation.

    Only the last attempt and an interrupted one must. Otherwise the plan repeats the call under the same token. A
    compensation that arrives after the repetition would free the lock that the repetition was granted.
    """
    return call.may_take and (call.last_attempt or interrupted)
