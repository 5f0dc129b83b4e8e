"""`fencing run` in a terminal of 80 columns, below a shell with job control."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from examples.servers import RedisServer
from fencing import Coordinator, RedisCoordinator
from tests.support import wait_until
from tests.support.command_line import SOON
from tests.support.commands import COMMAND, environment
from tests.support.waiters import Queue

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash"),
]

PROMPT = "prompt> "
TICKS = """
import signal, time
signal.signal(signal.SIGCONT, lambda *_: print("continued", flush=True))
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
"""Not a loop of sh: Ctrl-Z may find that between vfork and exec, where Linux does not stop it."""


@pytest.fixture
def coordinator(any_redis: RedisServer) -> Iterator[Coordinator]:
    with RedisCoordinator(any_redis.client()) as coordinator:
        yield coordinator


@pytest.fixture
def shell(any_redis: RedisServer) -> Iterator[Any]:
    """A bash in a terminal, for which `run` is `fencing run` at a Redis."""
    variables = {
        "FENCING_REDIS_URL": any_redis.url,
        "PS1": PROMPT,
        "TERM": "dumb",
        "HISTFILE": "",
        "TICKS": TICKS,
        "PYTHON": sys.executable,
    }
    bash = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "--noediting", "-i"],
        env=environment(**variables),
        dimensions=(24, 80),
        timeout=SOON,
        encoding="utf-8",
        echo=False,
    )
    bash.expect_exact(PROMPT)
    bash.sendline(f"set -b; alias run='{' '.join(COMMAND)} run report'")  # -b: say at once that a job is stopped
    bash.expect_exact(PROMPT)
    yield bash
    bash.close(force=True)


def status_of(shell: Any) -> int:
    """Wait for the prompt, and return the status of the last command."""
    shell.expect_exact(PROMPT)
    shell.sendline("echo status=$?.")
    shell.expect(r"status=(\d+)\.")
    found = int(shell.match.group(1))
    shell.expect_exact(PROMPT)
    return found


def test_the_command_has_the_terminal(shell: Any) -> None:
    foreground = "import os; print(*(os.tcgetpgrp(each) == os.getpgrp() for each in range(3)))"
    shell.sendline(f"run -- sh -c 'stty size; $PYTHON -c \"{foreground}\"; read x; echo got $x'")
    shell.expect_exact("24 80")
    shell.expect_exact("True True True")
    shell.sendline("a line")
    shell.expect_exact("got a line")
    assert status_of(shell) == 0


def test_ctrl_c_ends_the_command(shell: Any, coordinator: Coordinator) -> None:
    shell.sendline("run -- sh -c 'echo ready; exec sleep 60'")
    shell.expect_exact("ready")
    shell.sendintr()
    assert status_of(shell) == 130
    assert coordinator.holder("report") is None


def test_a_command_may_handle_ctrl_c(shell: Any, coordinator: Coordinator) -> None:
    shell.sendline("run -- sh -c 'trap \"echo handled\" INT; echo ready; read x; read x; exit 4'")
    shell.expect_exact("ready")
    shell.sendintr()
    shell.expect_exact("handled")
    assert coordinator.holder("report") is not None
    shell.sendline("")
    shell.sendline("")
    assert status_of(shell) == 4


def test_ctrl_c_ends_the_wait_for_the_lock(shell: Any, any_redis: RedisServer, coordinator: Coordinator) -> None:
    with coordinator.hold("report"):
        shell.sendline("run -- echo ran")
        Queue(any_redis, "report").has(1)
        shell.sendintr()
        assert status_of(shell) == 130


def test_ctrl_c_ends_an_election(shell: Any) -> None:
    shell.sendline("run --elect -- sh -c 'echo ready; exec sleep 60'")
    shell.expect_exact("ready")
    shell.sendintr()
    assert status_of(shell) == 130


def test_ctrl_z_stops_both_and_fg_continues_both(shell: Any, coordinator: Coordinator) -> None:
    shell.sendline('run --ttl 60 -- $PYTHON -c "$TICKS"')
    shell.expect_exact("ready")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect_exact(PROMPT)
    assert coordinator.holder("report") is not None
    shell.sendline("fg")
    shell.expect_exact("continued")
    shell.sendintr()
    assert status_of(shell) == 130


def test_a_job_may_go_on_in_the_background(shell: Any) -> None:
    shell.sendline("run --ttl 60 -- sh -c 'echo ready; read x; echo got $x; exit 3'")
    shell.expect_exact("ready")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect_exact(PROMPT)
    shell.sendline("bg")
    shell.expect("Stopped")  # it reads from the terminal, which is the shell's
    shell.sendline("fg")
    shell.sendline("a line")
    shell.expect_exact("got a line")
    assert status_of(shell) == 3


def test_a_job_that_ends_in_the_background_leaves_the_terminal_alone(shell: Any, tmp_path: Path) -> None:
    wait = f"import os, time; print('ready', flush=True)\nwhile not os.path.exists('{tmp_path}/end'): time.sleep(0.05)"
    shell.sendline(f'run --ttl 60 -- $PYTHON -c "{wait}"')
    shell.expect_exact("ready")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect_exact(PROMPT)
    shell.sendline("bg")
    shell.expect_exact(PROMPT)
    (tmp_path / "end").touch()
    shell.expect("Done")
    assert os.tcgetpgrp(shell.child_fd) == shell.pid


