"""The commands for operators of guards: those for databases, and those for object stores."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, text

from examples.servers import RedisServer, S3Server
from fencing import Fence, RedisCoordinator
from storage_guards import ObjectStoreGuard
from tests.support.commands import END, fencing, guard_on, in_terminal
from tests.support.enforced import dsn, two_roles
from tests.support.lock_waits import until_locks_are_waited_for


def fence(name: str, number: int = 5) -> Fence:
    return Fence(name, number, "t" * 22)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The URL of a SQLite database with the tables of guards."""
    url = f"sqlite:///{tmp_path}/data.db"
    with guard_on(url) as guard:
        guard.create_tables()
    return url


@pytest.fixture(params=["file", "postgres_url", "mariadb_url"])
def database(request: pytest.FixtureRequest) -> str:
    """The URL of a database of each kind, with the tables of guards."""
    url: str = request.getfixturevalue(request.param)
    with guard_on(url) as guard:
        guard.create_tables()
    return url


@pytest.mark.thorough
def test_marks(database: str) -> None:
    assert (fencing("marks", database).stdout, fencing("marks", database, "--json").stdout) == ("", "[]\n")
    with guard_on(database) as guard:
        guard.claim(fence("b", 7))
        guard.claim(fence("a\nö"))
        with guard.begin(fence("b", 7)):
            pass
    plain = fencing("marks", database)
    assert plain.returncode == 0
    lines = [line.split("\t") for line in plain.stdout.splitlines()]
    assert [line[:3] for line in lines] == [[r"a\nö", "5", "0"], ["b", "7", "1"]]
    assert "t" * 22 not in plain.stdout
    [b] = json.loads(fencing("marks", database, "b*", "--json").stdout)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", b.pop("claimed_at"))
    assert b == {"name": "b", "number": 7, "seq": 1, "readers": 0}


@pytest.mark.thorough
def test_verify(file: str) -> None:
    good, good_json = fencing("verify", file), fencing("verify", file, "--json")
    assert (good.returncode, good_json.returncode) == (0, 0)
    assert good.stdout.endswith("main.fencing_marks: nothing to change\n")
    assert json.loads(good_json.stdout)["findings"] == []
    engine = create_engine(file)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE fencing_done"))
    found, found_json = fencing("verify", file), fencing("verify", file, "--json")
    assert (found.returncode, found_json.returncode) == (2, 2)
    assert "upkeep: the table fencing_done is missing; call" in found.stdout
    [finding] = json.loads(found_json.stdout)["findings"]
    assert set(finding) == {"threatens", "problem", "change"}
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE fencing_marks"))
    refused, refused_json = fencing("verify", file), fencing("verify", file, "--json")
    assert (refused.returncode, refused_json.returncode) == (2, 2)
    assert refused.stdout.startswith("safety: the table fencing_marks is missing")
    assert set(json.loads(refused_json.stdout)) == {"database", "table", "refused", "findings"}
    engine.dispose()


@pytest.mark.thorough
def test_prune(file: str) -> None:
    with guard_on(file) as guard:
        for number in (5, 6):
            guard.claim(fence(f"orders:{number}", number))
        young = fencing("prune", file, "--older-than", "1h")
        assert (young.returncode, young.stdout, young.stderr) == (0, "marks deleted: 0\n", "")
        assert fencing("prune", file, "--below", "6", "--json").stdout == '{"deleted": 1}\n'
        assert guard.mark("orders:5") is None
        assert guard.mark("orders:6") is not None
        for key in ("2026-11-01", "2026-11-02"):
            with guard.begin(fence("orders:6", 6), once=key):
                pass
        done = fencing("prune", file, "--done", "orders:6", "--below-key", "2026-11-02")
        assert (done.returncode, done.stdout) == (0, "keys deleted: 1\n")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prune", "sqlite://"], "pass --older-than AGE or --below NUMBER"),
        (["prune", "sqlite://", "--done", "a"], "--done NAME and --below-key KEY go together"),
        (["prune", "sqlite://", "--older-than", "soon"], "'soon' is no duration"),
        (["prune", "sqlite://", "--older-than", "90"], "'90' is no duration with its unit"),
        (["marks", "redis://:s3cr3t@h"], "redis://:***@h' is no SQL database"),
        (["verify", "-"], "standard input has no URL"),
        (["objects", "verify", "nothing"], "is no URL of a bucket"),
    ],
)
def test_wrong_usage_is_status_64(arguments: list[str], says: str) -> None:
    ended = fencing(*arguments)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert says in ended.stderr
    assert "s3cr3t" not in ended.stderr


