"""Real servers for demos and tests: Redis, PostgreSQL, MariaDB, etcd, ZooKeeper and an S3, with Docker or without.

They hold throw-away data and listen on 127.0.0.1 only. Not for production: durability is switched off.
"""

from examples.servers.clocks import FakeClock, MissingTool, find_faketime
from examples.servers.cluster import RedisCluster, start_cluster
from examples.servers.etcd import EtcdCluster, EtcdServer, find_etcd_binary, start_etcd
from examples.servers.freezing import freeze
from examples.servers.local import ServerError
from examples.servers.mariadb import MariaDBServer, start_mariadb
from examples.servers.objects import ObjectServer
from examples.servers.postgres import PostgresBinary, PostgresServer, find_postgres_binaries, start_postgres
from examples.servers.redis import RedisBinary, RedisServer, find_redis_binaries, start_redis
from examples.servers.s3 import S3Server, find_s3, start_s3
from examples.servers.sentinel import SentinelServers, start_sentinels
from examples.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, find_zookeeper, start_zookeeper

__all__ = [
    "EtcdCluster",
    "EtcdServer",
    "FakeClock",
    "MariaDBServer",
    "MissingTool",
    "ObjectServer",
    "PostgresBinary",
    "PostgresServer",
    "RedisBinary",
    "RedisCluster",
    "RedisServer",
    "S3Server",
    "SentinelServers",
    "ServerError",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "find_etcd_binary",
    "find_faketime",
    "find_postgres_binaries",
    "find_redis_binaries",
    "find_s3",
    "find_zookeeper",
    "freeze",
    "start_cluster",
    "start_etcd",
    "start_mariadb",
    "start_postgres",
    "start_redis",
    "start_s3",
    "start_sentinels",
    "start_zookeeper",
]
