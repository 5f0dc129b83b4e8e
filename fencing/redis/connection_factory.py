"""A factory of connections with the settings of the user's client, and the mapping of their errors.

It serves threads and asyncio.

The client's address, TLS, credentials, database and Sentinel are used. Its retries are not: our scripts are idempotent,
and the plans repeat them until the caller's deadline.
"""

from __future__ import annotations

import logging
import re
import time
import weakref
from collections.abc import Callable
from functools import partial
from operator import methodcaller
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
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from fencing.kernel import process
from fencing.kernel.effects import run, run_async
from fencing.kernel.errors import CoordinatorUnavailable, NotAcquired
from fencing.kernel.opening import Opener, Opening, Openings
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.redis import quirks
from fencing.redis.calls import Call
from fencing.redis.resp import bulks, script_call
from fencing.redis.sentinel import Address, NamedPrimary, NoPrimary, NoService, Sentinel, Sentinels, ask, ask_async

logger = logging.getLogger("fencing")

PIPELINES = (
    redis.client.Pipeline,
    redis.asyncio.client.Pipeline,
    redis.cluster.ClusterPipeline,
    redis.asyncio.cluster.ClusterPipeline,
)
"""What collects commands. Most of them are subclasses of clients."""

ASK_INFO = b"*1\r\n" + bulks(("INFO",))
"""The question for the server's role and its policy of eviction, packed. Before 7.0 it cannot name two sections."""

SAFE_POLICY = "noeviction"

PATIENCE_SECONDS = 1.0
"""How long a coordinator that has never found a primary looks for one, before it says that a setting is wrong."""

IS_REPLICA = "the server is a replica, which takes no locks"

MAX_CONNECTIONS = 16
"""Per coordinator for threads; with asyncio, those of each event loop that serve one call at a time. A call uses one
for a round trip, so a few serve hundreds of threads; the others wait for one."""

IDLE_SECONDS = 1.0
"""A connection that was idle for longer is checked before it is used: the server may have closed it."""

CONNECT_SECONDS = 10.0
FAILOVER_CONNECT_SECONDS = 3.0

