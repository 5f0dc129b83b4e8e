"""Real servers for demos and tests: Redis, PostgreSQL and MariaDB, Docker or not, object stores, and a lossy proxy.

They hold throw-away data and listen on 127.0.0.1 only. Not for production: durability is switched off.
"""

from examples.servers.azure import AzureServer, find_azurite, start_azure
from examples.servers.freezing import freeze
from examples.servers.gcs import GCSServer, start_gcs
from examples.servers.http_proxy import HttpProxy
from examples.servers.http_rules import Hold, Request, Rule
from examples.servers.local import ServerError
from examples.servers.mariadb import MariaDBBinary, MariaDBServer, find_mariadb_binary, start_mariadb
from examples.servers.objects import ObjectServer
from examples.servers.postgres import PostgresBinary, PostgresServer, find_postgres_binaries, start_postgres
from examples.servers.proxy import Loss, Proxy
from examples.servers.redis import RedisBinary, RedisServer, find_redis_binaries, start_redis
from examples.servers.s3 import S3Server, find_s3, find_s3rver, start_s3, start_s3rver

__all__ = [
    "AzureServer",
    "GCSServer",
    "Hold",
    "HttpProxy",
    "Loss",
    "MariaDBBinary",
    "MariaDBServer",
    "ObjectServer",
    "PostgresBinary",
    "PostgresServer",
    "Proxy",
    "RedisBinary",
    "RedisServer",
    "Request",
    "Rule",
    "S3Server",
    "ServerError",
    "find_azurite",
    "find_mariadb_binary",
    "find_postgres_binaries",
    "find_redis_binaries",
    "find_s3",
    "find_s3rver",
    "freeze",
    "start_azure",
    "start_gcs",
    "start_mariadb",
    "start_postgres",
    "start_redis",
    "start_s3",
    "start_s3rver",
]