@pytest.mark.thorough
def test_the_url_may_come_from_standard_input(file: str) -> None:
    ended = fencing("verify", "-", stdin=f"{file}\n")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.thorough
def test_a_password_in_an_argument_is_warned_of_and_a_silent_database_is_status_69() -> None:
    ended = fencing("verify", "postgresql://me:s3cr3t@127.0.0.1:1/shop")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert "has a password, which every list of processes shows: pass - in its place" in ended.stderr
    assert "s3cr3t" not in ended.stderr


@pytest.mark.thorough
def test_create_tables(tmp_path: Path) -> None:
    def tables(name: str, *arguments: str) -> tuple[set[str], str]:
        url = f"sqlite:///{tmp_path}/{name}.db"
        ended = fencing("create-tables", url, *arguments)
        assert (ended.returncode, ended.stderr) == (0, "")
        engine = create_engine(url)
        with engine.connect() as connection:
            found = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()
        engine.dispose()
        return {each for each in found if each.startswith("fencing_")}, ended.stdout

    assert tables("locks", "--only", "locks")[0] == {"fencing_locks"}
    assert tables("marks", "--only", "marks")[0] == {"fencing_marks", "fencing_done"}
    for _ in range(2):
        made, said = tables("both")
        assert made == {"fencing_locks", "fencing_marks", "fencing_done"}
        assert all(name in said for name in made)


@pytest.mark.thorough
def test_enforce_and_unenforce(postgres_url: str) -> None:
    with two_roles(postgres_url) as roles, roles.as_owner() as owner:
        roles.owners_guard().create_tables()
        owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        enforce = ["enforce", roles.owner_url, "orders", "--resource", "'orders:' || id", "--role"]
        printed = fencing(*enforce, roles.app, "--print")
        assert (printed.returncode, printed.stdout[:14]) == (0, "-- Makes order")
        with roles.as_app() as app:
            app.execute("INSERT INTO orders VALUES (1)")
            refused = fencing(*enforce, roles.owner)
            assert (refused.returncode, refused.stdout) == (78, "")
            assert "cannot be enforced against the role" in refused.stderr
            none = fencing("unenforce", roles.owner_url, "orders")
            assert (none.returncode, none.stdout) == (0, "nothing was enforced on orders, and nothing was changed\n")
            first, again = fencing(*enforce, roles.app), fencing(*enforce, roles.app)
            assert (first.returncode, again.returncode) == (0, 0)
            assert "already" not in first.stdout
            assert again.stdout.endswith("; it was enforced already, and this was done again\n")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute("INSERT INTO orders VALUES (2)")
            assert fencing("unenforce", roles.owner_url, "orders").returncode == 0
            app.execute("INSERT INTO orders VALUES (2)")
            owner.execute(printed.stdout.encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute("INSERT INTO orders VALUES (3)")


@pytest.mark.thorough
def test_what_takes_longer_than_a_second_says_so_on_a_terminal(postgres_url: str) -> None:
    with guard_on(postgres_url) as guard:
        guard.create_tables()
    with psycopg.connect(dsn(postgres_url)) as other:
        other.execute("LOCK TABLE fencing_marks")
        terminal = in_terminal("prune", postgres_url, "--older-than", "1d")
        until_locks_are_waited_for(postgres_url)
        terminal.expect("pruning.*0:00:0[1-9]")
        ended = in_terminal("prune", postgres_url, "--older-than", "1d")
        ended.expect("pruning.*0:00:0[1-9]")
        ended.kill(signal.SIGTERM)
        ended.expect(END)
        assert "\x1b[?25h" in ended.before, "the cursor is back"
        ended.close()
        assert ended.exitstatus == 143
    terminal.expect("marks deleted: 0")
    terminal.expect(END)
    terminal.close()
    assert terminal.exitstatus == 0


@pytest.fixture
def variables(s3_server: S3Server) -> dict[str, str]:
    """What S3's own tools read, too."""
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "fencing")
    return keys | {"AWS_ENDPOINT_URL": s3_server.url, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}


