"""``fencing doctor --redis``: each finding is provoked on a real server."""

from __future__ import annotations

import re
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from examples.servers import FakeClock, RedisCluster, RedisServer, start_redis, start_sentinels
from examples.servers.redis import version_for_clocks
from fencing import RedisCoordinator
from fencing.cli.doctor import redis_server, rights
from fencing.cli.doctor.redis import sentinel_findings
from storage_guards import RedisGuard
from tests.support.commands import fencing
from tests.support.doctor import as_account, examined
from tests.support.fixtures import RedisClusters, RedisFactory, RedisServers, newest_local_series

DOCS = Path(__file__).parents[2] / "docs"


def test_what_is_right_is_said(any_redis: RedisServer) -> None:
    report = examined("--redis", any_redis.url)
    assert report.one("maxmemory-policy is noeviction")["level"] == "ok"
    assert report.level("clock is within") == "ok"
    assert report.level("has the permissions") == "ok"
    assert report.level("0 of 0 keys") == "ok"
    assert {each["service"] for each in report.findings} == {any_redis.url}


def test_a_version_that_is_too_old_or_was_not_tried() -> None:
    def level(**info: str) -> str:
        [finding] = redis_server.version(redis_server.Facts(info, {}))
        return finding.level

    assert level(redis_version="6.0.16") == "wrong"
    assert [level(redis_version=text) for text in ("6.2.0", "7.4.1", "8.2.3")] == ["ok"] * 3
    assert level(redis_version="9.0.0") == "warning"
    assert level(redis_version="7.2.4", server_name="valkey", valkey_version="9.1.0") == "ok"
    assert level(redis_version="7.2.4", server_name="valkey", valkey_version="8.1.0") == "warning"


@pytest.mark.thorough
def test_the_version_of_each_server(redis_server: RedisServer) -> None:
    assert examined("--redis", redis_server.url).level(redis_server.name) == "ok"


