"""What environment variables say about the servers of tests and demos.

What names a server, or the program of one, begins with FENCING_TEST_: tests empty such a server.
"""

import os

from examples.servers.local import ServerError

_RENAMED = {
    name: name.replace("FENCING_", "FENCING_TEST_")
    for name in (
        "FENCING_REDIS_URL",
        "FENCING_POSTGRES_URL",
        "FENCING_MYSQL_URL",
        "FENCING_AZURITE",
        "FENCING_S3RVER",
    )
}


def refuse_old_names() -> None:
    """Raise ServerError where a variable has a name from before, which is read no more."""
    for old, new in _RENAMED.items():
        if os.environ.get(old):
            raise ServerError(f"{old} is not read any more: set {new} instead, and unset {old}")


def named_by(variable: str) -> str | None:
    """Return what a variable names; None where it is not set, or empty."""
    refuse_old_names()
    return os.environ.get(variable) or None
