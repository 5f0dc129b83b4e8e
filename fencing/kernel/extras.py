"""What to install where a package is missing that only some names need."""

from __future__ import annotations

from typing import NoReturn

_EXTRAS = {
    "aiomysql": "mysql",
    "asyncpg": "asyncpg",
    "fsspec": "fsspec",
    "httptools": "etcd",
    "httpx2": "http",
    "kazoo": "zookeeper",
    "obstore": "objectstore",
    "psycopg": "psycopg",
    "pymysql": "mysql",
    "sqlalchemy": "sqlalchemy",
}


def raise_missing(name: str, error: ModuleNotFoundError) -> NoReturn:
    """Raise an error that names the extra which has the missing package, or else the error itself.

    Args:
        name: what needs the package.
        error: of its import.
    """
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        raise error
    raise ModuleNotFoundError(
        f"{name} needs {package}, which is not installed: install fencing with the extra [{extra}]",
        name=error.name,
        path=error.path,
    ) from error
