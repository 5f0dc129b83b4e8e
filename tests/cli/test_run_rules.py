"""The rules of `fencing run` and `fencing free` whose loss would hurt, in this process, so that they cost little.

A command and a test wait for each other: the command writes into one pipe, and reads from another one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from fencing import Coordinator, connect
from fencing.cli.child import Watcher
from fencing.cli.holders import _force_out
from tests.support.commands import Command, guard_on

SOON = 60.0
"""Seconds: a limit of the test. What is right takes much less."""

WAIT = "echo here > /dev/fd/{there}; read x < /dev/fd/{go}"
"""What a command does first. What it starts has the first pipe, too."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def coordinator(url: str) -> Iterator[Coordinator]:
    with connect(url) as coordinator:
        yield coordinator


def run_with(
    command: Command, options: list[str], then: str, meanwhile: Callable[[], object]
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a command under a lock, and do something while it runs.

    Returns:
        What became of it, and what it and the processes that it has started have written into the pipe until all of
        them were gone.
    """
    (there, its_there), (its_go, go) = os.pipe(), os.pipe()
    os.set_inheritable(its_there, True)
    os.set_inheritable(its_go, True)
    ours = {its_there, its_go, go}

    def close(descriptor: int) -> None:
        if descriptor in ours:
            ours.remove(descriptor)
            os.close(descriptor)

    def accompany() -> str:
        with open(there, encoding="utf-8") as lines:
            if lines.readline():  # it has started
                close(its_there)
                try:
                    meanwhile()
                finally:
                    os.write(go, b"go\n")
            return lines.read()

    words = ["run", "a", *options, "--", "sh", "-c", f"{WAIT}; {then}".format(there=its_there, go=its_go)]
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(accompany)
        try:
            return command(*words), met.result(SOON)
        finally:
            for descriptor in (its_there, its_go, go):
                close(descriptor)


def test_the_lock_is_held_while_the_command_runs(command: Command, url: str, coordinator: Coordinator) -> None:
    seen: list[object] = []
    done, _ = run_with(command, ["--coordinator", url], "exit 7", lambda: seen.append(coordinator.holder("a")))
    assert (done.returncode, seen != [None], coordinator.holder("a")) == (7, True, None)


def test_a_lock_that_was_lost_is_not_success(command: Command, url: str, coordinator: Coordinator) -> None:
    done, _ = run_with(command, ["--coordinator", url], "exit 0", lambda: coordinator.force_release("a"))
    assert done.returncode == 76


def test_a_lost_lock_ends_all_that_the_command_has_started(
    command: Command, url: str, coordinator: Coordinator
) -> None:
    options = ["--coordinator", url, "--ttl", "0.5", "--grace", "0"]
    done, written = run_with(
        command, options, "(sleep 20; echo late > /dev/fd/{there}) & sleep 5", lambda: coordinator.force_release("a")
    )
    assert (done.returncode, written) == (76, "")


def test_the_group_ends_with_us(tmp_path: Path) -> None:
    """The kernel closes the watcher's pipe, whatever has ended us."""
    with closing(Watcher(grace=0)) as watcher:
        watcher.wait()
        stubborn = subprocess.Popen(
            ["sh", "-c", 'trap "" TERM; echo ready; exec sleep 30'],
            stdout=subprocess.PIPE,
            process_group=watcher.group,
        )
        with stubborn:
            assert stubborn.stdout is not None
            assert stubborn.stdout.readline() == b"ready\n"
            pipe = watcher._process.stdin
            assert pipe is not None
            pipe.close()
            try:
                assert stubborn.wait(SOON) == -9
            finally:
                stubborn.kill()


def test_a_key_is_done_once_and_noted(command: Command, url: str, tmp_path: Path) -> None:
    with guard_on(url) as guard:
        guard.create_tables()
    words = ["run", "a", "--database", url, "--once", "day 1", "--"]
    first, again = command(*words, "echo", "ran"), command(*words, "echo", "ran")
    assert (first.returncode, first.stdout, first.stderr) == (0, "ran\n", "")
    assert (again.returncode, again.stdout) == (0, "")


def test_the_command_gets_the_fence_and_no_url(command: Command, url: str) -> None:
    done = command("run", "a", "--", "env", FENCING_DATABASE_URL=url, FENCING_STORE_URL="s3://me:s3cr3t@bucket")
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert {name for name in names if name.startswith("FENCING_")} == {"FENCING_TOKEN", "FENCING_NUMBER"}


def test_only_the_holder_that_was_shown_is_forced_out(coordinator: Coordinator) -> None:
    with coordinator.hold("a"):
        shown = coordinator.holder("a")
    assert shown is not None
    with coordinator.hold("a") as later:
        assert _force_out(coordinator, "a", shown) is None
        later.renew()
