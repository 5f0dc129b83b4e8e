"""``fencing holder``, ``list``, ``free`` and ``watch``, as processes: with a terminal of 80 columns and without one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.servers import RedisServer
from fencing import Coordinator, Holder, LeaseLost, RedisCoordinator, StaleFence, connect
from fencing.cli.display import duration, seconds_of, shown, stamp
from fencing.cli.holders import MOST_FREE, _changes, _facts, _picture, _say_event, _Seen, as_json
from fencing.kernel.fence import digest_of, new_token
from fencing.redis.keys import keys_of
from tests.support import wait_until
from tests.support.commands import COMMAND, END, Command, environment, fencing, guard_on, in_terminal
from tests.support.fixtures import ProxyFactory, RedisFactory

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
KEYS = {"owner", "number", "held_for", "remaining", "expires", "released", "waiting"}


@pytest.fixture
def coordinator(any_redis: RedisServer) -> Iterator[Coordinator]:
    with RedisCoordinator(any_redis.client(), ttl=60, owner="worker-1") as coordinator:
        yield coordinator


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The URL of a SQLite database with marks."""
    url = f"sqlite:///{tmp_path}/data.db"
    with guard_on(url) as guard:
        guard.create_tables()
    return url


def of(number: int) -> Holder:
    return Holder("w", number, 1.0, 5.0)


def test_a_watch_counts_each_new_grant_as_a_hand_off() -> None:
    seen: dict[str, _Seen] = {}
    steps: list[tuple[dict[str, Holder], list[tuple[str, str]]]] = [
        ({"a": of(1)}, [("held", "a")]),
        ({"a": of(1), "b": of(1)}, [("held", "b")]),
        ({"a": of(2), "b": of(1)}, [("handed over", "a")]),
        ({"b": of(1)}, [("free", "a")]),
        ({"b": of(1)}, []),
        ({"a": of(2), "b": of(1)}, [("held", "a")]),
        ({"b": of(1)}, [("free", "a")]),
        ({"a": of(3), "b": of(1)}, [("held", "a")]),
    ]
    for now, events in steps:
        assert list(_changes(seen, now)) == events
    assert (seen["a"].hand_offs, seen["b"].hand_offs) == (2, 0)


def test_a_watch_forgets_names_that_became_free_long_ago() -> None:
    seen: dict[str, _Seen] = {}
    for number in range(MOST_FREE + 2):
        list(_changes(seen, {str(number): of(1), "stays": of(1)}))
    list(_changes(seen, {"stays": of(1)}))
    assert len(seen) == MOST_FREE + 1
    assert {"stays", "2"} <= set(seen)
    assert "1" not in seen


def test_what_is_shown_is_one_line_without_control_characters() -> None:
    assert shown("a\n\x1b[31m\ttö") == r"a\n\x1b[31m\ttö"
    assert [duration(each) for each in (0.9, 119, 120, 7199, 7200, 172799, 172800)] == [
        *("0 s", "119 s", "2 min 0 s", "119 min 59 s", "2 h 0 min", "47 h 59 min", "2 d 0 h")
    ]
    assert [seconds_of(each) for each in ("45s", "1.5s", "2m", "3h", "90d", "1w")] == [
        *(45, 1.5, 120, 10_800, 7_776_000, 604_800)
    ]
    for wrong in ("", "d", "-1", "1y", "1 d", "1d2h"):
        with pytest.raises(ValueError, match="is no duration"):
            seconds_of(wrong)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stamp())