@pytest.mark.thorough
def test_settings_of_one_server(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    with server.client() as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        assert examined("--redis", server.url).level("maxmemory-policy is allkeys-lru, without") == "warning"
        admin.config_set("maxmemory", "100mb")
        report = examined("--redis", server.url)
        assert report.level("maxmemory-policy is allkeys-lru, with maxmemory") == "wrong"
        assert report.status == 2
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", str(admin.info("memory")["used_memory"]))
        assert examined("--redis", server.url).level("more than 90%") == "warning"
        admin.config_set("maxmemory", "0")

        admin.config_set("appendonly", "yes")
        for setting, level in (("no", "warning"), ("everysec", "ok"), ("always", "ok")):
            admin.config_set("appendfsync", setting)
            assert examined("--redis", server.url).level("appendfsync", setting) == level
        assert examined("--redis", server.url).status == 0
        admin.config_set("appendonly", "no")
        admin.config_set("save", "")
        assert examined("--redis", server.url).level("keeps nothing") == "warning"
        admin.config_set("save", "3600 1")
        assert examined("--redis", server.url).level("keeps snapshots alone") == "warning"

        admin.config_set("min-replicas-to-write", "1")
        report = examined("--redis", server.url)
        assert report.level("min-replicas-to-write is 1, and 0") == "wrong"
        assert report.one("min-replicas-to-write")["page"] == "docs/coordinators/redis.md#sentinel"


@pytest.mark.thorough
def test_a_snapshot_that_fails(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    with server.client() as admin:
        admin.config_set("appendonly", "no")
        admin.set("some", "data")
        folder = Path(admin.config_get("dir")["dir"])
        folder.joinpath("dump.rdb").mkdir()  # no file can take its place
        admin.bgsave()
        deadline = time.monotonic() + 60
        while admin.info("persistence")["rdb_last_bgsave_status"] == "ok":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert examined("--redis", server.url).level("could not write its snapshot") == "wrong"


@pytest.mark.thorough
def test_a_primary_and_its_replica(fresh_redis: RedisFactory) -> None:
    primary, replica = fresh_redis(), fresh_redis()
    with replica.client() as admin, primary.client() as of_primary:
        admin.replicaof(primary.host, primary.port)
        deadline = time.monotonic() + 60
        while not of_primary.info("replication")["connected_slaves"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        report = examined("--redis", replica.url)
        assert report.level(f"this is a replica of {primary.host}:{primary.port}") == "wrong"
        assert examined("--redis", primary.url).level("1 replicas", "min-replicas-to-write is 0") == "warning"
        of_primary.config_set("min-replicas-to-write", "1")
        of_primary.config_set("min-replicas-max-lag", "0")
        assert examined("--redis", primary.url).level("min-replicas-to-write is 1, of 1") == "ok"


def test_an_account_that_lacks_a_command_a_key_or_a_channel(any_redis: RedisServer) -> None:
    url = as_account(any_redis.url, "limited", "s3cr3t")
    rule = "on >s3cr3t ~orders:* ~fencing:1:* resetchannels &fencing:1:wake:* +@all -@admin"
    with any_redis.client() as client:
        admin: Any = client
        try:
            for change, lock, level, words in (
                ("-zadd -hget", "orders:1", "wrong", "may not use zadd, hget"),
                ("+zadd +hget", "orders:1", "ok", "has the permissions"),
                ("", "invoices:1", "wrong", "may not use the key 'invoices:1'"),
                ("resetchannels", "orders:1", "wrong", "publish on &fencing:1:wake:*"),
                ("&* resetkeys ~orders:*", "orders:1", "wrong", "may not use keys that begin with fencing:1:"),
                ("~* -eval", "orders:1", "wrong", "may not run EVAL"),
            ):
                admin.execute_command(f"ACL SETUSER limited {rule} {change}")
                rule = ""
                report = examined("--redis", url, "--lock", lock)
                assert report.level(words) == level
                if level == "wrong":
                    assert "ACL SETUSER limited on" in report.one(words)["change"]
            assert report.level("CONFIG GET is not allowed") == "unknown"
            admin.execute_command("ACL SETUSER limited -info -scan -time")
            report = examined("--redis", url, "--lock", "orders:1")
            for what in ("may not run INFO", "may not run SCAN", "may not run TIME"):
                assert report.level(what) == "unknown"
            assert "s3cr3t" not in str(report)
        finally:
            admin.acl_deluser("limited")


def test_the_rule_that_is_printed_is_that_of_the_page_and_suffices(any_redis: RedisServer) -> None:
    page = DOCS.joinpath("coordinators", "redis.md").read_text("utf-8")
    one, cluster = re.findall(r"^ACL SETUSER worker on >secret (~orders.*)$", page, re.MULTILINE)
    [redlock] = re.findall(
        r"^ACL SETUSER worker on >secret (~orders.*)$",
        (DOCS / "coordinators/redlock.md").read_text("utf-8"),
        re.MULTILINE,
    )
    for needed, shown in ((rights.LOCKS, one), (rights.CLUSTER, cluster), (rights.REDLOCK, redlock)):
        words = " ".join(rights.rule(needed, "worker", "orders:*")).replace("ACL SETUSER worker", "").split()
        assert sorted(words) == sorted(["on", *shown.split()])
    with any_redis.client() as client:
        admin: Any = client
        try:
            for line in rights.rule(rights.LOCKS, "smallest", "orders:*"):
                assert len(line) <= 70
                admin.execute_command(line)
            admin.execute_command("ACL SETUSER smallest >s3cr3t")
            report = examined("--redis", as_account(any_redis.url, "smallest", "s3cr3t"), "--lock", "orders:1")
            assert report.level("has the permissions") == "ok"
        finally:
            admin.acl_deluser("smallest")


@pytest.mark.thorough
def test_permissions_before_version_seven(redis_servers: RedisServers) -> None:
    server = redis_servers.get("6.2")
    with server.client() as admin:
        admin.acl_setuser(
            "limited",
            enabled=True,
            passwords=["+s3cr3t"],
            keys=["*"],
            channels=["*"],
            categories=["+@all"],
            commands=["-incr"],
        )
        try:
            report = examined("--redis", as_account(server.url, "limited", "s3cr3t"))
            assert report.level("may not use incr") == "wrong"
            assert not admin.keys("fencing:*")
            assert examined("--redis", server.url).level("has the permissions") == "ok"
        finally:
            admin.acl_deluser("limited")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "says"), [("zadd", "no command zadd"), ("eval", "no command eval")])
def test_a_renamed_command(fresh_redis: RedisFactory, name: str, says: str) -> None:
    server = fresh_redis(extra_args=["--rename-command", name, "hidden"])
    assert examined("--redis", server.url).level(says) == "wrong"


@pytest.mark.thorough
def test_a_clock_that_is_ahead() -> None:
    with closing(FakeClock()) as fake:
        fake.set(30)
        with start_redis(version=version_for_clocks(), own=True, local=True, environment=fake.environment) as server:
            report = examined("--redis", server.url)
    assert re.search(r"(29|30)\.\d s ahead of", report.one("clock")["what"])
    assert report.level("clock") == "warning"


def test_keys_of_others_are_counted_and_not_named(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    with server.client() as client, RedisCoordinator(client) as coordinator, coordinator.hold("orders:42"):
        report = examined("--redis", server.url)
        assert report.level("0 of 3 keys") == "ok"
        client.set("customer-of-others", "1")
        report = examined("--redis", server.url)
        assert report.level("1 of 4 keys") == "warning"
        assert "customer-of-others" not in str(report)
        guard = RedisGuard(client)
        with coordinator.hold("orders:43") as lease:
            guard.claim(lease)
        assert examined("--redis", server.url).level("beside the marks of a guard") == "ok"


def test_a_server_that_is_not_there() -> None:
    report = examined("--redis", "redis://:s3cr3t@127.0.0.1:1/0")
    assert (report.status, [each["level"] for each in report.findings]) == (69, ["unknown"])
    assert "s3cr3t" not in str(report)


@pytest.mark.thorough
def test_a_server_that_stands_still(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    server.freeze()
    report = examined("--redis", server.url)
    server.thaw()
    assert (report.status, report.level("does not answer")) == (69, "unknown")


def test_nothing_is_written(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    with server.client() as client:
        client.set("one", "1")
        admin: redis.Redis = client
        admin.config_resetstat()
        before = admin.info("persistence")["rdb_changes_since_last_save"]
        examined("--redis", server.url, "--lock", "orders:1")
        assert admin.info("persistence")["rdb_changes_since_last_save"] == before
        assert client.keys() == [b"one"]
        called = {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}
        allowed = {"ping", "info", "config|get", "time", "eval", "scan", "config|resetstat", "keys", "client|setinfo"}
        assert called <= allowed | {"hello", "select", "auth", "client|setname", "client|maint_notifications", "client"}


@pytest.mark.thorough
def test_nothing_is_written_before_version_seven(redis_servers: RedisServers) -> None:
    server = redis_servers.get("6.2")
    with server.client() as admin:
        admin.flushall()
        before = admin.info("persistence")["rdb_changes_since_last_save"]
        examined("--redis", server.url)
        assert (admin.dbsize(), admin.info("persistence")["rdb_changes_since_last_save"]) == (0, before)


@pytest.mark.thorough
def test_a_cluster(redis_cluster: RedisCluster) -> None:
    hosts = ",".join(f"{server.host}:{server.port}" for server in redis_cluster.primaries())
    report = examined("--redis", f"redis+cluster://{hosts}")
    assert report.level("all 16384 slots are served") == "ok"
    assert report.level("all 3: the account has the permissions") == "ok"
    assert examined("--redis", redis_cluster.primaries()[0].url).level("this is a node of a Redis Cluster") == "wrong"


@pytest.mark.thorough
def test_a_cluster_without_coverage_and_replicas(fresh_cluster: RedisCluster) -> None:
    one, two, *_ = fresh_cluster.primaries()
    url = f"redis+cluster://{one.host}:{one.port}"
    for server in fresh_cluster.servers:
        with server.client() as admin:
            admin.config_set("cluster-require-full-coverage", "yes")
    assert examined("--redis", url).level("cluster-require-full-coverage is yes") == "warning"
    for server in fresh_cluster.servers:
        with server.client() as admin:
            admin.config_set("cluster-require-full-coverage", "no")
    assert examined("--redis", url).level("stops the locks of its own slots alone") == "ok"
    for replica in [server for primary in fresh_cluster.primaries() for server in fresh_cluster.replicas_of(primary)]:
        replica.kill()
    deadline = time.monotonic() + 60
    while not examined("--redis", url).levels("a primary has no replica"):
        assert time.monotonic() < deadline
    two.kill()
    while not (report := examined("--redis", url)).levels("slots have no node"):
        assert time.monotonic() < deadline
    assert report.level("slots have no node") == "wrong"
    assert report.level(f"the primary {two.host}:{two.port}") == "wrong"


@pytest.mark.thorough
def test_a_cluster_of_before_seven(redis_clusters: RedisClusters) -> None:
    [first, *_] = redis_clusters.get("6.2").primaries()
    report = examined("--redis", f"redis+cluster://{first.host}:{first.port}")
    assert report.level("older than 7.0") == "warning"
    assert report.level("all 3: the account has the permissions") == "ok"


@pytest.mark.thorough
def test_sentinels() -> None:
    with start_sentinels(version=newest_local_series(), replicas=1, sentinels=2) as started:
        places = ",".join(f"{host}:{port}" for host, port in started.addresses)
        url = f"redis+sentinel://{places}/{started.service}/0"
        report = examined("--redis", url)
        assert report.level("there are 2 Sentinels") == "warning"
        assert report.level("a Sentinel has the quorum 1, of 2") == "warning"
        assert report.level("a dead primary is missed after 1.5 s") == "ok"
        assert report.level("1 replicas, and min-replicas-to-write is 0") == "warning"
        for sentinel in started.sentinels:
            with sentinel.client() as admin:
                admin.execute_command(f"SENTINEL SET {started.service} quorum 9")
                admin.execute_command(f"SENTINEL SET {started.service} down-after-milliseconds 30000")
        report = examined("--redis", url)
        assert report.level("the quorum is 9, of 2") == "wrong"
        assert report.level("down-after-milliseconds is 30000") == "warning"
        assert examined("--redis", url.replace(started.service, "other")).levels("does not know") == ["wrong"] * 2
        started.sentinels[0].kill()
        assert examined("--redis", url).level("a Sentinel does not answer") == "warning"
        started.sentinels[1].kill()
        assert examined("--redis", url).level("no Sentinel answers") == "unknown"


def test_three_sentinels_that_agree_and_two_that_do_not() -> None:
    state = {
        "name": "shop",
        "ip": "h1",
        "port": 6379,
        "num-other-sentinels": 2,
        "quorum": 2,
        "down-after-milliseconds": 5000,
        "num-slaves": 1,
    }
    assert {finding.level for finding in sentinel_findings([state] * 3)} == {"ok"}
    first, *_ = sentinel_findings([state, {**state, "ip": "h2"}])
    assert (first.level, "different primaries" in first.what) == ("wrong", True)
    *_, last = sentinel_findings([{**state, "num-slaves": 0}])
    assert (last.level, last.what) == ("warning", "the primary has no replica")


@pytest.mark.thorough
def test_the_nodes_of_redlock(fresh_redis: RedisFactory) -> None:
    one, two, three = (fresh_redis() for _ in range(3))
    old = fresh_redis(version="6.2")
    nodes = [word for server in (one, two, three) for word in ("--redlock", server.url)]
    report = examined(*nodes)
    assert report.level("3 nodes, of which 1 may fail") == "ok"
    assert report.level("all nodes are different processes") == "ok"
    assert report.level("all 3: it does not take part yet") == "warning"
    assert examined(*nodes[:4]).level("there are 2 nodes") == "wrong"
    assert examined(*nodes[:4], *nodes[:2]).level("the same process") == "wrong"
    assert examined(*nodes[:4], "--redlock", old.url).level("different versions") == "warning"
    with one.client() as admin, two.client() as other:
        admin.execute_command("ACL SETUSER default resetkeys ~fencing:*")
        assert examined(*nodes, "--lock", "orders:1").level("may not use the key 'orders:1'") == "wrong"
        admin.execute_command("ACL SETUSER default ~*")
        other.set("data", "of others")
        assert examined(*nodes).level("1 of 1 keys are not of this library") == "warning"
        other.delete("data")
        admin.execute_command("ACL SETUSER default -script")
        assert examined(*nodes).level("may not use script|load") == "wrong"
        admin.execute_command("ACL SETUSER default +script")
        other.replicaof(one.host, one.port)
        deadline = time.monotonic() + 60
        while not (report := examined(*nodes)).levels("1 replicas copy from it"):
            assert time.monotonic() < deadline
        assert report.level("this is a replica of") == "wrong"
    three.kill()
    assert examined(*nodes).level(three.url) == "warning"
    with suppress(redis.RedisError):
        two.kill()
    report = examined(*nodes)
    assert (report.status, report.level("no majority")) == (2, "wrong")


@pytest.mark.thorough
def test_as_a_process(any_redis: RedisServer) -> None:
    with any_redis.client() as client:
        client.set("one-of-others", "1")
    done = fencing("doctor", FENCING_REDIS_URL=any_redis.url, FENCING_STORE_URL="s3:/wrong")
    assert done.returncode == 69, "one URL is wrong, and the other service was looked at"
    done = fencing("doctor", FENCING_REDIS_URL=any_redis.url)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0] == any_redis.url
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert "  warning 1 of 1 keys are not of this library" in lines
    assert "          docs/guide/locks.md#a-service-that-applications-share" in lines
    assert fencing("doctor").returncode == 78
    secret = any_redis.url.replace("://", "://nobody:s3cr3t@")
    done = fencing("doctor", FENCING_REDIS_URL=secret)
    assert (done.returncode, "s3cr3t" in done.stdout + done.stderr) == (69, False)
