"""Say which servers tests and demos will use, and where they come from: ``python -m examples.servers.summary``."""

import os
import sys

from examples.servers import docker
from examples.servers.local import ServerError
from examples.servers.postgres import URL_VARIABLE as POSTGRES_URL
from examples.servers.postgres import find_postgres_binaries
from examples.servers.redis import URL_VARIABLE as REDIS_URL
from examples.servers.redis import find_redis_binaries
from examples.servers.settings import SOURCES_VARIABLE, check_variables, sources


def summary() -> list[str]:
    """Return what is found, one line for each kind of server; raise ServerError for a wrong variable."""
    check_variables()
    redis = [f"{binary.series} ({binary.source})" for binary in find_redis_binaries()]
    postgres = [f"{'.'.join(map(str, binary.version))} ({binary.source})" for binary in find_postgres_binaries()]
    order = f"{SOURCES_VARIABLE}={','.join(sources())}"
    return [_line("Redis", REDIS_URL, redis, order), _line("PostgreSQL", POSTGRES_URL, postgres, order)]


def _line(kind: str, variable: str, found: list[str], order: str) -> str:
    if os.environ.get(variable):
        return f"{kind}: the server of {variable}"
    if docker.may_serve(found_elsewhere=bool(found)):
        others = f"; also {', '.join(found)}" if found else ", because nothing else is found"
        return f"{kind}: from Docker, which loads images that are missing{others}; {order}"
    return f"{kind}: {', '.join(found) or 'none is found'}; {order}"


def main() -> int:
    try:
        print(*summary(), sep="\n")
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
