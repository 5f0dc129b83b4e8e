"""Where a store keeps its objects, as programs without this library name it. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

_PLAIN_IN_FILES = "/~!*'()=:@$,;&+-._"
"""What stays in a URL of a file. DuckDB and fsspec decode nothing there, so only what must not stay is escaped."""


def key_in_bucket(store: Any) -> Callable[[str], str]:
    """Return what makes of a store's key the one in its bucket: the store may have a prefix of its own."""
    own = "" if isinstance(store, LocalStore) else str(getattr(store, "prefix", None) or "").strip("/")
    return lambda key: f"{own}/{key}" if own else key


def can_sign(store: Any) -> bool:
    """Return whether the store can sign URLs."""
    return isinstance(store, (S3Store, GCSStore, AzureStore))


def can_sign_key(store: Any, key: str) -> bool:
    """Return whether the store can sign a URL of this key.

    obstore 0.12 signs the escaped path for Azure, which wants the path itself: a URL with ``%25`` is answered by 403.
    """
    return not (isinstance(store, AzureStore) and "%" in key)


def url_in(store: Any) -> Callable[[str], str]:
    """Return what makes of a store's key its URL.

    Raises:
        ValueError: the store has no URL that others know.
    """
    key_of = key_in_bucket(store)
    if isinstance(store, LocalStore):
        root = str(store.prefix or "").rstrip("/")
        return lambda key: f"file://{quote(f'{root}/{key}', safe=_PLAIN_IN_FILES)}"
    bucket = ""
    if isinstance(store, (S3Store, GCSStore)):
        bucket = str(store.config.get("bucket") or "")
    elif isinstance(store, AzureStore):
        bucket = str(store.config.get("container_name") or "")
    if not bucket:
        raise ValueError(
            f"the guard's {type(store).__name__} does not say where its objects are; pass base=, the URL of its root, "
            f"such as 's3://bucket'"
        )
    scheme = "s3" if isinstance(store, S3Store) else "gs" if isinstance(store, GCSStore) else "az"
    return lambda key: f"{scheme}://{bucket}/{key_of(key)}"