def test_a_script_is_stopped_and_continued_with_its_command(shell: Any) -> None:
    run = f"{' '.join(COMMAND)} run report --ttl 60"
    shell.sendline(f"bash -c '{run} -- $PYTHON -c \"$TICKS\"; echo then $?'".replace("$PYTHON", sys.executable))
    shell.expect_exact("ready")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect_exact(PROMPT)
    shell.sendline("fg")
    shell.expect_exact("continued")
    shell.sendintr()
    shell.expect_exact("then 130")


def test_a_job_that_began_in_the_background_gets_the_terminal(shell: Any) -> None:
    shell.sendline("run --ttl 60 -- sh -c 'echo ready; read x; echo got $x; exit 3' &")
    shell.expect_exact("ready")
    shell.sendline("fg")
    shell.sendline("a line")
    shell.expect_exact("got a line")
    assert status_of(shell) == 3


def test_a_stopped_job_loses_its_lock(shell: Any, coordinator: Coordinator) -> None:
    shell.sendline('run --ttl 1 -- $PYTHON -c "$TICKS"')
    shell.expect_exact("ready")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect_exact(PROMPT)
    with coordinator.hold("report", timeout=SOON):
        shell.sendline("fg")
        shell.expect_exact("fencing: the lock was lost, so the command was ended")
        assert "continued" not in shell.before
        assert status_of(shell) == 76


def test_the_size_of_the_window(shell: Any) -> None:
    shell.sendline("run -- bash -c 'trap \"stty size; exit 3\" WINCH; echo ready; while :; do sleep 0.05; done'")
    shell.expect_exact("ready")
    shell.setwinsize(30, 100)
    shell.expect_exact("30 100")
    assert status_of(shell) == 3


def test_another_process_of_a_pipeline_keeps_the_keyboard(shell: Any, tmp_path: Path) -> None:
    command = f"sh -c 'echo ready >&2; until [ -e {tmp_path}/end ]; do sleep 0.05; done; echo data'"
    shell.sendline(f"run -- {command} | sh -c 'read x < /dev/tty; touch {tmp_path}/end; echo got $x and $(cat)'")
    shell.expect_exact("ready")
    shell.sendline("keys")
    shell.expect_exact("got keys and data")
    assert status_of(shell) == 0


def test_a_command_in_a_pipeline_gets_the_keyboard_when_it_reads(shell: Any) -> None:
    shell.sendline("run -- sh -c 'echo ready >&2; read x; echo got $x' | cat")
    shell.expect_exact("ready")
    shell.sendline("keys")
    shell.expect_exact("got keys")
    assert status_of(shell) == 0


def test_ctrl_z_of_a_pipeline(shell: Any) -> None:
    shell.sendline("""run --ttl 60 -- sh -c 'echo $$.; exec $PYTHON -c "$TICKS"' | cat""")
    shell.expect(r"(\d+)\.")
    command = shell.match.group(1)
    shell.expect_exact("ready")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect_exact(PROMPT)
    wait_until(lambda: subprocess.check_output(["ps", "-o", "stat=", "-p", command]).startswith(b"T"), SOON)
    shell.sendline("fg")
    shell.expect_exact("continued")
    shell.sendintr()
    shell.expect_exact(PROMPT)


def test_ctrl_c_of_a_pipeline(shell: Any, coordinator: Coordinator) -> None:
    shell.sendline("set -o pipefail; run -- sh -c 'echo ready; exec sleep 60' | cat")
    shell.expect_exact("ready")
    shell.sendintr()
    assert status_of(shell) == 130
    assert coordinator.holder("report") is None


def test_without_job_control_ctrl_z_stops_nothing(any_redis: RedisServer) -> None:
    words = ["run", "report", "--redis", any_redis.url, "--", sys.executable, "-c", TICKS]
    alone = pexpect.spawn(
        COMMAND[0], [*COMMAND[1:], *words], env=environment(), dimensions=(24, 80), timeout=SOON, encoding="utf-8"
    )
    alone.expect_exact("ready")
    alone.sendcontrol("z")
    alone.expect_exact("continued")
    alone.sendintr()
    alone.expect(pexpect.EOF)
    alone.close()
    assert alone.exitstatus == 130


def test_a_command_that_was_killed_leaves_no_broken_terminal(shell: Any) -> None:
    shell.sendline("run -- sh -c 'stty -echo -icanon; echo ready; kill -9 $$'; stty -a")
    shell.expect_exact("ready")
    shell.expect(" icanon")


def test_a_terminal_that_is_hung_up(any_redis: RedisServer, coordinator: Coordinator) -> None:
    words = ["run", "report", "--redis", any_redis.url, "--", "sh", "-c", "echo ready; exec sleep 60"]
    alone = pexpect.spawn(COMMAND[0], [*COMMAND[1:], *words], env=environment(), timeout=SOON, encoding="utf-8")
    alone.expect_exact("ready")
    alone.kill(signal.SIGHUP)
    alone.expect(pexpect.EOF)
    alone.close()
    assert alone.exitstatus == 128 + signal.SIGHUP
    assert coordinator.holder("report") is None
