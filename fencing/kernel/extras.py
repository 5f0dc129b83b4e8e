"""What to install where a package is missing that only some names need."""

from __future__ import annotations

from typing import NoReturn

_EXTRAS = {
    "aiomysql": "mysql",
    "asyncpg": "asyncpg",
    "celery": "celery",
    "django": "django",
    "fsspec": "fsspec",
    "httptools": "etcd",
    "httpx2": "http",
    "kazoo": "zookeeper",
    "obstore": "objectstore",
    "psycopg": "psycopg",
    "pymysql": "mysql",
    "sqlalchemy": "sqlalchemy",
}


_PACKAGES = {"MySQLdb": "mysqlclient", "psycopg2": "psycopg2-binary"}
"""Those that are not named as their module."""


def raise_missing(name: str, error: ModuleNotFoundError) -> NoReturn:
    """Raise an error that names the extra which has the missing package, or else the package.

    Args:
        name: what needs the package.
        error: of its import.
    """
    package = (error.name or "").partition(".")[0]
    if not package or " needs " in str(error):
        raise error
    extra = _EXTRAS.get(package)
    what = f"fencing with the extra [{extra}]" if extra else f"the package {_PACKAGES.get(package, package)}"
    raise ModuleNotFoundError(
        f"{name} needs {package}, which is not installed: install {what}",
        name=error.name,
        path=error.path,
    ) from error
