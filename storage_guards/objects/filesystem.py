"""A read-only filesystem of fsspec over publications: for pandas, Dask, pyarrow, DuckDB and Polars."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import obstore.store
from fsspec.spec import AbstractFileSystem

from storage_guards.objects.guard import ObjectStoreGuard
from storage_guards.objects.publication import Publication
from storage_guards.objects.stream import Stream

Info = dict[str, Any]


class FencedFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """A read-only filesystem: ``fenced://RESOURCE/NAME`` is an object of a publication. ``%2F`` in a resource is a
    slash, and ``%25`` is ``%``.

    One filesystem reads **one** publication of each resource: the current one where it first uses that resource. So
    what is read through it is never of two publications. A pickled one reads the same in any process, of the resources
    that were used before. For a newer publication make a new filesystem; ``fsspec.open`` and pandas make one at each
    call. Data that are collected meanwhile raise a :class:`~fencing.StaleRead`.

    Args:
        publication: the one to read of its resource, from an ``ObjectStoreGuard``. None: see ``store``.
        store: an obstore store, or its URL, such as ``"s3://acme-data"``.
        prefix: of the guard.
        options: for ``obstore.store.from_url``, where ``store`` is a URL: ``region``, ``client_options``,
            ``credential_provider`` and others.

    Raises:
        TypeError, ValueError: an argument is malformed. The text says which.
    """

    __module__ = "storage_guards"

    protocol = "fenced"
    cachable = False  # an instance that was used keeps its publication

    def __init__(
        self, publication: Publication | None = None, *, store: Any = None, prefix: str = "fencing/", **options: Any
    ) -> None:
        super().__init__()
        self._token = secrets.token_hex(16)
        self._pins: dict[str, Publication] = {}
        self._trees: dict[str, Mapping[str, list[Info]]] = {}
        if publication is not None:
            if not isinstance(publication, Publication):
                raise TypeError(f"a Publication of an ObjectStoreGuard is needed, not {type(publication).__name__}")
            if store is not None or options:
                raise TypeError("pass a publication or a store, not both")
            self._guard = publication._guard
            self._pins[publication.resource] = publication
            return
        if isinstance(store, str):
            store = obstore.store.from_url(store, **options)
        elif options:
            raise TypeError(f"{', '.join(options)}: options are for a store that is given by its URL")
        self._guard = ObjectStoreGuard(store, prefix=prefix)

    def publication(self, resource: str) -> Publication:
        """Return the publication of a resource that this filesystem reads.

        Raises:
            FileNotFoundError: nothing is published, unless by now. Ask again later.
            GuardUnavailable, GuardNotEnforceable: as ``ObjectStoreGuard.read``.
        """
        if resource not in self._pins:
            current = self._guard.read(resource)
            if current is None:
                raise FileNotFoundError(errno.ENOENT, "nothing is published for this resource", resource)
            self._pins.setdefault(resource, current)  # another thread may have been faster
        return self._pins[resource]

    # What fsspec asks of a filesystem

    def open(self, path: Any, mode: str = "rb", **options: Any) -> Any:
        """Open an object for reading.

        Raises:
            FileNotFoundError: it is not in the publication.
            IsADirectoryError: the path ends with a slash, which paths of directories may. The text says what to do.
        """
        if str(path).endswith("/"):  # without it, the path is that of another object
            raise IsADirectoryError(errno.EISDIR, "a directory's path; use publication(resource).open(name)", path)
        return super().open(path, mode, **options)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Stream:
        if mode != "rb":
            self._refuse()
        resource, name = self._split(path)
        publication = self.publication(resource)
        if name not in publication:
            raise FileNotFoundError(errno.ENOENT, f"it is not in the publication {publication.id}", path)
        return publication.open(name)

    def info(self, path: str, **_: Any) -> Info:
        """Return the type and the size of a file or a directory; of a file also its key in the bucket."""
        path = self._strip_protocol(path)
        if not path:
            return _directory("")
        resource, name = self._split(path)
        publication = self.publication(resource)
        if name in publication:
            return _file(publication, name, publication.bucket_keys([name]))
        if name in self._tree(publication):
            return _directory(_path(resource, name))
        raise FileNotFoundError(errno.ENOENT, f"it is not in the publication {publication.id}", path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a directory. That of all resources has those that were used."""
        path = self._strip_protocol(path)
        if not path:
            found = [_directory(_path(resource, "")) for resource in self._pins]
        elif (info := self.info(path))["type"] == "file" and not self._is_directory(path):
            found = [info]
        else:
            resource, name = self._split(path)
            found = self._tree(self.publication(resource))[name]
        return [dict(info) for info in found] if detail else [info["name"] for info in found]

    def modified(self, path: str) -> datetime:
        """Return when the publication was made, by the publisher's clock."""
        return self.publication(self._split(self._strip_protocol(path))[0]).published_at

    created = modified

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether there is such a file or directory. It raises where the store did not answer."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        return self.exists(path) and self.info(path)["type"] == "file"

    def isdir(self, path: str) -> bool:
        path = self._strip_protocol(path)
        return not path or (self.exists(path) and self._is_directory(path))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, "a publication cannot be changed: publish a new one with an ObjectStoreGuard")

    mkdir = makedirs = rmdir = touch = rm = rm_file = _rm = cp_file = mv = _refuse

    def __reduce__(self) -> Any:
        return _unpickled, (type(self), self._guard, dict(self._pins), self._token)

    @property
    def _fs_token(self) -> str:
        return self._token  # Dask keeps results by it, so no two publications may have the same

    # Paths

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        path = super()._strip_protocol(path)
        return path.lstrip("/") if isinstance(path, str) else path  # Dask has "/sales"

    @staticmethod
    def _split(path: str) -> tuple[str, str]:
        resource, _, name = path.partition("/")
        return resource.replace("%2F", "/").replace("%25", "%"), name

    def _is_directory(self, path: str) -> bool:
        resource, name = self._split(path)
        return name in self._tree(self.publication(resource))

    def _tree(self, publication: Publication) -> Mapping[str, list[Info]]:
        """Return what is in each directory of a publication."""
        resource = publication.resource
        if resource not in self._trees:
            tree: dict[str, list[Info]] = {"": []}
            keys = publication.bucket_keys()
            for name in publication:
                if not all(name.split("/")):
                    raise ValueError(f"{name!r} has an empty part, so no directory can show it; open it by its name")
                parent = name.rpartition("/")[0]
                self._add(tree, resource, parent)
                tree[parent].append(_file(publication, name, keys))
            self._trees[resource] = tree
        return self._trees[resource]

    @staticmethod
    def _add(tree: dict[str, list[Info]], resource: str, directory: str) -> None:
        """Add a directory, and those above it, to a tree that has the root."""
        missing = []
        while directory not in tree:
            missing.append(directory)
            directory = directory.rpartition("/")[0]
        for each in reversed(missing):
            tree[each] = []
            tree[each.rpartition("/")[0]].append(_directory(_path(resource, each)))


def _file(publication: Publication, name: str, keys: Mapping[str, str]) -> Info:
    entry = publication[name]
    path = _path(publication.resource, name)
    return {"name": path, "type": "file", "size": entry.size, "sha256": entry.sha256, "key": keys[name]}


def _path(resource: str, name: str) -> str:
    root = resource.replace("%", "%25").replace("/", "%2F")
    return f"{root}/{name}" if name else root


def _directory(path: str) -> Info:
    return {"name": path, "type": "directory", "size": 0}


def _unpickled(
    kind: type[FencedFileSystem], guard: ObjectStoreGuard, pins: dict[str, Publication], token: str
) -> FencedFileSystem:
    filesystem = kind(store=guard._io.store)
    filesystem._guard, filesystem._pins, filesystem._token = guard, pins, token
    return filesystem
