"""``fencing doctor`` on object stores, etcd and ZooKeeper: each finding is provoked on a real server."""

from __future__ import annotations

import base64
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from examples.servers import EtcdServer, S3Server, ServerError, ZooKeeperServer, start_etcd, start_zookeeper
from examples.servers.etcd import EtcdCluster
from examples.servers.zookeeper import ZooKeeperEnsemble
from fencing import connect
from fencing.cli.doctor import etcd, zookeeper
from tests.support.commands import environment
from tests.support.doctor import Report, examined
from tests.support.fixtures import missing_or_broken
from tests.support.servers import AzureServer, GCSServer
from tests.support.servers.azure import ACCOUNT, KEY
from tests.support.tls import TlsOfBothSides


def bucket_of(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a new bucket, whose place and keys are in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{server.new_bucket()}"


@pytest.mark.thorough
def test_a_store_is_written_to_with_write_probe_alone(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = bucket_of(s3_server, monkeypatch)
    store = s3_server.store(bucket=url.removeprefix("s3://"))
    report = examined("--store", url)
    assert report.level("the store answers, and lists 0 objects") == "ok"
    assert report.level("conditions of writes was not tried out") == "unknown"
    assert report.status == 69
    assert not [each for page in store.list() for each in page]
    report = examined("--store", url, "--write-probe")
    assert report.level("keeps the conditions of writes") == "ok"
    assert report.level("equal bytes have the same version") == "ok"
    assert report.status == 0
    assert not [each for page in store.list() for each in page]  # the probe deletes what it wrote


@pytest.mark.thorough
def test_a_store_that_does_not_keep_conditions(racy_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    report = examined("--store", bucket_of(racy_s3_server, monkeypatch), "--write-probe")
    assert report.level("at the same time succeed") == "wrong"
    assert report.status == 2


@pytest.mark.thorough
def test_a_store_of_google(gcs_server: GCSServer, monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"gcs_base_url": gcs_server.url, "disable_oauth": True}
    empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps({**account, **empty}))
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    report = examined("--store", f"gs://{gcs_server.new_bucket()}", "--write-probe")
    assert report.level("Google takes one write a second") == "ok"
    assert report.level("keeps the conditions of writes") == "ok"
    assert not report.levels("equal bytes have the same version")
    assert report.status == 0
    assert examined("--store", "gs://no-such-bucket").level("does not answer, or refuses us") == "unknown"


@pytest.mark.thorough
def test_a_store_of_azure(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": azure_server.url,
        "AZURE_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    report = examined("--store", f"az://{azure_server.new_bucket()}", "--write-probe")
    assert report.level("keeps the conditions of writes") == "ok"
    assert not report.levels("equal bytes have the same version")
    assert report.status == 0
    assert examined("--store", "az://no-such-container").level("does not answer, or refuses us") == "unknown"


@pytest.mark.thorough
def test_a_store_that_does_not_answer(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = bucket_of(s3_server, monkeypatch)
    assert examined("--store", f"{url}-other").level("does not answer, or refuses us") == "unknown"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert examined("--store", url).level("does not answer, or refuses us") == "unknown"


def test_a_folder(tmp_path: Path) -> None:
    assert examined("--store", f"file://{tmp_path}").level("on a local file system") == "ok"
    assert examined("--store", "file:///proc/self").level("/proc/self") == "wrong"
    assert examined("--store", f"file://{tmp_path}/none").level("there is no such folder") == "unknown"


AS_OTHER_USER = """
import contextlib, io, os, sys
from fencing.cli.app import run
arguments = ["doctor", *sys.argv[1:], "--json"]
with contextlib.redirect_stdout(io.StringIO()):
    run(arguments)  # to import all that it needs, which the other user may not read
if os.geteuid() == 0:  # who may write everywhere
    os.setuid(65534)
sys.exit(run(arguments))
"""


@pytest.mark.thorough
def test_what_this_user_may_not_write() -> None:
    with TemporaryDirectory(prefix="fencing-doctor-") as folder:
        file = Path(folder) / "data.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE one (a)")
        file.chmod(0o444)
        Path(folder).chmod(0o555)
        command = [
            sys.executable,
            "-c",
            AS_OTHER_USER,
            "--store",
            f"file://{folder}",
            "--database",
            f"sqlite:///{file}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(PYTHONPATH="."))
        Path(folder).chmod(0o755)
    report = Report(done.returncode, json.loads(done.stdout))
    assert report.status == 2
    assert report.level("may not read and write the folder") == "wrong"
    assert report.level("may not write the file, or its folder") == "wrong"


# etcd


def etcd_url(*servers: EtcdServer, account: str = "") -> str:
    return f"etcd://{account}{','.join(f'{each.host}:{each.port}' for each in servers)}"


@pytest.fixture
def fresh_etcd() -> Iterator[Any]:
    """Starts an etcd of the test's own."""
    with ExitStack() as stack:

        def start(*extra_args: str) -> EtcdServer:
            try:
                return stack.enter_context(start_etcd(own=True, extra_args=extra_args))
            except ServerError as error:
                missing_or_broken("etcd", error)

        yield start


@pytest.mark.thorough
def test_one_member_of_etcd_and_nothing_is_written(etcd_server: EtcdServer) -> None:
    before = etcd_server.call("kv/range", {"key": "AA==", "range_end": "AA==", "count_only": True})
    report = examined("--etcd", etcd_url(etcd_server))
    after = etcd_server.call("kv/range", {"key": "AA==", "range_end": "AA==", "count_only": True})
    assert (after["header"]["revision"], after.get("count")) == (before["header"]["revision"], before.get("count"))
    assert report.levels(f"etcd {'.'.join(map(str, etcd_server.version))}")
    assert report.level("authentication is off") == "warning"
    assert report.level("1 members vote") == "warning"
    assert report.level("no alarm is on") == "ok"
    assert report.level("of a quota of") == "ok"
    assert report.level("clock is within") == "ok"


def test_versions_and_rights_of_etcd() -> None:
    def level(*versions: str) -> list[str]:
        return [finding.level for finding in etcd.versions([{"version": each} for each in versions])]

    assert level("3.3.25") == ["wrong"]
    assert [level(each) for each in ("3.4.23", "3.5.12")] == [["warning"]] * 2
    assert [level(each) for each in ("3.4.31", "3.5.13", "3.6.0")] == [["ok"]] * 3
    assert level("3.5.13", "3.6.0") == ["warning", "ok", "ok"]

    def permission(first: bytes, after: bytes, kind: str = "READWRITE") -> dict[str, str]:
        return {
            "permType": kind,
            "key": base64.b64encode(first).decode(),
            "range_end": base64.b64encode(after).decode(),
        }

    assert etcd.may_all([permission(b"fencing/1/", b"fencing/10")])
    assert etcd.may_all([permission(b"\0", b"\0")])
    assert not etcd.may_all([permission(b"fencing/1/lock/", b"fencing/1/lock0")])
    assert not etcd.may_all([permission(b"fencing/1/", b"fencing/10", "READ")])
    assert [next(etcd.quota(size, most)).level for size, most in ((10, 0), (10, 100), (90, 100))] == [
        "unknown",
        "ok",
        "warning",
    ]


@pytest.mark.thorough
def test_the_quota_of_etcd(fresh_etcd: Any) -> None:
    server = fresh_etcd("--quota-backend-bytes", "200000")
    with suppress(HTTPError):  # until the quota is reached
        for number in range(200):
            key, value = base64.b64encode(b"%d" % number).decode(), base64.b64encode(b"x" * 8000).decode()
            server.call("kv/put", {"key": key, "value": value})
    report = examined("--etcd", etcd_url(server))
    assert report.level("the alarm NOSPACE is on") == "wrong"
    assert report.level("of a quota of 200,000") == "warning"


@pytest.mark.thorough
def test_an_etcd_over_tls(fresh_etcd: Any, tmp_path: Path) -> None:
    certificates = TlsOfBothSides(tmp_path)
    server = fresh_etcd(*certificates.arguments)
    trusted = f"etcds://{server.host}:{server.port}?ca={tmp_path}/authority.pem"
    report = examined("--etcd", f"{trusted}&cert={tmp_path}/worker.pem&key={tmp_path}/worker.key")
    assert report.levels(f"etcd {'.'.join(map(str, server.version))}")
    assert report.level("1 members vote") == "warning"
    assert report.level("authentication is off") == "warning"
    for without in (trusted, f"etcds://{server.host}:{server.port}", f"etcd://{server.host}:{server.port}"):
        report = examined("--etcd", without)
        assert report.level("no member answers") == "unknown"
        assert report.level(f":{server.port} does not answer") == "warning"


@pytest.mark.thorough
def test_users_of_etcd(fresh_etcd: Any) -> None:
    server = fresh_etcd()
    assert examined("--etcd", etcd_url(server, account="me:s3cr3t@")).level("authentication is off") == "warning"
    for user in ("root", "worker", "reader"):
        server.call("auth/user/add", {"name": user, "password": "s3cr3t"})
    for role, last in (("root", ""), ("locks", "fencing/10"), ("some", "fencing/1/lock0")):
        server.call("auth/role/add", {"name": role})
        if last:
            key, end = (base64.b64encode(text.encode()).decode() for text in ("fencing/1/", last))
            server.call(
                "auth/role/grant", {"name": role, "perm": {"permType": "READWRITE", "key": key, "range_end": end}}
            )
    for user, role in (("root", "root"), ("worker", "locks"), ("reader", "some")):
        server.call("auth/user/grant", {"user": user, "role": role})
    server.call("auth/enable", {})
    assert examined("--etcd", etcd_url(server)).level("refuses requests without a user") == "wrong"
    assert examined("--etcd", etcd_url(server, account="worker:wrong@")).level("refuses the user") == "wrong"
    report = examined("--etcd", etcd_url(server, account="worker:s3cr3t@"))
    assert report.level("may read and write the keys that begin with fencing/1/") == "ok"
    assert "s3cr3t" not in str(report)
    report = examined("--etcd", etcd_url(server, account="reader:s3cr3t@"))
    assert report.level("may not read and write all keys") == "wrong"


@pytest.mark.thorough
def test_a_cluster_of_etcd() -> None:
    with ExitStack() as stack:
        try:
            cluster = EtcdCluster(stack)
        except ServerError as error:
            missing_or_broken("etcd", error)
        one, two, three = cluster.servers
        report = examined("--etcd", etcd_url(one, two, three))
        assert report.level("3 members vote, of which 1 may fail") == "ok"
        assert examined("--etcd", etcd_url(one)).level("the URL names one member") == "warning"
        learner = cluster.add(learner=True)
        assert examined("--etcd", etcd_url(one, learner)).level("the URL names a learner") == "warning"
        three.kill()
        assert examined("--etcd", etcd_url(one, two, three)).level(f":{three.port} does not answer") == "warning"
        two.kill()
        deadline = time.monotonic() + 60
        while not (report := examined("--etcd", etcd_url(one))).levels("sees no leader"):
            assert time.monotonic() < deadline
        assert report.level("sees no leader") == "wrong"
        one.kill()
        assert examined("--etcd", etcd_url(one)).level("no member answers") == "unknown"


# ZooKeeper


def tree(client: KazooClient, path: str = "/") -> list[str]:
    children = [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    return sorted([path, *(each for child in children for each in tree(client, child))])


@pytest.mark.thorough
def test_a_zookeeper_and_the_rights_of_its_nodes(zookeeper_server: ZooKeeperServer) -> None:
    client = KazooClient(zookeeper_server.hosts)
    client.start()
    with closing(client):
        root = "/doctored"
        client.ensure_path(root)
        url = f"zookeeper://{zookeeper_server.hosts}{root}"
        before = tree(client, root)
        report = examined("--zookeeper", url)
        assert report.levels(f"ZooKeeper {'.'.join(map(str, zookeeper_server.version))}") == ["ok"]
        assert report.level("the server is alone") == "warning"
        assert report.level("keep sessions of 0.4 to 60 s: a ttl of 10 s") == "ok"
        assert report.level("/fencing is not there yet") == "ok"
        assert tree(client, root) == before

        with connect(url) as coordinator, coordinator.hold("orders:42"):
            pass
        assert examined("--zookeeper", url).levels("everybody may use") == ["warning"] * 2
        mine = url.replace("://", "://worker:s3cr3t@")
        for path in ("/fencing/1/lock", "/fencing/1/base"):
            client.set_acls(root + path, [make_digest_acl("worker", "s3cr3t", all=True)])
        report = examined("--zookeeper", mine)
        assert report.levels("this user may use") == ["ok"] * 2
        assert "s3cr3t" not in str(report)
        client.add_auth("digest", "worker:s3cr3t")
        few = make_digest_acl("worker", "s3cr3t", read=True, create=True, admin=True)
        client.set_acls(f"{root}/fencing/1/base", [few])
        assert examined("--zookeeper", mine).level("may not write, delete at /fencing/1/base") == "wrong"
        client.set_acls(f"{root}/fencing/1/base", [few, make_acl("ip", "127.0.0.1", all=True)])
        assert examined("--zookeeper", mine).level("is not to be seen") == "unknown"
        client.stop()


@pytest.mark.thorough
def test_limits_of_sessions() -> None:
    try:
        started = start_zookeeper(settings={"minSessionTimeout": 20_000}, own=True)
    except ServerError as error:
        missing_or_broken("zookeeper", error)
    with started as server:
        report = examined("--zookeeper", f"zookeeper://{server.hosts}")
        assert report.level("keep sessions of 20 to 60 s, and not of 10 s") == "wrong"
    assert examined("--zookeeper", f"zookeeper://{server.hosts}").level("no server answers") == "unknown"


@pytest.mark.thorough
def test_an_ensemble() -> None:
    with ExitStack() as stack:
        try:
            ensemble = ZooKeeperEnsemble(stack)
        except ServerError as error:
            missing_or_broken("zookeeper", error)
        ensemble.leader()
        report = examined("--zookeeper", f"zookeeper://{ensemble.hosts}")
        assert report.level("of 3 named servers 1 leads") == "ok"
        assert report.level("3 servers vote, of which 1 may fail") == "ok"
        follower, leader = ensemble.follower(), ensemble.leader()
        assert examined("--zookeeper", f"zookeeper://{follower.hosts}").level("the URL names one server") == "warning"
        [third] = [each for each in ensemble.members if each not in (follower, leader)]
        third.kill()
        report = examined("--zookeeper", f"zookeeper://{ensemble.hosts}")
        assert report.level(f":{third.port} does not answer") == "warning"
        leader.kill()
        deadline = time.monotonic() + 60
        while not (report := examined("--zookeeper", f"zookeeper://{follower.hosts}")).levels("1 of 1 servers serve"):
            assert time.monotonic() < deadline
        assert report.level("no server gives us a session") == "unknown"


def test_what_servers_of_zookeeper_say() -> None:
    def levels(*said: str) -> dict[str, str]:
        return {finding.what: finding.level for finding in zookeeper.servers(list(said))}

    assert levels("Zookeeper version: 3.5.9-1\nMode: follower")["ZooKeeper 3.5.9"] == "wrong"
    assert levels("Zookeeper version: 3.8.0-1\nMode: read-only\n")["a server is read only"] == "warning"
    found = levels("Zookeeper version: 3.8.0\nMode: leader", "Zookeeper version: 3.9.0\nMode: follower")
    assert found["the servers have different versions"] == "warning"
    assert levels("srvr is not executed because it is not in the whitelist.") == {
        "1 servers do not answer to srvr": "unknown"
    }
