"""The Redis that the other tests rely on: starts, freezes, restarts, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from examples.servers import RedisServer, ServerError, start_redis
from tests.support import wait_until
from tests.support.fixtures import RedisFactory


def _gone(pid: int) -> bool:
    """Whether a process has ended; one that its parent has yet to collect has ended, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_each_version_serves_and_starts_empty(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        assert client.dbsize() == 0
        client.set("left", "behind")
        version = client.info("server")[f"{redis_server.kind}_version"]
    assert tuple(map(int, version.split("."))) == redis_server.version


def test_freeze_and_thaw(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    with server.client() as client, server.client(socket_timeout=0.1, retry=None) as hasty:
        client.set("key", "value")
        server.freeze()
        with pytest.raises(redis.TimeoutError):
            hasty.get("key")
        server.thaw()
        assert client.get("key") == b"value"


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("keep_data", [True, False])
def test_restart_on_the_same_port(end: str, keep_data: bool) -> None:
    with start_redis(own=True, local=True) as server, server.client() as client:
        client.set("key", "value")
        getattr(server, end)()
        with pytest.raises(redis.ConnectionError):
            client.get("key")
        server.restart(keep_data=keep_data)
        assert client.get("key") == (b"value" if keep_data else None)


def test_a_frozen_server_can_be_stopped(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    server.freeze()
    server.stop()
    with pytest.raises(ServerError, match="not running"):
        server.freeze()


def test_password(fresh_redis: RedisFactory) -> None:
    server = fresh_redis(extra_args=["--requirepass", "se/cr@t"])
    with server.client() as client:
        assert client.ping()
    with (
        redis.Redis.from_url(f"redis://127.0.0.1:{server.port}", retry=None) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_a_failed_start_carries_the_log_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ServerError, match="no-such-option"):
        start_redis(extra_args=["--no-such-option", "yes"], own=True, local=True)
    assert list(tmp_path.iterdir()) == []


def test_an_external_server_cannot_be_stopped(any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCING_TEST_REDIS_URL", any_redis.url)
    with start_redis() as server:
        assert server.url == any_redis.url
        assert server.version == any_redis.version
        for handle in (server.freeze, server.thaw, server.stop, server.kill, server.restart):
            with pytest.raises(ServerError, match="FENCING_TEST_REDIS_URL"):
                handle()


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", [False, True])
def test_nothing_is_left_when_this_interpreter_is_killed(tmp_path: Path, frozen: bool) -> None:
    code = (
        "import time\n"
        "from examples.servers import start_redis\n"
        "server = start_redis(own=True, local=True)\n"
        f"{'server.freeze()' if frozen else ''}\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not _gone(pid)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: _gone(pid))
    wait_until(lambda: not list(tmp_path.iterdir()))
