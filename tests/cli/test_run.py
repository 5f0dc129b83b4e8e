"""`fencing run`, as processes, with real servers."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from examples.servers import PostgresServer, RedisServer
from fencing import Coordinator, Fence, MemoryCoordinator, RedisCoordinator
from fencing.cli.child import Runner
from fencing.cli.signals import Ended, Signals
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.command_line import SOON, started
from tests.support.commands import COMMAND, environment, fencing
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.waiters import Queue

pytestmark = pytest.mark.thorough

NAME = "report"
LIMIT = 20.0  # seconds, for what stood still for ever
LONG = "60"  # a ttl: no lock frees itself within the test
PATIENT = 'trap "echo caught; exit 9" TERM INT HUP QUIT; echo ready; while :; do sleep 0.05; done'
NEVER = "trap : TERM; echo ready; i=0; while [ $i -lt 1000 ]; do i=$((i + 1)); sleep 0.05; done"


@pytest.fixture
def redis(any_redis: RedisServer) -> str:
    return any_redis.url


@pytest.fixture
def coordinator(any_redis: RedisServer) -> Iterator[Coordinator]:
    with RedisCoordinator(any_redis.client()) as coordinator:
        yield coordinator


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/data.db"
    create_tables(url)
    return url


def create_tables(url: str) -> None:
    engine = create_engine(url)
    SQLAlchemyGuard(engine).create_tables()
    engine.dispose()


def claim(url: str, fence: Fence) -> None:
    engine = create_engine(url)
    SQLAlchemyGuard(engine).claim(fence)
    engine.dispose()


def shell(command: str, *options: str, redis: str, name: str = NAME) -> tuple[str, ...]:
    return ("run", name, "--redis", redis, "--ttl", LONG, *options, "--", "sh", "-c", command)


# The exit status


@pytest.mark.parametrize(
    ("command", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_status_is_the_commands(redis: str, coordinator: Coordinator, command: str, status: int) -> None:
    assert fencing(*shell(command, redis=redis)).returncode == status
    assert coordinator.holder(NAME) is None


def test_without_a_service(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    assert fencing("run", NAME, "--local", "--", "sh", "-c", "exit 4", **state).returncode == 4
    assert fencing("run", NAME, "--", "true").returncode == 78


def test_a_command_that_cannot_be_started(redis: str, coordinator: Coordinator, tmp_path: Path) -> None:
    missing = fencing("run", NAME, "--redis", redis, "--", "no-such-command")
    assert (missing.returncode, "'no-such-command' cannot be started" in missing.stderr) == (127, True)
    assert fencing("run", NAME, "--redis", redis, "--", str(tmp_path)).returncode == 126
    assert coordinator.holder(NAME) is None


@pytest.mark.parametrize("wait", [("--no-wait",), ("--timeout", "1")])
def test_a_lock_that_is_held(redis: str, coordinator: Coordinator, wait: tuple[str, ...]) -> None:
    with coordinator.hold(NAME):
        done = fencing(*shell("echo ran", *wait, redis=redis))
        other = fencing(*shell("echo ran", *wait, "--busy-status", "1", redis=redis))
    assert (done.returncode, done.stdout, other.returncode) == (75, "", 1)
    assert "fencing: 'report' is held by" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("run", NAME),
        ("run", NAME, "--timeout", "1", "--no-wait", "--", "true"),
        ("run", NAME, "--timeout", "soon", "--", "true"),
        ("run", NAME, "--ttl", "-1", "--", "true"),
        ("run", NAME, "--shell", "--", "echo", "two"),
        ("run", NAME, "--slots", "2", "--at-least", "-1", "--", "true"),
        ("run", NAME, "--slots", "2", "--once", "key", "--", "true"),
        ("run", NAME, "--elect", "--once", "key", "--", "true"),
        ("run", NAME, "--once", "key", "--", "true"),
        ("run", NAME, "--guard", "etcd://host", "--", "true"),
        ("run", NAME, "--busy-status", "256", "--", "true"),
        ("run", NAME, "--grace", "nan", "--", "true"),
        ("run", NAME, "--grace", "inf", "--", "true"),
        ("run", "fencing:name", "--", "true"),
    ],
)
def test_wrong_usage(redis: str, words: tuple[str, ...]) -> None:
    done = fencing(*words, FENCING_REDIS_URL=redis)
    assert done.returncode == 64
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_no_answer(redis: str) -> None:
    nothing = "redis://localhost:1"
    away = fencing("run", NAME, "--redis", nothing, "--no-wait", "--", "echo", "ran")
    guard = fencing(*shell("echo ran", "--guard", nothing, "--no-wait", redis=redis))
    assert (away.returncode, guard.returncode, away.stdout + guard.stdout) == (69, 69, "")


# The environment, and what passes through


def test_the_command_gets_the_fence_and_no_urls(redis: str, coordinator: Coordinator) -> None:
    text = "import os; print(os.environ['FENCING_TOKEN'], os.environ['FENCING_NUMBER'], sorted(os.environ))"
    urls = {"FENCING_REDIS_URL": redis, "FENCING_REDLOCK_URLS": "", "FENCING_SLOT": "7", "OTHER_URL": "kept"}
    words = ("run", NAME, "--", sys.executable, "-c", text)
    token, number, *names = fencing(*words, **urls).stdout.split(maxsplit=2)
    fence = Fence.parse(token)
    assert (fence.resource, str(fence.number)) == (NAME, number)
    assert "FENCING_TOKEN" in names[0]
    assert "'OTHER_URL'" in names[0]
    assert not any(name in names[0] for name in ("FENCING_REDIS_URL", "FENCING_REDLOCK_URLS", "FENCING_SLOT"))
    assert "'FENCING_REDIS_URL'" in fencing("run", NAME, "--pass-env", *words[2:], **urls).stdout
    with coordinator.hold(NAME) as lease:
        assert lease.fence.number > fence.number


def test_a_command_writes_through_the_guard(redis: str, any_redis: RedisServer) -> None:
    text = f"""
