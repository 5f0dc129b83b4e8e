"""Servers that only tests use: proxies that lose and delay, MariaDB, PgBouncer, Google Cloud Storage, Azure, s3rver."""

from examples.servers.mariadb import MariaDBBinary, MariaDBServer, find_mariadb_binary, start_mariadb
from examples.servers.proxy import Loss, Proxy
from tests.support.servers.azure import AzureServer, find_azurite, start_azure
from tests.support.servers.gcs import GCSServer, start_gcs
from tests.support.servers.http_proxy import HttpProxy
from tests.support.servers.http_rules import Hold, Request, Rule
from tests.support.servers.pgbouncer import PgBouncerServer, find_pgbouncer, start_pgbouncer
from tests.support.servers.s3rver import find_s3rver, start_s3rver

__all__ = [
    "AzureServer",
    "GCSServer",
    "Hold",
    "HttpProxy",
    "Loss",
    "MariaDBBinary",
    "MariaDBServer",
    "PgBouncerServer",
    "Proxy",
    "Request",
    "Rule",
    "find_azurite",
    "find_mariadb_binary",
    "find_pgbouncer",
    "find_s3rver",
    "start_azure",
    "start_gcs",
    "start_mariadb",
    "start_pgbouncer",
    "start_s3rver",
]