@pytest.mark.thorough
def test_holder(any_redis: RedisServer, coordinator: Coordinator) -> None:
    free, free_json = (fencing("holder", "a", "--redis", any_redis.url, *more) for more in ([], ["--json"]))
    assert (free.returncode, free.stdout, free.stderr) == (1, "a is free\n", "")
    assert (free_json.returncode, free_json.stdout) == (1, "null\n")
    with coordinator.hold("a", 5) as lease:
        held, held_json = (fencing("holder", "a", *more, FENCING_REDIS_URL=any_redis.url) for more in ([], ["--json"]))
    assert held.returncode == held_json.returncode == 0
    assert held.stdout.startswith("a is held by worker-1\n")
    assert str(lease.fence.number) in held.stdout
    assert "frees itself  in 5" in held.stdout
    assert "waiting       0" in held.stdout
    assert lease.fence.token not in held.stdout + held_json.stdout
    document = json.loads(held_json.stdout)
    assert set(document) == KEYS
    assert (document["owner"], document["number"], document["expires"]) == ("worker-1", lease.fence.number, True)
    assert document["waiting"] == 0


@pytest.mark.thorough
def test_list(any_redis: RedisServer, coordinator: Coordinator) -> None:
    def listed(*arguments: str) -> subprocess.CompletedProcess[str]:
        return fencing("list", *arguments, "--redis", any_redis.url)

    assert (listed().returncode, listed().stdout, listed("--json").stdout) == (0, "", "[]\n")
    with coordinator.hold("orders:1", 5) as lease, coordinator.hold("a\n\x1b[31m", 5):
        lines = sorted(listed().stdout.splitlines())
        assert [line.split("\t")[:2] for line in lines] == [[r"a\n\x1b[31m", "worker-1"], ["orders:1", "worker-1"]]
        [only] = json.loads(listed("orders:?", "--json").stdout)
        assert set(only) == {"name", *KEYS}
        assert (only["name"], only["number"], only["waiting"]) == ("orders:1", lease.fence.number, 0)


@pytest.mark.thorough
def test_how_many_wait_is_shown(
    command: Command, any_redis: RedisServer, coordinator: Coordinator, tmp_path: Path
) -> None:
    in_table, client = f"sqlite:///{tmp_path}/locks.db", any_redis.client()
    with coordinator.hold("a", 5), connect(in_table) as other, other.hold("a", 5):
        client.zadd(keys_of("a").queue, {f"elsewhere {letter * 22}": 1 for letter in "ab"})
        for url, shown_as, number in ((any_redis.url, "2", 2), (in_table, "not known", None)):
            service = ["--coordinator", url]
            assert f"  waiting       {shown_as}\n" in command("holder", "a", *service).stdout
            assert command("list", *service).stdout.endswith(f"\t{shown_as}\n")
            assert json.loads(command("holder", "a", "--json", *service).stdout)["waiting"] == number
        client.delete(keys_of("a").queue)


def test_how_many_wait_is_a_number_or_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    seen = {name: _Seen(Holder("w", 7, 1.0, 5.0, waiting=waiting), ()) for name, waiting in (("a", 3), ("b", None))}
    Console(width=80).print(_picture("*", seen | {"c": _Seen(None, (), 4)}, []))
    rows = [re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["NAME", "HOLDER", "NUMBER", "HELD FOR", "WAITING", "HAND-OFFS"],
        ["a", "w", "7", "1 s", "3", "0"],
        ["b", "w", "7", "1 s", "not known", "0"],
        ["c", "free", "4"],
    ]
    for name, shown_as, number in (("a", "3", 3), ("b", "not known", None)):
        found = seen[name].holder
        assert found is not None
        assert ("waiting", shown_as) in _facts(found)
        assert as_json(found)["waiting"] == number
        _say_event("held", name, seen[name])
        assert f", waiting: {shown_as}, hand-offs: 0\n" in capsys.readouterr().out