import redis
from fencing import Fence
from storage_guards import RedisGuard
RedisGuard(redis.Redis.from_url({redis!r})).write(Fence.from_environment(), ("SET", "{{report}}:ran", "yes"))
"""
    done = fencing("run", NAME, "--redis", redis, "--guard", redis, "--", sys.executable, "-c", text)
    assert (done.returncode, any_redis.client().get("{report}:ran")) == (0, b"yes"), done.stderr


def test_the_label_and_the_shell(redis: str, coordinator: Coordinator) -> None:
    words = ("run", NAME, "--redis", redis, "--label", "nightly", "--shell", "--", "echo one | sed s/one/two/; read x")
    with started(*words) as running:
        assert running.line() == "two"
        holder = coordinator.holder(NAME)
        assert holder is not None
        assert holder.owner == "nightly"
        running.write("")
        assert running.status() == 0


def test_stdin_stdout_and_stderr_pass_untouched(redis: str) -> None:
    data = os.urandom(300_000) + b"\r\n\0\xff"
    words = [*COMMAND, *shell("cat; echo error >&2", redis=redis)]
    done = subprocess.run(words, input=data, capture_output=True, env=environment(), timeout=SOON, check=False)
    assert (done.stdout == data, done.stderr) == (True, b"error\n")


def test_a_closed_pipe_ends_the_command(redis: str, coordinator: Coordinator) -> None:
    with started("run", NAME, "--redis", redis, "--", "yes") as running:
        assert running.line() == "y"
        running.stdout.close()
        assert running.status() == 128 + signal.SIGPIPE
    assert coordinator.holder(NAME) is None


def test_the_lock_stays_taken_for_a_while(redis: str, coordinator: Coordinator) -> None:
    assert fencing(*shell("exit 0", "--at-least", "30", redis=redis)).returncode == 0
    assert coordinator.try_acquire(NAME) is None


def test_slots(redis: str) -> None:
    with ExitStack() as stack:
        words = shell("echo $FENCING_SLOT; read x", "--slots", "2", redis=redis)
        two = [stack.enter_context(started(*words)) for _ in range(2)]
        assert sorted(each.line() for each in two) == ["0", "1"]
        assert fencing(*shell("echo ran", "--slots", "2", "--no-wait", redis=redis)).returncode == 75
        for each in two:
            each.write("")
            assert each.status() == 0


def test_a_slot_outlasts_a_short_command(redis: str) -> None:
    assert fencing(*shell("true", "--slots", "1", "--at-least", "600", redis=redis)).returncode == 0
    assert fencing(*shell("echo ran", "--slots", "1", "--no-wait", redis=redis)).returncode == 75


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_passed_on(redis: str, coordinator: Coordinator, number: signal.Signals) -> None:
    with started(*shell(PATIENT, redis=redis)) as running:
        assert running.line() == "ready"
        running.signal(number)
        assert (running.status(), running.rest()) == (9, "caught\n")
    assert coordinator.holder(NAME) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_status_after_a_signal(redis: str, coordinator: Coordinator, number: signal.Signals) -> None:
    with started(*shell("echo ready; exec sleep 60", redis=redis)) as running:
        assert running.line() == "ready"
        running.signal(number)
        assert running.status() == 128 + number
    assert coordinator.holder(NAME) is None


def test_signals_of_users_go_to_the_command_alone(redis: str) -> None:
    traps = """trap 'echo one' USR1; trap 'kill $!; wait $!; echo other: $?; exit 5' USR2"""
    with started(*shell(f"sleep 60 & {traps}; echo ready; while :; do sleep 0.05; done", redis=redis)) as running:
        assert running.line() == "ready"
        running.signal(signal.SIGUSR1)
        assert running.line() == "one"
        running.signal(signal.SIGUSR2)
        assert (running.line(), running.status()) == ("other: 143", 5)  # SIGTERM has ended it, and no signal before


def test_a_signal_ends_the_wait_for_the_lock(redis: str, any_redis: RedisServer, coordinator: Coordinator) -> None:
    with coordinator.hold(NAME), started(*shell("echo ran", redis=redis)) as waiting:
        Queue(any_redis, NAME).has(1)
        waiting.signal(signal.SIGTERM)
        assert (waiting.status(), waiting.rest()) == (143, "")
    coordinator.acquire(NAME, timeout=5).release()  # it has left the queue


def test_an_ignored_signal_stays_ignored(redis: str) -> None:
    if not shutil.which("nohup"):
        pytest.skip("there is no nohup")
    command = f"exec nohup {sys.executable} -m fencing run {NAME} --redis {redis} -- sh -c 'echo ready; read x; exit 6'"
    with started("run", "outer", "--redis", redis, "--", "sh", "-c", command) as running:
        assert running.line() == "ready"
        running.signal(signal.SIGHUP)
        running.write("")
        assert running.status() == 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_comes_in_a_finalizer_is_not_forgotten() -> None:
    """Python prints what a finalizer raises, and goes on. The command is not started then."""

    class Ending:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    lease: Any = None  # it is not asked
    with Signals() as signals, closing(Runner(signals, grace=1)) as runner:
        Ending()
        with pytest.raises(Ended) as ended:
            runner.run(["false"], {}, lease)
    assert ended.value.number == signal.SIGTERM


def test_a_signal_that_comes_in_a_finalizer_ends_the_wait_for_the_lock() -> None:
    class Ending:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with MemoryCoordinator() as coordinator, coordinator.hold(NAME), Signals():
        Ending()
        with pytest.raises(Ended) as ended:
            coordinator.acquire(NAME, timeout=LIMIT)
    assert ended.value.number == signal.SIGTERM


def test_whoever_starts_us_may_have_blocked_the_signal_of_an_end(redis: str, coordinator: Coordinator) -> None:
    """As daemons do that read their signals from a file. A signal that is blocked stays so in what they start."""
    block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]); "
    words = [sys.executable, "-c", f"{block}os.execv(sys.executable, sys.argv[1:])", *COMMAND]
    done = subprocess.run(
        [*words, *shell("sleep 0.3; exit 4", redis=redis)], env=environment(), timeout=LIMIT, check=False
    )
    assert done.returncode == 4
    assert coordinator.holder(NAME) is None


def test_nothing_is_left_where_we_are_killed(redis: str, coordinator: Coordinator) -> None:
    with started(*shell(f"({NEVER}) & sleep 60", "--grace", "0.2", redis=redis)) as running:
        assert running.line() == "ready"
        running.signal(signal.SIGKILL)
        assert running.rest() == ""  # the end of the pipe: all that had it are gone
    assert coordinator.holder(NAME) is not None  # its ttl frees it


# A lost lock


def test_a_lost_lock_ends_the_whole_group(redis: str, coordinator: Coordinator) -> None:
    patient = '(trap "sleep 0.2; echo clean; exit" TERM; echo ready; while :; do sleep 0.05; done) &'
    words = shell(f"{patient} sleep 60", "--ttl", "1", redis=redis)
    with started(*words) as running:
        assert running.line() == "ready"
        coordinator.force_release(NAME)
        assert running.status() == 76
        assert running.rest() == "clean\n"  # the command has ended first, and this process had its grace
        assert "fencing: the lock was lost, so the command was ended" in running.errors()


def test_a_loss_that_is_noticed_at_the_end(redis: str, coordinator: Coordinator) -> None:
    with started(*shell("echo ready; read x", "--lost-status", "4", redis=redis)) as running:
        assert running.line() == "ready"
        coordinator.force_release(NAME)
        running.write("")
        assert running.status() == 4
        assert "the block had already run to its end" in running.errors()


def watcher_beside(command: int) -> int:
    """Return the process id of the watcher: it is the command's group."""
    return os.getpgid(command)