NOT_READY = (BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
MAY_BE_ANOTHER = (BusyLoadingError, MasterDownError, ReadOnlyError)
"""The errors of a server that is not ready, after which the next connection may find another server."""

TIMEOUTS = (TimeoutError, redis.TimeoutError)

REFUSED = (AuthenticationError, AuthorizationError)


class ConnectionFactory:
    """A factory of connections with the client's settings.

    Args:
        client: the user's.
        openings: those of the coordinator, if it has several servers.
        adopt: gives an open connection of this factory that came too late for its call to a pool: see
            :class:`Opener`.

    Attributes:
        address: the server's address, for messages.
        location: the address and the database.
        options: the arguments of each connection.
        primary: the address that Sentinels named last; None: none was asked for yet, or there are no Sentinels.
        left_at: when a connection that was open was last left, because the server closed it or is no primary; by the
            clock ``time.monotonic``.
        on_move: a weak reference to what is called with the address when Sentinels name another one than before.
    """

    primary: Address | None = None
    left_at = 0.0
    on_move: weakref.WeakMethod[Callable[[Address], None]] | None = None

    def __init__(
        self,
        client: Any,
        openings: Openings | None = None,
        adopt: Callable[[ConnectionFactory, Any], bool] | None = None,
    ) -> None:
        pool, self._make, options = quirks.pool_of(client)
        self._pool = pool  # referenced here because a Sentinel's connections ask it for the primary's address
        self._user_timeout = min(
            (seconds for seconds in (options.get("socket_timeout"), options.get("socket_connect_timeout")) if seconds),
            default=float("inf"),
        )
        self._asynchronous = asynchronous = isinstance(client, redis.asyncio.Redis)
        quirks.require_connections(asynchronous=asynchronous)
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
        self._found = False  # whether this was a primary once, or did not tell
        self._missing_since: float | None = None
        self.address = str(options.get("path") or f"{options.get('host', '?')}:{options.get('port', '?')}")
        self._sentinels: Sentinels | None = None
        if service := quirks.sentinel_service(pool):
            self.address = f"the Sentinel service {service!r}"
            self._sentinels = _sentinels_of(pool, service)
        self.location = f"{self.address}, database {options.get('db') or 0}"
        self._openings, self._adopt = openings, adopt
        self._opener = self._new_opener(None)

    def make(self, primary: Address | None = None) -> Any:
        """Make a connection that is not open yet; ``primary``: what Sentinels have named."""
        options = self.options
        if primary is not None and self._sentinels is not None:
            named = NamedPrimary(self._sentinels.service, primary, asynchronous=self._asynchronous)
            options = {**options, "connection_pool": named}
        return self._make(**options)

    def open(self, seconds: float) -> Any:
        """Return an open connection of redis-py, for threads.

        Args:
            seconds: how long to wait at most. Sentinels are asked for the primary within this time.

        Raises:
            NoReply, CoordinatorUnavailable: they name none.
            RedisError, OSError: there is no connection to the server.
        """
        started = time.monotonic()
        if self._sentinels is not None:
            try:
                self._move_to(run(self._sentinels.plan_find(seconds), ask))
            except (NoPrimary, NoService) as error:
                raise self._not_named(error, started) from error
        left = max(started + seconds - time.monotonic(), LEAST_SECONDS)
        return self._opener.open(left, self.connect_seconds)

    def connect(self, opening: Opening[Any]) -> Any:
        """Open a connection, on a helper thread of an opener."""
        connection = self.make(self.primary)
        opening.breaks_off_by(partial(quirks.shut_down, connection))
        left = max(opening.until - process.now(), LEAST_SECONDS)
        quirks.limit_connecting(connection, left, opening.left)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _new_opener(self, primary: Address | None) -> Opener[Any]:
        address = self.address if primary is None else "{}:{}".format(*primary)
        return Opener(address, self.connect, methodcaller("disconnect"), self._offer, self._openings)

    def _offer(self, connection: Any) -> bool:
        return self._adopt is not None and self._adopt(self, connection)

    async def find_async(self, seconds: float) -> Any:
        """Make a connection that is not open yet, for asyncio. Sentinels are asked as in :meth:`open`."""
        if self._sentinels is None:
            return self.make()
        started = time.monotonic()
        try:
            self._move_to(await run_async(self._sentinels.plan_find(seconds), ask_async))
        except (NoPrimary, NoService) as error:
            raise self._not_named(error, started) from error
        return self.make(self.primary)

    def _move_to(self, primary: Address) -> None:
        before, self.primary = self.primary, primary
        if before != primary:
            self._opener.retire()  # what it opens is to the old primary
            self._opener = self._new_opener(primary)
        moved = None if before in (None, primary) or self.on_move is None else self.on_move()
        if moved is not None:
            moved(primary)

    def leave(self, error: BaseException) -> None:
        """Note the error of a connection that was open. After a time-out, the server may still be the same one."""
        if not isinstance(error, TIMEOUTS):
            self.left_at = time.monotonic()

    @property
    def connect_seconds(self) -> float:
        """The time limit of connecting, if no call has its own. Sentinels may name another server meanwhile."""
        return self.limit_seconds(CONNECT_SECONDS if self._sentinels is None else FAILOVER_CONNECT_SECONDS)

    def must_ask_info(self) -> bool:
        """Return whether the server must be asked ``ASK_INFO``: until it was a primary once."""
        return not self._found

    def check_info(self, reply: Any) -> None:
        """Check the reply to ``ASK_INFO``. A server may refuse to tell.

        Raises:
            NoReply, CoordinatorUnavailable: it is a replica.
        """
        if isinstance(reply, bytes) and re.search(rb"^role:slave", reply, re.MULTILINE):
            raise self._misplaced(redis.ReadOnlyError(IS_REPLICA), time.monotonic())
        self._found = True
        found = re.search(rb"maxmemory_policy:([a-z-]+)", reply) if isinstance(reply, bytes) else None
        policy = SAFE_POLICY if found is None else found[1].decode()
        if policy != SAFE_POLICY:
            logger.warning(
                "Redis at %s may evict locks that are held (maxmemory-policy %s), so that two clients hold one lock; "
                "set maxmemory-policy noeviction",
                self.address,
                policy,
            )

    def _not_named(self, error: NoPrimary | NoService, asked_at: float) -> NoReply | CoordinatorUnavailable:
        return NoReply(error, may_have_run=False) if isinstance(error, NoPrimary) else self._misplaced(error, asked_at)

    def _misplaced(self, error: RedisError, asked_at: float) -> NoReply | CoordinatorUnavailable:
        """Map an error of a wrong setting, or of a failover. It is a failover if there was a primary before."""
        if self._missing_since is None:
            self._missing_since = asked_at
        if self._found or time.monotonic() - self._missing_since < PATIENCE_SECONDS:
            return NoReply(error, may_have_run=False, is_answer=isinstance(error, ReadOnlyError))
        return CoordinatorUnavailable(
            f"no lock can be taken from Redis at {self.address}: {error}; correct the client's address",
            address=self.address,
        )

    def limit_seconds(self, seconds: float) -> float:
        """Return the time limit of a wait: at most the client's own time-outs, and always more than 0."""
        return max(min(seconds, self._user_timeout), LEAST_SECONDS)


def _sentinels_of(pool: Any, service: str) -> Sentinels | None:
    """Return the Sentinels that a client's pool asks."""
    if not pool.is_master:
        raise ValueError(
            f"the client is for replicas of {service!r}, which take no locks; pass what "
            f"sentinel.master_for(...) returns"
        )
    manager = pool.sentinel_manager
    factories = [ConnectionFactory(client) for client in manager.sentinels]
    sentinels = [Sentinel(factory.address, factory.make, factory.open) for factory in factories]
    return Sentinels(service, sentinels, manager.min_other_sentinels, quirks.forced_host(manager))


def command(call: Call, *, by_text: bool = False) -> bytes:
    """Pack a call into bytes; ``by_text``: with the script's text, for a server that does not know the script yet."""
    if not by_text:
        return call.packed
    keys, args = call.keys, call.args
    return script_call(call.script.by_text, len(keys), len(args), bulks((*keys, *args)))


# Where Redis ran it, which helps nobody: as Redis 7 and as Redis 6.2 say it. Valkey 9.1 leaves the hash out.
_SCRIPT = re.compile(
    r" script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.?|"
    r"Error running script \(call to f_[0-9a-f]{40}\): @user_script:\s*\d+: "
)

_NO_RIGHT = "; give the client's user the permissions that the documentation names; ACL LOG shows the missing one"
_NO_MEMORY = "; free memory, or raise its maxmemory, then retry"
_MAY_PASS = ("", _NO_MEMORY)
"""The hints of a refusal after which a retry may help."""

_HINTS = {  # Redis 6.2 has such words in the middle of the text
    "WRONGTYPE": "; the key of that name has other data: choose another resource name, or another Redis database",
    "OOM ": _NO_MEMORY,
    "no permissions": _NO_RIGHT,  # of a command
    "can't run this": _NO_RIGHT,  # within a script
    "No permissions": _NO_RIGHT,  # to a key
    "can't access": _NO_RIGHT,
    "FENCING the ": "; it is damaged, or of a newer version of this library: then upgrade this program",
}


def hint_of_valkey(client: object, wanted: str) -> str:
    """Return what to pass instead of a client, or a class, of Valkey's own library; empty: it is neither."""
    kind = client if isinstance(client, type) else type(client)
    if kind.__module__.partition(".")[0] != "valkey":
        return ""
    instead = f"{wanted}{'Cluster' if 'Cluster' in kind.__name__ else ''}(host=..., port=...)"
    if kind.__name__ == "Sentinel":
        instead = f"{wanted.removesuffix('.Redis')}.sentinel.Sentinel(...).master_for(...)"
    return f"; redis-py works with a Valkey server: write {instead}"


def map_error(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Map an error of redis-py to one of ours: NoReply if another attempt may succeed."""
    if isinstance(error, REFUSED) or is_logged_out(error):
        return CoordinatorUnavailable(
            f"Redis at {address} refused the credentials: {error}; correct the client's username and password",
            address=address,
            refused=True,
        )
    if isinstance(error, ReadOnlyError):
        return NoReply(redis.ReadOnlyError(IS_REPLICA), may_have_run=False, is_answer=True)
    if isinstance(error, NOT_READY) or (
        isinstance(error, ResponseError) and str(error).startswith(("BUSY ", "LOADING ", "ERR max number of clients"))
    ):
        return NoReply(error, may_have_run=False, is_answer=True)
    if isinstance(error, AskError):
        kind = "MOVED" if isinstance(error, MovedError) else "ASK"
        redirected = CoordinatorUnavailable(
            f"Redis at {address} is a node of a Redis Cluster, and another node has this name's slot ({kind} {error}); "
            f"pass a redis.RedisCluster, or for asyncio a redis.asyncio.RedisCluster",
            address=address,
            refused=True,
        )
        redirected.__cause__ = error  # a client of the Cluster follows it
        return redirected
    if isinstance(error, ResponseError):
        text = _SCRIPT.sub("", str(error))
        hint = next((hint for words, hint in _HINTS.items() if words in text), "")
        refused = CoordinatorUnavailable(
            f"Redis at {address} refused the request: {text}{hint}", address=address, refused=hint not in _MAY_PASS
        )
        if isinstance(error, NoPermissionError):
            refused.__cause__ = error  # a listing leaves out what its user may not read
        return refused
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
            refused=True,
        )
    return NoReply(_without_objects(error), may_have_run=False)


def map_function_error(error: Exception) -> NoReply:
    """Map the error of a user's function, such as a ``credential_provider``: it concerns this one server."""
    mapped = NoReply(redis.ConnectionError(f"opening a connection failed with {error!r:.200}"), may_have_run=False)
    mapped.__cause__ = error
    return mapped


def not_of_a_script(reply: object) -> RedisError:
    """Return the error of a reply that no script of ours returns, so that another server or a proxy sent it."""
    return redis.ConnectionError(f"this is not a reply of our scripts: {reply!r:.100}")


def is_logged_out(error: BaseException) -> bool:
    """Return whether the connection has no authenticated user, or no longer. Long commands get another error text."""
    return isinstance(error, AuthenticationError) or "unauthenticated" in str(error)


def unreplicated(call: Call, replicas: int, seconds: float) -> NotAcquired:
    """Return the error of a grant that too few replicas have; ``seconds``: how long the call took."""
    return NotAcquired(resource=call.keys[0], reason="unreplicated", waited=seconds, replicas=replicas)


def not_confirmed() -> NoReply:
    """Return the error of a connection that broke before the replicas' answer: a new one knows of no write."""
    return NoReply(redis.ConnectionError("the connection broke before the replicas confirmed"), may_have_run=True)


def must_undo(call: Call, seconds: float, *, interrupted: bool) -> bool:
    """Return whether a call without a reply must be followed by its compensation.

    Only an interrupted call must, and the last attempt when all of its time is up. Otherwise the plan repeats the call
    under the same token. A compensation that arrives after the repetition would free the lock that the repetition was
    granted.

    Args:
        call: the call.
        seconds: since it began. It may have ended before its time: by the client's ``socket_timeout``, or a broken
            connection.
        interrupted: whether its caller was interrupted.
    """
    return call.may_take and (interrupted or (call.last_attempt and seconds >= call.timeout))