def test_a_number_stays_in_one_line_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    holder = Holder("worker-host-7:12345", 1795313443589306, 7300.0, 5.0)
    Console(width=80).print(_picture("*", {"reports:daily:2026-11-28": _Seen(holder, ())}, []))
    lines = capsys.readouterr().out.splitlines()
    assert any(str(holder.number) in line.split() for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.thorough
def test_a_service_that_is_not_there_is_status_69(any_redis: RedisServer) -> None:
    for command in (["holder", "a"], ["watch"]):
        ended = fencing(*command, "--redis", "redis://127.0.0.1:1")
        assert (ended.returncode, ended.stdout) == (69, ""), ended.stderr


@pytest.mark.thorough
def test_a_list_ends_where_nobody_reads_it(any_redis: RedisServer, coordinator: Coordinator) -> None:
    command = f"{' '.join(COMMAND)} list --redis {any_redis.url}"
    with coordinator.hold("a", 5), coordinator.hold("b", 5):
        shell = ["bash", "-c", f"set -o pipefail; {command} | head -1"]
        ended = subprocess.run(shell, env=environment(), text=True, capture_output=True, timeout=120)
        assert (ended.stdout.count("\n"), ended.stderr) == (1, "")
        assert ended.returncode in (0, 141)  # 0: both lines were written before `head` ended
        reader, writer = os.pipe()
        os.close(reader)
        ended = subprocess.run(
            command.split(), env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120
        )
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (141, "")


def lines_of(terminal: Any) -> list[str]:
    """Return the lines that a command printed until its end, without what moves the cursor."""
    terminal.expect(END)
    terminal.close()
    return ESCAPES.sub("", terminal.before).splitlines()


@pytest.mark.thorough
def test_a_terminal_gets_a_table_or_paragraphs(any_redis: RedisServer, coordinator: Coordinator) -> None:
    def listed() -> list[str]:
        terminal = in_terminal("list", "--redis", any_redis.url, NO_COLOR="1")
        lines = [ESCAPES.sub("", line) for line in lines_of(terminal)]
        assert terminal.exitstatus == 0
        return lines

    long = "orders:" + "x" * 100
    with coordinator.hold("[b]b[/b]", 5):
        headers, row = listed()
        assert headers.split() == ["NAME", "HOLDER", "NUMBER", "HELD", "FOR", "FREES", "ITSELF", "WAITING"]
        assert row.startswith("[b]b[/b]  worker-1  "), "a name is no markup"
        assert max(map(len, (headers, row))) <= 80
        with coordinator.hold(long, 5):
            lines = listed()
    assert [line for line in lines if not line.startswith("  ")] == ["[b]b[/b]", long], "nothing is cut or broken"
    assert lines.count("  holder        worker-1") == 2


@pytest.mark.thorough
def test_free_asks_on_a_terminal_alone(any_redis: RedisServer, coordinator: Coordinator) -> None:
    free = ["free", "a", "--redis", any_redis.url]
    lease = coordinator.acquire("a", 5)
    ended = fencing(*free)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert "pass --yes" in ended.stderr
    terminal = in_terminal(*free)
    terminal.expect("a is held by worker-1.*Without --guard.*Take the lock from it")
    terminal.sendline("n")
    assert "a stays as it is" in lines_of(terminal)[-1]
    assert terminal.exitstatus == 1
    terminal = in_terminal(*free)
    terminal.expect("Take the lock from it")
    terminal.sendintr()
    lines_of(terminal)
    assert terminal.exitstatus == 130
    lease.ensure_held()
    terminal = in_terminal(*free)
    terminal.expect("Take the lock from it")
    terminal.sendline("y")
    assert "a is free" in "".join(lines_of(terminal))
    assert terminal.exitstatus == 0
    assert coordinator.holder("a") is None
    with pytest.raises(LeaseLost):
        lease.renew()


@pytest.mark.thorough
def test_free_with_a_guard_shuts_the_holder_out(
    any_redis: RedisServer, coordinator: Coordinator, database: str
) -> None:
    free = ["free", "a", "--yes", "--json", "--guard", database, "--redis", any_redis.url]
    with (
        guard_on(database) as guard,
        pytest.raises(LeaseLost),
        coordinator.hold("a", 5, guards=[guard]) as lease,
    ):
        forced = fencing(*free)
    document = json.loads(forced.stdout)
    assert (forced.returncode, document["freed"], document["fenced"]) == (0, True, True)
    assert document["holder"]["number"] == lease.fence.number < document["number"]
    with guard_on(database) as guard, pytest.raises(StaleFence):
        guard.claim(lease.fence)
    again = json.loads(fencing(*free).stdout)  # it is free already: an earlier attempt may have got no further
    assert (again["holder"], again["fenced"], again["number"] > document["number"]) == (None, True, True)
    without = fencing("free", "a", "--yes", "--redis", any_redis.url)
    assert (without.returncode, without.stdout[:9]) == (0, "a is free")


@pytest.mark.thorough
def test_free_takes_the_lock_from_nobody_but_the_holder_it_has_shown(
    any_redis: RedisServer, coordinator: Coordinator
) -> None:
    lease = coordinator.acquire("a", 5)
    terminal = in_terminal("free", "a", "--redis", any_redis.url)
    terminal.expect("Take the lock from it")
    lease.release()
    with coordinator.hold("a", 5) as later:
        terminal.sendline("y")
        assert "has changed hands meanwhile" in "".join(lines_of(terminal))
        assert terminal.exitstatus == 1
        later.renew()


@pytest.mark.thorough
def test_a_holder_of_another_library_may_be_followed_by_one_of_ours(
    any_redis: RedisServer, coordinator: Coordinator
) -> None:
    other_library = any_redis.client()
    other_library.set("a", "its token", px=60_000)
    terminal = in_terminal("free", "a", "--redis", any_redis.url)
    terminal.expect("held by another library")
    other_library.delete("a")
    with coordinator.hold("a", 5) as later:
        terminal.sendline("y")
        assert "has changed hands meanwhile" in "".join(lines_of(terminal))
        assert terminal.exitstatus == 1
        later.renew()


@pytest.mark.thorough
def test_a_holder_of_another_library_may_change_while_the_request_is_under_way(
    any_redis: RedisServer, proxy: ProxyFactory
) -> None:
    other_library, network = any_redis.client(), proxy(any_redis)
    other_library.set("a", "its token", px=60_000)
    terminal = in_terminal("free", "a", "--redis", network.url(any_redis.url))
    terminal.expect("held by another library")
    late = network.hold_request_when(lambda request: digest_of("its token").encode() in request)
    terminal.sendline("y")
    assert late.wait(60)
    other_library.set("a", "its next token", px=60_000)
    network.restore()
    assert "has changed hands meanwhile" in "".join(lines_of(terminal))
    assert (terminal.exitstatus, other_library.get("a")) == (1, b"its next token")


class Watch:
    """A watch without a terminal, line by line."""

    def __init__(self, *arguments: str) -> None:
        command = [*COMMAND, "watch", "--interval", "0.1", *arguments]
        self.process = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def event(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.line())
        return document

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors.strip()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    made: list[Watch] = []

    def start(*arguments: str) -> Watch:
        made.append(Watch(*arguments))
        return made[-1]

    yield start
    for each in made:
        with each.process:
            each.process.kill()


@pytest.mark.thorough
def test_watch_without_a_terminal_is_a_line_for_each_change(
    any_redis: RedisServer, coordinator: Coordinator, watch: Callable[..., Watch]
) -> None:
    url = any_redis.url
    lease = coordinator.acquire("a", 5)
    plain, of_json = watch("--redis", url), watch("--redis", url, "--json")
    number = lease.fence.number
    assert re.match(
        rf"\d{{4}}-\S+Z a held, by worker-1, number {number}, for \d+ s, waiting: 0, hand-offs: 0$", plain.line()
    )
    held = of_json.event()
    assert set(held) == {"at", "event", "name", "holder", "hand_offs"}
    assert set(held["holder"]) == KEYS
    assert (held["event"], held["name"], held["hand_offs"]) == ("held", "a", 0)
    lease.release()
    assert plain.line().endswith(" a free, hand-offs: 0\n")
    free = of_json.event()
    assert (free["event"], free["holder"]) == ("free", None)
    with coordinator.hold("a", 5):
        assert "a held" in plain.line()
        assert of_json.event()["hand_offs"] == 1
        assert plain.end(signal.SIGINT) == (130, "")
        assert of_json.end(signal.SIGTERM) == (143, "")


@pytest.mark.thorough
def test_watch_ends_where_nobody_reads_it(
    any_redis: RedisServer, coordinator: Coordinator, watch: Callable[..., Watch]
) -> None:
    with coordinator.hold("a", 5):  # nothing changes any more, so it has nothing to write
        watching = watch("--redis", any_redis.url)
        watching.line()
        assert watching.process.stdout is not None
        watching.process.stdout.close()
        assert watching.process.wait(60) == 141
        assert watching.process.stderr is not None
        assert watching.process.stderr.read() == ""


@pytest.mark.thorough
def test_watch_goes_on_while_the_service_is_silent(fresh_redis: RedisFactory, watch: Callable[..., Watch]) -> None:
    server = fresh_redis()
    watching = watch("--redis", server.url, "--json")
    with connect(server.url) as coordinator, coordinator.hold("a", 5):
        assert watching.event()["event"] == "held"
    assert watching.event()["event"] == "free"
    server.kill()
    silent = watching.event()
    assert set(silent) == {"at", "event", "error"}
    assert silent["event"] == "no answer"
    assert watching.end(signal.SIGTERM)[0] == 143


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_watch_on_a_terminal_is_a_live_table(
    any_redis: RedisServer, coordinator: Coordinator, number: int, status: int
) -> None:
    with coordinator.hold("orders:" + "x" * 100, 5):
        terminal = in_terminal("watch", "--interval", "0.1", "--redis", any_redis.url)
        terminal.expect("1 held of")
        terminal.expect("hand-offs")
        with coordinator.hold("b", 5):
            terminal.expect("2 held of")
        terminal.expect("1 held of")
        terminal.expect("b\x1b.0m\\s+holder +free")
        if number == signal.SIGINT:
            terminal.sendintr()
        else:
            terminal.kill(number)
        terminal.expect(END)
        end = terminal.before
        wait_until(lambda: not terminal.isalive())
        terminal.close()
    assert terminal.exitstatus == status
    assert "\x1b[?25h" in end, "the cursor is back"
    assert max(len(ESCAPES.sub("", line)) for line in end.splitlines()) <= 80


@pytest.fixture(params=["etcd", "zookeeper", "postgres", "file"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a service of each kind but Redis."""
    match request.param:
        case "etcd":
            return str(request.getfixturevalue("etcd_server").url).replace("http:", "etcd:")
        case "zookeeper":
            return f"zookeeper://{request.getfixturevalue('zookeeper_server').hosts}"
        case "postgres":
            return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.mark.thorough
def test_each_service_is_looked_after(service: str, watch: Callable[..., Watch]) -> None:
    name = f"cli:{new_token()}"
    if "sql" in service:
        assert fencing("create-tables", service, "--only", "locks").returncode == 0
    with connect(service, owner="worker-1", ttl=60) as coordinator:
        lease = coordinator.acquire(name, 5)
        number = lease.fence.number
        watching = watch(f"{name}*", "--coordinator", service, "--json")
        assert watching.event()["holder"]["number"] == number
        held = json.loads(fencing("holder", name, "--coordinator", service, "--json").stdout)
        [listed] = json.loads(fencing("list", f"{name}*", "--coordinator", service, "--json").stdout)
        assert held["number"] == listed["number"] == number
        assert (held["owner"], listed["name"]) == ("worker-1", name)
        freed = json.loads(fencing("free", name, "--yes", "--json", "--coordinator", service).stdout)
        assert (freed["freed"], freed["holder"]["number"], freed["number"] > number) == (True, number, True)
        while (event := watching.event()["event"]) != "free":
            assert event == "handed over"  # for a moment the lock is held by who frees it
        assert coordinator.holder(name) is None
        with pytest.raises(LeaseLost):
            lease.renew()
