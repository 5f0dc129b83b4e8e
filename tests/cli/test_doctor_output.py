"""``fencing doctor`` in a terminal, in pipes, and interrupted."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from examples.servers import RedisServer
from fencing.cli import doctor
from fencing.cli.doctor.command import show
from fencing.cli.doctor.findings import Examined, Finding, clock, of_servers, status_of
from tests.support.commands import COMMAND, END, Command, environment, fencing, in_terminal
from tests.support.doctor import examined

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "command-line.md"
DOCTOR = [*COMMAND, "doctor"]


def test_the_worst_finding_decides_the_status() -> None:
    def status(*levels: str) -> int:
        return status_of([Examined("a", tuple(Finding(level, "") for level in levels))])  # type: ignore[arg-type]

    assert [status(), status("ok"), status("ok", "warning")] == [0, 0, 1]
    assert [status("warning", "unknown"), status("unknown", "wrong", "warning")] == [69, 2]


def test_a_clock_within_what_the_measurement_allows_is_right() -> None:
    assert [clock(offset, 0.5).level for offset in (0.9, -1.4, 1.6, -1.6)] == ["ok", "ok", "warning", "warning"]
    assert "behind" in clock(-3, 0.1).what


def test_equal_findings_of_several_servers_are_one() -> None:
    one, two = Finding("ok", "well"), Finding("wrong", "ill")
    found = [("a", one), ("b", one), ("b", two)]
    assert [each.what for each in of_servers(found, 2)] == ["all 2: well", "b: ill"]
    assert [each.what for each in of_servers(found, 3)] == ["a, b: well", "b: ill"]


def test_commands_are_printed_as_they_are_and_the_rest_is_wrapped() -> None:
    command = "SET " + "x" * 60
    finding = Finding(
        "wrong", "fact " * 20, "because " * 20, f"{'do it ' * 20}\n{command}", "docs/coordinators/redis.md"
    )
    output = StringIO()
    with redirect_stdout(output):
        show([Examined("redis://one", (finding,)), Examined("redis://two", (Finding("ok", "well", page="docs"),))])
    lines = output.getvalue().splitlines()
    assert f"            {command}" in lines
    assert max(map(len, lines)) <= 80
    assert lines[-3:] == ["", "redis://two", "  ok      well"]


def test_the_keys_of_json_are_those_of_the_page(any_redis: RedisServer) -> None:
    keys = {key for finding in examined("--redis", any_redis.url).findings for key in finding}
    section = PAGE.read_text("utf-8").partition("## `fencing doctor`")[2]
    assert keys == {"service", "level", "what", "why", "change", "page"}
    assert all(f"| `{key}` |" in section for key in keys)


def test_a_wrong_url_does_not_keep_the_others_from_being_examined(any_redis: RedisServer) -> None:
    report = examined("--redis", any_redis.url, FENCING_DATABASE_URL="postgresql://me:12/s3cr3t@h/d")
    found = report.one("its URL is wrong: ")
    assert (found["level"], found["change"]) == ("unknown", "correct the variable FENCING_DATABASE_URL")
    assert "s3cr3t" not in str(report)
    assert report.level("maxmemory-policy") == "ok"
    assert report.status == 69


def test_where_each_url_is_wrong_nothing_is_examined(command: Command) -> None:
    done = command("doctor", "--redis", "redis://h?x=1", "--etcd", "etcd://h?x=1")
    assert (done.returncode, done.stdout) == (64, "")
    assert "fencing: --redis: a URL of redis:// has no option 'x'" in done.stderr
    assert "; --etcd: a URL of etcd:// has no option 'x'" in done.stderr


def test_each_finding_that_is_not_right_says_what_to_do() -> None:
    for file in Path(doctor.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if (
                isinstance(call, ast.Call)
                and ast.unparse(call.func) == "Finding"
                and ast.unparse(call.args[0]) != "'ok'"
            ):
                named = [each for each in call.keywords if each.arg == "change"]
                assert named or len(call.args) > 3, f"{file.name}:{call.lineno}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("variables", "is_styled"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal(any_redis: RedisServer, variables: dict[str, str], is_styled: bool) -> None:
    child = in_terminal("doctor", FENCING_REDIS_URL=any_redis.url, **variables)
    child.expect(END)
    child.close()
    text = child.before
    assert isinstance(text, str)
    assert ("\x1b[32m" in text) is is_styled
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "  ok      maxmemory-policy is noeviction" in plain.splitlines()
    assert max(map(len, plain.splitlines())) <= 80
    assert child.exitstatus == 1


@pytest.mark.thorough
def test_a_closed_pipe(any_redis: RedisServer) -> None:
    variables = environment(FENCING_REDIS_URL=any_redis.url)
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(DOCTOR, stdout=writer, stderr=subprocess.PIPE, text=True, env=variables) as child:
        os.close(writer)
        assert child.communicate(timeout=60)[1] == ""
    assert child.returncode == 128 + signal.SIGPIPE


@pytest.mark.thorough
def test_an_interrupted_doctor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        variables = environment(FENCING_REDIS_URL=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        with subprocess.Popen(DOCTOR, stderr=subprocess.PIPE, text=True, env=variables) as child:
            connection, _ = silent.accept()  # now it waits for an answer
            child.send_signal(signal.SIGINT)
            assert "Traceback" not in child.communicate(timeout=60)[1]
            connection.close()
        assert child.returncode == 128 + signal.SIGINT


@pytest.mark.thorough
def test_help_is_enough() -> None:
    done = fencing("doctor", "--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    for option in ("--redis", "--store", "--write-probe", "--lock", "--json", "Exit status"):
        assert option in done.stdout


@pytest.mark.thorough
def test_json_of_a_process_is_one_line(any_redis: RedisServer) -> None:
    done = fencing("doctor", "--redis", any_redis.url, "--json")
    [line] = done.stdout.splitlines()
    assert {each["service"] for each in json.loads(line)} == {any_redis.url}
