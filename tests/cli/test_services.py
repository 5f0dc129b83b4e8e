"""Which service a command uses; and what every command has in common: statuses, secrets, closed pipes, no typer."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fencing as fencing_library
from fencing.cli.services import KINDS, REDLOCK
from tests.support.commands import Command, fencing

VARIABLES = [kind.variable for kind in (*KINDS, REDLOCK)]
SILENT = "redis://127.0.0.1:1"


def test_without_a_url_it_names_the_variables(command: Command, tmp_path: Path) -> None:
    done = command("holder", "x")
    assert done.returncode == 78
    assert all(variable in done.stderr for variable in VARIABLES)
    assert "--local" in done.stderr


def test_local_locks_are_in_the_users_state_folder(command: Command, tmp_path: Path) -> None:
    done = command("holder", "x", "--local", HOME=str(tmp_path), XDG_STATE_HOME="")
    assert (done.returncode, done.stdout) == (1, "x is free\n")
    folder = tmp_path / ".local" / "state" / "fencing"
    assert (folder / "locks.db").is_file()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("arguments", "variables", "asked"),
    [
        ([], {"FENCING_REDIS_URL": "redis://127.0.0.1:1", "FENCING_ETCD_URL": "etcd://127.0.0.1:2"}, "127.0.0.1:1"),
        (["--etcd", "etcd://127.0.0.1:2"], {"FENCING_REDIS_URL": "redis://127.0.0.1:1"}, "127.0.0.1:2"),
        (["--coordinator", "redis://127.0.0.1:3", "--redis", SILENT], {}, "127.0.0.1:3"),
        ([], {"FENCING_REDLOCK_URLS": "redis://127.0.0.1:4 redis://127.0.0.1:5  redis://127.0.0.1:6"}, "127.0.0.1:4"),
    ],
)
def test_options_count_before_the_environment(
    command: Command, arguments: list[str], variables: dict[str, str], asked: str
) -> None:
    done = command("holder", "x", *arguments, **variables)
    assert done.returncode == 69
    assert asked in done.stderr


def test_a_file_has_the_url(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "redis"
    file.write_text("redis://:s3cr3t@127.0.0.1:1\n")
    done = command("holder", "x", "--redis-file", str(file))
    assert done.returncode == 69
    assert "127.0.0.1:1" in done.stderr
    assert "s3cr3t" not in done.stderr
    assert "has a password" not in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "must have one line"), ("redis://a\nredis://b\n", "must have one line"), (None, "cannot be read")],
)
def test_a_file_without_a_url(command: Command, tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "redis"
    if text is not None:
        file.write_text(text)
    done = command("holder", "x", "--redis-file", str(file))
    assert done.returncode == 64
    assert says in done.stderr
    both = command("holder", "x", "--redis-file", str(file), "--redis", SILENT)
    assert (both.returncode, "not both" in both.stderr) == (64, True)


def test_a_password_in_an_argument_gets_a_warning_and_is_not_shown(command: Command) -> None:
    done = command("holder", "x", "--redis", "redis://:s3cr3t@127.0.0.1:1")
    assert "put the URL into a file for --redis-file" in done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hold", "x"], "No such command 'hold'. Did you mean 'holder'? See: fencing --help"),
        (["holder"], "Missing argument 'NAME'"),
        (["holder", "x", "--nonsense"], "No such option: --nonsense"),
        (["holder", "", "--local"], "resource"),
        (["holder", "x", "--redis", "consul://h"], "no scheme of a coordinator"),
    ],
)
def test_wrong_usage(command: Command, arguments: list[str], says: str) -> None:
    done = command(*arguments)
    assert done.returncode == 64
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_guard_may_be_named_by_a_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "guard"
    file.write_text("redis://:s3cr3t@127.0.0.1:1")
    locks = f"sqlite:///{tmp_path}/locks.db"
    assert command("create-tables", locks).returncode == 0
    words = ["free", "x", "--yes", "--coordinator", locks]
    named, read = command(*words, "--guard", file.read_text()), command(*words, "--guard-file", str(file))
    assert (named.returncode, read.returncode) == (69, 69)
    assert "put the URL into a file for --guard-file" in named.stderr
    assert "put the URL" not in read.stderr
    assert "s3cr3t" not in named.stderr + read.stderr


def test_free_says_that_a_guard_does_not_shut_the_holder_out(command: Command, tmp_path: Path) -> None:
    locks, data = f"sqlite:///{tmp_path}/locks.db", f"sqlite:///{tmp_path}/data.db"
    (tmp_path / "data.db").touch()
    with fencing_library.connect(locks) as coordinator, coordinator.hold("x") as lease:
        done = command("free", "x", "--yes", "--coordinator", locks, "--guard", data)
        assert done.returncode == 78
        assert "x was taken from its holder and is free, but a guard does not shut the holder out" in done.stderr
        assert "call 'fencing create-tables URL' once" in done.stderr
        assert coordinator.holder("x") is None
        lease.detach()


@pytest.mark.thorough
def test_help_and_version() -> None:
    done = fencing()
    assert (done.returncode, done.stderr) == (64, "")
    assert "Commands:" in done.stdout
    for arguments in ([], ["holder"]):
        helped = fencing(*arguments, "--help", COLUMNS="80")
        assert helped.returncode == 0
        assert max(map(len, helped.stdout.splitlines())) <= 80
        assert "\x1b" not in helped.stdout
    assert fencing("--version").stdout.startswith("fencing 0.")


@pytest.mark.thorough
def test_without_the_extra_it_is_named() -> None:
    program = "import sys; sys.modules['typer'] = None; from fencing.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "install fencing with the extra [cli]" in done.stderr


@pytest.mark.thorough
def test_the_library_does_not_import_it() -> None:
    program = (
        "import sys, fencing; fencing.connect('sqlite:///x.db'); fencing.RedisCoordinator\n"
        "print([name for name in ('typer', 'rich', 'fencing.cli') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.thorough
def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "fencing", "--help"]
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 128 + 13
    assert not done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(("redirection", "status"), [(">&-", 0), ("> /dev/full", 74)])
def test_an_output_that_takes_nothing(redirection: str, status: int) -> None:
    for words in ("sql postgresql", "--help"):
        line = f"exec {shlex.quote(sys.executable)} -m fencing {words} {redirection}"
        done = subprocess.run(["/bin/sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == status
        assert "Traceback" not in done.stderr
        assert ("the output cannot be written: [Errno 28]" in done.stderr) is (status == 74)