def test_a_watcher_that_is_stopped_does_not_keep_us(redis: str) -> None:
    with started(*shell("echo $$; read x; exit 6", redis=redis)) as running:
        os.kill(watcher_beside(int(running.line())), signal.SIGSTOP)
        running.write("")
        assert running.process.wait(LIMIT) == 6


def test_a_watcher_that_is_killed_is_replaced(redis: str) -> None:
    with started(*shell("echo $$; exec sleep 600", "--grace", "0", redis=redis)) as running:
        command = int(running.line())
        first = watcher_beside(command)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: watchers_of(running.process.pid) not in ([], [first]))
        running.signal(signal.SIGKILL)
        try:
            wait_until(lambda: not Path(f"/proc/{command}").exists(), LIMIT)
        finally:
            with suppress(ProcessLookupError):
                os.kill(command, signal.SIGKILL)


def watchers_of(pid: int) -> list[int]:
    """Return the children of a process that are watchers and run."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):
            if b"watcher.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def test_a_watcher_that_is_stopped_takes_nothing_from_the_grace(redis: str, coordinator: Coordinator) -> None:
    patient = 'trap "sleep 0.2; echo clean; exit" TERM; echo $$; while :; do sleep 0.05; done'
    with started(*shell(patient, "--grace", "3", "--ttl", "1", redis=redis)) as running:
        os.kill(watcher_beside(int(running.line())), signal.SIGSTOP)
        coordinator.force_release(NAME)
        assert (running.status(), running.rest()) == (76, "clean\n")


def test_what_ignores_sigterm_is_killed_after_the_grace(redis: str, coordinator: Coordinator) -> None:
    words = shell(f"({NEVER}) & {NEVER}", "--ttl", "3", "--grace", "0.3", "--lost-status", "5", redis=redis)
    with started(*words) as running:
        assert [running.line(), running.line()] == ["ready", "ready"]
        coordinator.force_release(NAME)
        assert (running.status(), running.rest()) == (5, "")


def test_a_frozen_holder_loses_the_lock_and_its_command(redis: str, coordinator: Coordinator) -> None:
    with started(*shell("echo ready; exec sleep 60", "--ttl", "3", redis=redis)) as running:
        assert running.line() == "ready"
        running.signal(signal.SIGSTOP)
        lease = coordinator.acquire(NAME, timeout=SOON)
        running.signal(signal.SIGCONT)
        assert running.status() == 76
        assert lease.held
        lease.release()


def test_a_release_that_fails_is_a_warning(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    with started(*shell("echo ready; read x; exit 3", "--ttl", "3", redis=server.url)) as running:
        assert running.line() == "ready"
        server.kill()
        running.write("")
        assert running.status() == 3
        assert "fencing: the lock on 'report' could not be released" in running.errors()


# Once


def once(database: str, redis: str, *options: str) -> tuple[str, ...]:
    return ("run", NAME, "--redis", redis, "--database", database, "--once", "day 1", *options, "--")


def test_a_key_is_done_once(redis: str, database: str) -> None:
    first = fencing(*once(database, redis), "echo", "ran")
    again = fencing(*once(database, redis), "echo", "ran")
    assert (first.returncode, first.stdout, first.stderr) == (0, "ran\n", "")
    assert (again.returncode, again.stdout) == (0, "")
    assert "'day 1' of 'report' was done before" in again.stderr


def test_a_command_that_fails_is_not_done(redis: str, database: str) -> None:
    assert fencing(*once(database, redis), "false").returncode == 1
    assert fencing(*once(database, redis), "echo", "ran").stdout == "ran\n"


def test_of_two_at_once_one_runs(redis: str, database: str) -> None:
    with ExitStack() as stack:
        two = [stack.enter_context(started(*once(database, redis), "echo", "ran")) for _ in range(2)]
        assert [each.status() for each in two] == [0, 0]
        assert "".join(each.rest() for each in two) == "ran\n"


def test_after_a_crash_in_between_it_runs_again(redis: str, database: str) -> None:
    words = once(database, redis, "--ttl", "1")
    with started(*words, "sh", "-c", "echo ready; read x; kill -9 $PPID") as running:
        assert running.line() == "ready"
        running.write("")
        assert running.status() == -signal.SIGKILL
    assert fencing(*words, "echo", "ran").stdout == "ran\n"


def test_a_late_holder_notes_nothing(redis: str, database: str) -> None:
    with started(*once(database, redis), "sh", "-c", "echo $FENCING_NUMBER; read x") as running:
        newer = Fence(NAME, int(running.line()) + 1, "n" * 22)
        claim(database, newer)
        running.write("")
        assert running.status() == 76
        assert "is stale" in running.errors()
    assert done_keys(database) == []


def done_keys(database: str) -> list[str]:
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        return [row[0] for row in connection.execute("SELECT once_key FROM fencing_done")]


def test_what_was_done_meanwhile_ran_twice(redis: str, database: str) -> None:
    with started(*once(database, redis), "sh", "-c", "echo ready; read x") as running:
        assert running.line() == "ready"
        with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
            row = (NAME, "day 1", 1)
            connection.execute("INSERT INTO fencing_done (resource, once_key, number) VALUES (?, ?, ?)", row)
        running.write("")
        assert running.status() == 0
        assert "it ran twice" in running.errors()


def test_a_lost_reply_is_cleared_up(
    redis: str, postgres_url: str, postgres_server: PostgresServer, proxy: ProxyFactory
) -> None:
    create_tables(postgres_url)
    network = proxy(postgres_server)
    words = (*once(network.url(postgres_url), redis), "sh", "-c", "echo $FENCING_NUMBER; read x")
    with started(*words) as running:
        newer = Fence(NAME, int(running.line()) + 1, "n" * 22)
        loss = network.drop_reply_when(lambda request: b"COMMIT" in request)
        running.write("")
        assert loss.wait(SOON)
        claim(postgres_url, newer)  # another try would be refused, and would not tell that the row is there
        assert running.status() == 0
    assert "was done before" in fencing(*words).stderr


def test_a_database_that_is_away_leaves_it_unknown(
    redis: str, postgres_url: str, postgres_server: PostgresServer, proxy: ProxyFactory
) -> None:
    create_tables(postgres_url)
    network = proxy(postgres_server)
    words = (*once(network.url(postgres_url), redis), "sh", "-c", "echo ready; read x")
    with started(*words) as running:
        assert running.line() == "ready"
        network.refuse()
        running.write("")
        assert running.status() == 69
        assert "it may run again" in running.errors()


# An election


def test_two_replicas(redis: str, coordinator: Coordinator) -> None:
    command = 'trap "exit 0" TERM; echo leads; while :; do sleep 0.05; done'
    with ExitStack() as stack:
        words = shell(command, "--elect", "--label", "one", redis=redis)
        first = stack.enter_context(started(*words))
        assert first.line() == "leads"
        second = stack.enter_context(started(*shell(command, "--elect", "--label", "two", redis=redis)))
        leader = coordinator.election(NAME).leader()
        assert leader is not None
        assert leader.value == "one"
        first.signal(signal.SIGTERM)
        assert (first.status(), second.line()) == (0, "leads")
        second.signal(signal.SIGTERM)
        assert second.status() == 0
    assert coordinator.holder(NAME) is None


def test_another_replica_follows_one_that_was_killed(redis: str) -> None:
    with ExitStack() as stack:
        words = shell("echo leads; exec sleep 60", "--elect", "--ttl", "1", redis=redis)
        first = stack.enter_context(started(*words))
        assert first.line() == "leads"
        second = stack.enter_context(started(*words))
        first.signal(signal.SIGKILL)
        assert (first.rest(), second.line()) == ("", "leads")


def test_a_replica_runs_again(redis: str) -> None:
    with started(*shell("echo leads; exit 7", "--elect", "--ttl", "1", redis=redis)) as replica:
        assert [replica.line() for _ in range(3)] == ["leads"] * 3
        replica.signal(signal.SIGTERM)
        assert replica.status() in (143, 7)
        assert "the command has ended with status 7; this replica campaigns again" in replica.errors()


def test_a_replica_that_lost_its_term_runs_again(redis: str, coordinator: Coordinator) -> None:
    words = shell(f"{NEVER}", "--elect", "--ttl", "1", "--grace", "0", redis=redis)
    with started(*words) as replica:
        assert replica.line() == "ready"
        coordinator.force_release(NAME)
        assert replica.line() == "ready"


def test_a_replica_without_a_command_ends(redis: str) -> None:
    assert fencing("run", NAME, "--redis", redis, "--elect", "--", "no-such-command").returncode == 127
