"""The kinds of coordinators, by the classes of their clients and by the schemes of their URLs.

Each kind is registered here, ours and those of others, in the same way. A registration names its classes and imports
nothing: that happens when a client of the service is first used.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fencing.locks.urls import scheme_of

if TYPE_CHECKING:
    from fencing.locks.coordinator import CoordinatorBase

ENTRY_POINTS = "fencing.coordinators"
"""The group of entry points that packages name whose modules register a kind. They are loaded when a client or a scheme
is asked for that nobody has registered."""


class Registration(NamedTuple):
    """A kind of coordinator, as :func:`register` got it."""

    coordinator: str | None
    async_coordinator: str | None
    such_as: str
    async_such_as: str
    connect: str | None = None

    def load(self, asynchronous: bool) -> type[CoordinatorBase] | None:
        """Import the class of this side, and return it; None: there is none."""
        home = self.async_coordinator if asynchronous else self.coordinator
        found: type[CoordinatorBase] | None = None if home is None else _found_at(home)
        return found


@cache
def _found_at(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(module), name)


_clients: dict[str, dict[str, Registration]] = {}  # by the first part of the name, and by the name
_schemes: dict[str, Registration] = {}


def register(
    *clients: str,
    coordinator: str | None = None,
    async_coordinator: str | None = None,
    schemes: Iterable[str] = (),
    connect: str | None = None,
    such_as: str = "",
    async_such_as: str = "",
) -> None:
    """Register a kind of coordinator: whoever makes a lock from such a client, or names such a URL, gets it.

    The same registration may be repeated. Call it when your package is imported. Users need not import it themselves if
    it has an entry point in the group ``fencing.coordinators`` that names the module which calls this.

    Args:
        clients: the full names of classes of clients, or of the modules or packages that have them, such as
            ``"kazoo.client.KazooClient"``. The longest name that fits a class or one of its bases counts.
        coordinator: its class for threads, such as ``"my_package.coordinator:MyCoordinator"``; None: there is none. It
            takes a client as its only argument without a default.
        async_coordinator: its class for asyncio, likewise.
        schemes: of its URLs, such as ``"etcd"``. A scheme also stands for those that follow it with a plus sign.
        connect: the function that makes a coordinator of a URL, such as ``"my_package.urls:connect"``. It takes the
            URL, the class and the dictionary of the coordinator's options, and ``asynchronous=``.
        such_as: how error messages name a client, such as ``"a KazooClient"``.
        async_such_as: the same for asyncio.

    Raises:
        TypeError, ValueError: an argument has a wrong form, or another kind is registered for that. Nothing was
            registered.
    """
    schemes = _check_registered(clients, coordinator, async_coordinator, schemes, connect)
    made = Registration(coordinator, async_coordinator, such_as, async_such_as or such_as, connect)
    for name in clients:
        _check_free(name, _clients.get(name.partition(".")[0], {}).get(name), made)
    for scheme in schemes:
        _check_free(scheme, _schemes.get(scheme), made)
    for name in clients:
        _clients.setdefault(name.partition(".")[0], {})[name] = made
    _schemes.update(dict.fromkeys(schemes, made))


def _check_registered(
    clients: tuple[str, ...],
    coordinator: str | None,
    async_coordinator: str | None,
    schemes: Iterable[str],
    connect: str | None,
) -> tuple[str, ...]:
    if isinstance(schemes, str):
        raise TypeError(f"schemes must be several texts, not one; write schemes=[{schemes!r}]")
    schemes = tuple(schemes)
    if coordinator is None and async_coordinator is None:
        raise TypeError("a registration needs a coordinator, an async_coordinator or both")
    if not clients and not schemes:
        raise TypeError("a registration needs the class of a client, a scheme or both")
    if (connect is None) is not (not schemes):
        raise TypeError("schemes and connect= belong together: pass both, or none")
    for form, texts in (
        (r"[^\W\d]\w*(\.[^\W\d]\w*)*", clients),
        (r"[\w.]+:\w+", [each for each in (coordinator, async_coordinator, connect) if each is not None]),
        (r"[a-z][a-z0-9.+-]*", schemes),
    ):
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(
                    f"a registration takes names, not {text!r}; so nothing is imported before its first use"
                )
            if not re.fullmatch(form, text):
                raise ValueError(
                    f"{text!r} is no such name; write 'package.Client', 'package.module:Class' or 'scheme'"
                )
    return schemes


def _check_free(name: str, registered: Registration | None, made: Registration) -> None:
    if registered is not None and registered != made:
        of = registered.coordinator or registered.async_coordinator
        raise ValueError(f"{name!r} is registered already, for {of}; remove one of the registrations")


register(
    "redis",
    coordinator="fencing.redis.coordinator:RedisCoordinator",
    async_coordinator="fencing.redis.coordinator_async:AsyncRedisCoordinator",
    schemes=[
        *("redis", "redis+cluster", "redis+sentinel"),
        *("rediss", "rediss+cluster", "rediss+sentinel"),
        "unix",
    ],
    connect="fencing.redis.urls:connect",
    such_as="a redis.Redis",
    async_such_as="a redis.asyncio.Redis",
)
register(
    "sqlalchemy",
    coordinator="fencing.sql.coordinator:SQLCoordinator",
    async_coordinator="fencing.sql.coordinator_async:AsyncSQLCoordinator",
    schemes=["postgresql", "postgres", "mysql", "mariadb", "sqlite"],
    connect="fencing.sql.urls:connect",
    such_as="an engine of SQLAlchemy",
)
register(
    "kazoo.client",
    coordinator="fencing.zookeeper.coordinator:ZooKeeperCoordinator",
    async_coordinator="fencing.zookeeper.coordinator_async:AsyncZooKeeperCoordinator",
    schemes=["zookeeper"],
    connect="fencing.zookeeper.urls:connect",
    such_as="a kazoo.client.KazooClient",
)
register(
    coordinator="fencing.etcd.coordinator:EtcdCoordinator",
    async_coordinator="fencing.etcd.coordinator_async:AsyncEtcdCoordinator",
    schemes=["etcd", "etcds"],
    connect="fencing.etcd.urls:connect",
)


def connect(url: str, options: dict[str, Any], *, asynchronous: bool) -> CoordinatorBase:
    """Return a new coordinator of the kind that has registered the URL's scheme, such as ``"postgresql+psycopg"``.

    Raises:
        ValueError: nobody has registered it, or not for this side; or the URL is wrong. The message has the schemes
            that there are.
    """
    scheme = scheme_of(url)
    for name in (scheme, scheme.partition("+")[0]):
        if name not in _schemes:
            _load_entry_points()
        if name in _schemes:
            found = _schemes[name].load(asynchronous)
            if found is None:
                raise ValueError(f"{scheme!r} has no coordinator for {'asyncio' if asynchronous else 'threads'}")
            home = _schemes[name].connect
            assert home is not None
            made: CoordinatorBase = _found_at(home)(url, found, options, asynchronous=asynchronous)
            return made
    raise ValueError(f"{scheme!r} is no scheme of a coordinator; those are {', '.join(sorted(_schemes))}")


def registration_of(client: object) -> Registration | None:
    """Return the registration of a client's class; None: there is none."""
    found = _registered(type(client))
    if found is None and not isinstance(client, type):
        _load_entry_points()
        found = _registered(type(client))
    return found


def clients_in_words(*, asynchronous: bool) -> str:
    """Return what may be given as a client, for an error message."""
    kinds = (of for names in _clients.values() for of in names.values())
    words = dict.fromkeys(of.async_such_as if asynchronous else of.such_as for of in kinds)
    *others, last = filter(None, words)
    return f"{', '.join(others)} or {last}" if others else last


def _registered(kind: type) -> Registration | None:
    for each in kind.__mro__:
        first = each.__module__.partition(".")[0]
        names = _clients.get(first)
        if names is None:
            continue
        if len(names) == 1 and first in names:
            return names[first]
        full = f"{each.__module__}.{each.__qualname__}."
        fitting = [name for name in names if full.startswith(f"{name}.")]
        if fitting:
            return names[max(fitting, key=len)]
    return None


_loaded: set[str] = set()


def _load_entry_points() -> None:
    """Import the modules that other packages name, once."""
    if ENTRY_POINTS in _loaded:
        return
    import importlib.metadata

    for each in importlib.metadata.entry_points(group=ENTRY_POINTS):
        each.load()
    _loaded.add(ENTRY_POINTS)
