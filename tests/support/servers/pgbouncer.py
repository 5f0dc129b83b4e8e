"""A real PgBouncer in transaction mode, in front of a PostgreSQL: the `pgbouncer` of this machine."""

import functools
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from examples.servers import PostgresServer, ServerError
from examples.servers.local import LocalProcess, not_root, prepared_directory
from examples.servers.server import Server

_CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
min_pool_size = 0
max_client_conn = 50
"""


class PgBouncerServer(Server):
    """A running PgBouncer. It pools transactions: the next one may have another connection to the server."""

    def url(self, url: str) -> str:
        """Return a database's URL that leads through the pooler."""
        parts = urlsplit(url)
        user, _, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}@{self.host}:{self.port}").geturl()


@functools.cache
def find_pgbouncer() -> Path | None:
    """The first PgBouncer on PATH, or in /usr/sbin, where distributions put it."""
    for folder in [*os.get_exec_path(), "/usr/sbin"]:
        if os.access(found := Path(folder) / "pgbouncer", os.X_OK):
            return found
    return None


def start_pgbouncer(postgres: PostgresServer, *, size: int = 2) -> PgBouncerServer:
    """Start a PgBouncer before this server, with `size` connections to each database; raises ServerError when there is
    none."""
    program = find_pgbouncer()
    if program is None:
        raise ServerError("no PgBouncer: put pgbouncer on PATH (apt-get install pgbouncer)")
    parts = urlsplit(postgres.dsn)
    password = f" password={unquote(parts.password)}" if parts.password else ""
    with prepared_directory(not_root()) as directory:
        configuration = directory / "pgbouncer.ini"

        def command(port: int) -> list[str]:
            configuration.write_text(
                _CONFIGURATION.format(
                    host=postgres.host,
                    port=postgres.port,
                    user=unquote(parts.username or "postgres"),
                    password=password,
                    listen=port,
                    size=size,
                )
            )
            return [str(program), str(configuration)]

        process = LocalProcess(
            command=command,
            directory=directory,
            data=directory / "data",
            ready=lambda process: "process up" in process.log,
            clashed=lambda log: "Address already in use" in log,
            user=not_root(),
        )
    return PgBouncerServer(f"postgresql://127.0.0.1:{process.port}", process, f"PATH: {program}", port=process.port)
