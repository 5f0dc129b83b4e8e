"""Django for tests, with the settings of any database. A process has one set of settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit


def database(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for a SQLAlchemy URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path[1:]}
    if parts.scheme.startswith("mysql"):
        use_pymysql()
        engine = "mysql"
    else:
        engine = "postgresql"
    query = dict(each.partition("=")[::2] for each in parts.query.split("&") if each)
    options = {"unix_socket": unquote(query["unix_socket"])} if "unix_socket" in query else {}
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": parts.path[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(query.get("host", parts.hostname or "")),
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }


def use_pymysql() -> None:
    """Let PyMySQL stand for mysqlclient, which has no wheels."""
    import pymysql

    pymysql.version_info = (2, 2, 7, "final", 0)  # what Django asks mysqlclient for
    pymysql.install_as_MySQLdb()


def configure(**settings: Any) -> None:
    """Set Django up in this process, with the app of the library."""
    import django
    from django.conf import settings as configured

    apps = settings.pop("INSTALLED_APPS", ())
    configured.configure(
        INSTALLED_APPS=["fencing.contrib.django", *apps],
        USE_TZ=True,
        SECRET_KEY="of tests",
        ALLOWED_HOSTS=["*"],
        **settings,
    )
    django.setup()


@contextmanager
def added(alias: str, url: str, **options: Any) -> Iterator[str]:
    """Add a database to the settings of this process for a block; yields its alias."""
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3"}}, LOGGING_CONFIG=None)
    default = connections.settings["default"]
    entry = database(url)
    entry = {**entry, **options, "OPTIONS": {**entry.get("OPTIONS", {}), **options.get("OPTIONS", {})}}
    made = connections.configure_settings({"default": default, alias: entry})[alias]
    connections.settings[alias] = made
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]