@pytest.mark.thorough
def test_objects_verify(s3_server: S3Server, racy_s3_server: S3Server, variables: dict[str, str]) -> None:
    good, good_json = (
        fencing("objects", "verify", f"s3://{s3_server.new_bucket()}", *more, **variables) for more in ([], ["--json"])
    )
    assert (good.returncode, good.stdout[:25]) == (0, "the store keeps condition")
    assert set(json.loads(good_json.stdout)) == {"refused", "seconds", "etag_form", "versions_return", "races"}
    store = [f"s3://{racy_s3_server.new_bucket()}", "--json"]
    bad = fencing("objects", "verify", *store, **(variables | {"AWS_ENDPOINT_URL": racy_s3_server.url}))
    assert bad.returncode == 2
    assert json.loads(bad.stdout)["refused"]


@pytest.mark.thorough
def test_objects_collect(any_redis: RedisServer, s3_server: S3Server, variables: dict[str, str]) -> None:
    bucket = s3_server.new_bucket()
    guard = ObjectStoreGuard(s3_server.store(bucket=bucket))
    with RedisCoordinator(any_redis.client(), guards=[guard]) as coordinator:
        for content in (b"old", b"new"):
            with coordinator.hold("report", 5) as lease:
                guard.publish(lease, {"data": content})
        collect = ["objects", "collect", f"s3://{bucket}", "report", "--redis", any_redis.url]
        old, new = reversed(guard.publications("report"))
        history = fencing("objects", "history", f"s3://{bucket}", "report", **variables)
        rows = [line.split("\t") for line in history.stdout.splitlines()]
        assert [row[1:] for row in rows] == [
            ["current", str(new.number), "1", "3", new.id],
            [rows[0][0], str(old.number), "1", "3", old.id],
        ]
        shown = json.loads(fencing("objects", "history", f"s3://{bucket}", "report", "--json", **variables).stdout)
        assert [set(each) for each in shown] == [{"id", "number", "at", "until", "objects", "bytes"}] * 2
        assert [each["until"] for each in shown] == [None, shown[0]["at"]]
        nothing = fencing("objects", "history", f"s3://{bucket}", "nothing", **variables)
        assert (nothing.returncode, nothing.stdout) == (1, "")
        would = fencing(*collect, "--dry-run", **variables)
        assert (would.returncode, would.stdout) == (0, "report: uploads to delete: 1, bytes: 3\n")
        young = fencing(*collect, "--older-than", "1d", **variables)
        assert (young.returncode, young.stdout) == (0, "report: uploads deleted: 0, bytes: 0\n")
        kept = fencing(*collect, "--keep", "1", "--json", **variables)
        assert json.loads(kept.stdout) == [{"name": "report", "uploads": 0, "bytes": 0}]
        with coordinator.hold("report", 5):
            busy = fencing(*collect, "--timeout", "0", **variables)
        assert (busy.returncode, busy.stdout) == (75, "")
        collected = fencing(*collect, **variables)
        assert (collected.returncode, collected.stdout) == (0, "report: uploads deleted: 1, bytes: 3\n")
        found = guard.read("report")
        assert found is not None
        assert found.read("data") == b"new"
