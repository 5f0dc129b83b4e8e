"""A real MySQL: the ``mysqld`` of this machine. The tests of MariaDB run on it, by way of an environment variable.

``python -m tests.support.servers.mysql COMMAND…`` runs a command beside a server.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.servers.local import LocalProcess, ServerError, install, not_root, prepared_directory
from examples.servers.mariadb import URL_VARIABLE, MariaDBServer
from examples.servers.server import version_of

# Throw-away data: what is not on the disk after a power cut does not matter.
_SETTINGS = {
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-buffer-pool-size": "32M",
    "innodb-redo-log-capacity": "32M",
    "skip-log-bin": "ON",
    "mysqlx": "OFF",
    "secure-file-priv": "NULL",
    "max-connections": "200",
}
_VERSION = r"Ver (\d+)\.(\d+)\.(\d+)(?!\S*MariaDB)"
_ACCOUNT = "CREATE USER 'root'@'127.0.0.1'; GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"


_UNPACKED = Path(__file__).parents[3] / ".mysql" / "bin"


def find_mysql_binary(path: str | None = None) -> Path | None:
    """Return the ``mysqld`` of ``PATH``, or of the folder that is given."""
    found = shutil.which("mysqld", path=path)
    binary = Path(found) if found else None
    return binary if binary and version_of_mysql(binary) else None


def version_of_mysql(binary: Path) -> tuple[int, ...] | None:
    return version_of(binary, _VERSION)


def find_unpacked_mysql() -> Path | None:
    """Return the ``mysqld`` of ``PATH``, or of ``make thorough-mysql``."""
    return find_mysql_binary() or find_mysql_binary(str(_UNPACKED))


def start_mysql(binary: Path | None = None, settings: Mapping[str, str] = {}) -> MariaDBServer:
    """Start a MySQL; raises ServerError when there is none.

    Args:
        binary: its ``mysqld``. None: the one of ``PATH``.
        settings: of the server, instead of those for throw-away data.
    """
    binary = binary or find_mysql_binary()
    version = version_of_mysql(binary) if binary else None
    if binary is None or version is None:
        raise ServerError("no MySQL: put mysqld on PATH, for example that of `make thorough-mysql`")
    user = not_root()
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    with prepared_directory(user) as directory:
        data, account = directory / "data", directory / "account.sql"
        account.write_text(_ACCOUNT)
        account.chmod(0o644)
        make = [str(binary), "--no-defaults", "--initialize-insecure", f"--datadir={data}", f"--init-file={account}"]
        install(make, directory=directory, user=user, environment=environment)

    def command(port: int) -> list[str]:
        own = {
            "datadir": str(data),
            "tmpdir": str(directory),
            "socket": str(directory / "socket"),
            "pid-file": str(directory / "pid"),
            "bind-address": "127.0.0.1",
            "port": str(port),
        }
        options = (f"--{name}={value}" for name, value in {**_SETTINGS, **settings, **own}.items())
        # Without TLS, which PyMySQL takes where it is offered: a proxy could not tell one request from another.
        return [str(binary), "--no-defaults", "--skip-name-resolve", "--tls-version=", *options]

    process = LocalProcess(
        command=command,
        directory=directory,
        data=data,
        ready=lambda process: "ready for connections" in process.log,
        clashed=lambda log: "Bind on TCP/IP port" in log,
        user=user,
        environment=environment,
    )
    server = MariaDBServer(f"mysql+pymysql://root@127.0.0.1:{process.port}", process, f"PATH: {binary}")
    server.version, server.is_mariadb = version, False
    return server


def main(command: Sequence[str]) -> int:
    with start_mysql() as server:
        print(f"MySQL {'.'.join(map(str, server.version))}", flush=True)
        return subprocess.run(command, env={**os.environ, URL_VARIABLE: f"{server.url}/"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
