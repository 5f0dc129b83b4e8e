"""What the object store servers have in common: buckets, and obstore stores on them."""

import itertools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from examples.servers.local import Host

if TYPE_CHECKING:  # obstore comes with an extra of its own
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_TIMEOUT = 60.0

S = TypeVar("S", bound="ObjectServer")


class Between(Protocol):
    """A proxy: the TCP one or the HTTP one."""

    def url(self, url: str) -> str: ...


class ObjectServer(ABC):
    """A running object store on 127.0.0.1. A context manager; `close` ends it and removes its data."""

    def __init__(self, url: str, host: Host, source: str) -> None:
        self._host = host
        self._numbers = itertools.count(1)
        self.unsigned: dict[str, Any] = {}
        """Options of a `store` whose headers are not signed, so that a proxy may change them. No deleting on Azure."""
        self.url = url
        self.source = source
        parts = urlsplit(url)
        self.host: str = parts.hostname or "127.0.0.1"
        self.port: int = parts.port or 80

    @property
    def pid(self) -> int | None:
        """The process, or None for a stopped one."""
        return self._host.pid

    def new_bucket(self) -> str:
        """Create an empty bucket (on Azure: a container); returns its name."""
        name = f"bucket-{next(self._numbers)}"
        self._create(name)
        return name

    def store(
        self,
        *,
        bucket: str | None = None,
        via: Between | None = None,
        client_options: "ClientConfig | None" = None,
        retry_config: "RetryConfig | None" = None,
        **more: Any,
    ) -> "ObjectStore":
        """An obstore store on `bucket`, or on a new one. Each call makes a client of its own.

        `via`: a proxy that its requests go through. The rest as for obstore's own stores, with their defaults;
        plain HTTP is allowed.
        """
        name = self.new_bucket() if bucket is None else bucket
        url = self.url if via is None else via.url(self.url)
        options: dict[str, Any] = {**more, "client_options": {"allow_http": True, **(client_options or {})}}
        if retry_config is not None:
            options["retry_config"] = retry_config
        return self._open(name, url, options)

    @abstractmethod
    def _create(self, bucket: str) -> None: ...

    @abstractmethod
    def _open(self, bucket: str, url: str, options: dict[str, Any]) -> "ObjectStore": ...

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP): connections stay up, nothing answers."""
        self._host.freeze()

    def thaw(self) -> None:
        self._host.thaw()

    def close(self) -> None:
        self._host.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def put(url: str) -> None:
    """An empty PUT, past every proxy that the environment names; raises OSError unless it succeeds."""
    with build_opener(ProxyHandler({})).open(Request(url, method="PUT"), timeout=_TIMEOUT):
        pass
