"""The S3 that the other tests rely on. What every object store has to do is in test_object_stores.py."""

import os
import socket
import threading
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from examples.servers import S3Server, ServerError, start_s3
from tests.support import wait_until
from tests.support.object_checks import at_once

pytestmark = pytest.mark.thorough  # it tests only what other tests use


def test_the_same_bytes_bring_an_old_etag_back(s3_server: S3Server) -> None:
    store = s3_server.store()
    first = obstore.put(store, "key", b"one")["e_tag"]
    assert obstore.put(store, "key", b"two")["e_tag"] != first
    assert obstore.put(store, "key", b"one", attributes={"changed": "metadata"})["e_tag"] == first


def test_a_stopped_upload_blocks_no_other_client(s3_server: S3Server) -> None:
    bucket = s3_server.new_bucket()
    store = s3_server.store(bucket=bucket)
    head = f"PUT /{bucket}/half HTTP/1.1\r\nHost: s3\r\nContent-Length: 10\r\n"
    with socket.create_connection((s3_server.host, s3_server.port), timeout=120) as client:
        client.sendall(f"{head}\r\nhalf".encode())
        obstore.put(store, "whole", b"whole", mode="create")
        client.shutdown(socket.SHUT_WR)
        client.recv(1)  # the server has seen the end
    assert [entry["path"] for entry in obstore.list(store).collect()] == ["whole"]


def test_of_puts_that_meet_one_wins() -> None:
    """The pause makes them meet; without the lock all of them win: see test_a_racy_s3_lets_all_win."""
    wins: list[int] = []
    with start_s3(pause=0.2) as server:
        store = server.store()

        def create(number: int) -> None:
            try:
                obstore.put(store, "key", b"%d" % number, mode="create")
            except AlreadyExistsError:
                return
            wins.append(number)

        at_once(create)
    assert len(wins) == 1


def test_servers_that_start_at_once_are_apart_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    servers: list[S3Server] = []
    threads = [threading.Thread(target=lambda: servers.append(start_s3())) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # a start has a time-out of its own
        one, two = servers
        assert one.port != two.port
        bucket = one.new_bucket()
        assert bucket == two.new_bucket()
        obstore.put(one.store(bucket=bucket), "big", bytes(12_000_000), use_multipart=True)
        assert obstore.list(two.store(bucket=bucket)).collect() == []
        pids = [server.pid for server in servers if server.pid]
        assert len(pids) == 2
    finally:
        for server in servers:
            server.close()
    assert [server.pid for server in servers] == [None, None]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_failed_start_carries_the_log_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("examples.servers.s3.PROGRAM", "examples.servers.no_such_program")
    with pytest.raises(ServerError, match="no_such_program"):
        start_s3()
    assert list(tmp_path.iterdir()) == []
