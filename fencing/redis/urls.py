"""The URLs of Redis, and the clients that they name: see docs/guide/urls.md."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.sentinel

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.locks.urls import ENCODE, Url, check_seconds, parse, redacted, refuse_option, scheme_of

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379

_SUCH_AS = {
    "": "redis://localhost:6379/0",
    "cluster": "redis+cluster://host1:6379,host2:6379",
    "sentinel": "redis+sentinel://host1:26379,host2:26379/service/0",
}
_PLACE = ("host", "port", "path")
_OF_SENTINEL = ("sentinel_username", "sentinel_password")

_SECONDS = ("socket_timeout", "socket_connect_timeout")
_COUNTS = ("db", "max_connections", "health_check_interval", "protocol")
_SWITCHES = ("socket_keepalive", "retry_on_timeout", "ssl_check_hostname")
_TEXTS = ("username", "password", "client_name")
_OF_TLS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs"),
    *("ssl_ciphers", "ssl_check_hostname"),
)
_OPTIONS = (*_SECONDS, *_COUNTS, "socket_keepalive", "retry_on_timeout", *_TEXTS)
"""The options of redis-py that a text can set. The others are objects, and redis-py would take a text for one."""

_WORDS = ("1", "0", "true", "false", "yes", "no")


def connect(url: str, coordinator: Any, options: dict[str, Any], *, asynchronous: bool) -> Any:
    """Return a coordinator of this class for a URL: see :func:`client_of`."""
    return coordinator(client_of(url, asynchronous=asynchronous), **options)


def client_of(url: str, *, asynchronous: bool) -> Any:
    """Return the client of a URL.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` as redis-py has them; with ``+cluster`` or ``+sentinel`` behind
            the scheme, several hosts. Its options are those of redis-py.
        asynchronous: whether it is one of ``redis.asyncio``.

    Raises:
        TypeError, ValueError: the URL is wrong.
        CoordinatorUnavailable: no node of a Cluster answers.
    """
    library: Any = redis.asyncio if asynchronous else redis
    secure, _, kind = scheme_of(url).partition("+")
    if secure == "unix":
        return _of_socket(url, library)
    if kind not in _SUCH_AS:
        raise ValueError(
            f"{secure}+{kind}:// is no scheme of Redis; write redis://, redis+cluster:// or redis+sentinel://"
        )
    parsed = parse(url, DEFAULT_SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT, such_as=_SUCH_AS[kind])
    for name in _PLACE:
        if name in parsed.options:  # redis-py would take it, in place of a part that is not there
            raise ValueError(
                f"a URL of {parsed.scheme}:// names its server in front of its options, not by the option {name!r}"
            )
    _check_options(parsed.scheme, parsed.options, _OF_SENTINEL if kind == "sentinel" else ())
    if kind == "sentinel":
        return _master(parsed, secure == "rediss", library)
    database = _database(parsed, parsed.path)
    if kind == "cluster":
        return _cluster(parsed, secure == "rediss", database, library)
    if len(parsed.hosts) > 1:
        raise ValueError(
            f"a URL of {secure}:// names one server, not {len(parsed.hosts)}: write {secure}+cluster:// or "
            f"{secure}+sentinel:// for several, or one URL for each node of Redlock"
        )
    return _one(url, library)


def _of_socket(url: str, library: Any) -> Any:
    parts = _split(url)
    if host := parts.netloc.rpartition("@")[2]:
        path = f"unix:///{host}{parts.path}"
        raise ValueError(
            f"{redacted(url)!r} has {host!r} for a host, and a socket has none: three slashes begin its path, as in "
            f"{path!r}"
        )
    _check_options("unix", dict(parse_qsl(parts.query, keep_blank_values=True)))
    return _one(url, library)


def _one(url: str, library: Any) -> Any:
    _split(url)
    return _usable(library.Redis.from_url(url))


def _split(url: str) -> Any:
    try:
        return urlsplit(url)
    except ValueError:  # it has the whole password
        raise ValueError(f"{redacted(url)!r} is no URL; {ENCODE}") from None


def _check_options(scheme: str, options: dict[str, str], more: tuple[str, ...] = ()) -> None:
    """Raise ValueError for an option that we do not know, or a value that it cannot have."""
    known = (*_OPTIONS, *more, *(_OF_TLS if scheme.startswith("rediss") else ()))
    for name, value in options.items():
        if name in _OF_TLS and name not in known:
            raise ValueError(
                f"a URL of {scheme}:// has no option {name!r}, which is of TLS: write rediss in its scheme"
            )
        if name not in known:
            refuse_option(scheme, name, known)
        if name in _SECONDS:
            check_seconds(scheme, name, value)
        elif name in _COUNTS and not re.fullmatch(r"[0-9]{1,9}", value, re.ASCII):
            raise ValueError(f"the option {name!r} of a URL of {scheme}:// is a whole number, not {value!r:.100}")
        elif name in _SWITCHES and value.lower() not in _WORDS:
            raise ValueError(
                f"the option {name!r} of a URL of {scheme}:// is one of {', '.join(_WORDS)}, not {value!r:.100}"
            )


def _cluster(parsed: Url, secure: bool, database: int, library: Any) -> Any:
    if database:
        raise ValueError(f"a Redis Cluster has the database 0 alone, not {database}")
    options = {**_options(parsed, 0), "ssl": secure}
    del options["db"]
    hosts = [library.cluster.ClusterNode(host, port) for host, port in parsed.hosts]
    try:
        return library.RedisCluster(startup_nodes=hosts, **options)
    except TypeError as error:
        raise ValueError(f"a URL has an option that redis-py does not know: {error}") from None
    except (redis.RedisError, redis.exceptions.RedisClusterException) as error:  # the second is not the first
        places = ", ".join(f"{host}:{port}" for host, port in parsed.hosts)
        raise CoordinatorUnavailable(f"no node of the Redis Cluster at {places} answers: {error}") from error


def _master(parsed: Url, secure: bool, library: Any) -> Any:
    service, _, database = parsed.path.partition("/")
    if not service:
        raise ValueError(f"a URL of Sentinels names the service, as in {_SUCH_AS['sentinel']!r}")
    named = [name for name in _OF_SENTINEL if name in parsed.options]
    of_sentinel: dict[str, Any] = {name.removeprefix("sentinel_"): parsed.options[name] for name in named}
    options = _options(parsed, _database(parsed, database))
    if secure:
        of_sentinel |= {"ssl": True, **{name: value for name, value in options.items() if name.startswith("ssl_")}}
        options["ssl"] = True
    try:
        sentinel = library.sentinel.Sentinel(list(parsed.hosts), sentinel_kwargs=of_sentinel, **options)
    except TypeError as error:
        raise ValueError(f"a URL has an option that redis-py does not know: {error}") from None
    return _usable(sentinel.master_for(service))


def _options(parsed: Url, database: int) -> dict[str, Any]:
    """Return the options of redis-py, in its own types."""
    query = "&".join(f"{name}={quote(value)}" for name, value in parsed.options.items() if name not in _OF_SENTINEL)
    options: dict[str, Any] = redis.connection.parse_url(f"redis://?{query}")  # type: ignore[no-untyped-call]
    options.setdefault("db", database)
    account = {"username": parsed.username, "password": parsed.password}
    return options | {name: value for name, value in account.items() if value is not None}


def _database(parsed: Url, path: str) -> int:
    if not re.fullmatch(r"[0-9]{0,9}", path, re.ASCII):
        raise ValueError(f"the path of a URL of {parsed.scheme}:// is the number of a database, not {path!r:.100}")
    return int(path or 0)


def _usable(client: Any) -> Any:
    """Return the client, if its connections take its options."""
    try:
        client.connection_pool.make_connection()  # without connecting
    except TypeError as error:
        raise ValueError(f"a URL has an option that redis-py does not know: {error}") from None
    return client
