"""Real Redis and PostgreSQL servers for demos and tests, Docker or not, and a proxy that loses replies.

They hold throw-away data and listen on 127.0.0.1 only. Not for production: durability is switched off.
"""

from examples.servers.local import ServerError
from examples.servers.postgres import PostgresBinary, PostgresServer, find_postgres_binaries, start_postgres
from examples.servers.proxy import Loss, Proxy
from examples.servers.redis import RedisBinary, RedisServer, find_redis_binaries, start_redis

__all__ = [
    "Loss",
    "PostgresBinary",
    "PostgresServer",
    "Proxy",
    "RedisBinary",
    "RedisServer",
    "ServerError",
    "find_postgres_binaries",
    "find_redis_binaries",
    "start_postgres",
    "start_redis",
]
