"""What environment variables say about the servers of tests and demos.

What names a server, or the program of one, begins with FENCING_TEST_: tests empty such a server. So the URLs that the
command line reads, such as FENCING_REDIS_URL, are read here by none. FENCING_SERVERS says where the other servers come
from, in which order.
"""

import os

from examples.servers.local import ServerError

SOURCES_VARIABLE = "FENCING_SERVERS"
SOURCES = ("path", "wheels", "docker")


def check_variables() -> None:
    """Raise ServerError where a variable has an unknown word."""
    sources()


def named_by(variable: str) -> str | None:
    """Return what a variable names; None where it is not set, or empty."""
    check_variables()
    return os.environ.get(variable) or None


def sources() -> tuple[str, ...]:
    """Return where servers come from, the first choice first: words of `SOURCES`."""
    words = tuple(filter(None, os.environ.get(SOURCES_VARIABLE, "").replace(" ", "").lower().split(",")))
    for word in words:
        if word not in SOURCES:
            raise ServerError(f"{SOURCES_VARIABLE} has the unknown word {word!r}: it takes {', '.join(SOURCES)}")
    return words or SOURCES


def is_docker_chosen() -> bool:
    """Whether somebody asked for Docker, which by default is used only where nothing else is to be found."""
    return "docker" in os.environ.get(SOURCES_VARIABLE, "").lower() and "docker" in sources()
