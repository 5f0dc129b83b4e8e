"""What the commands say of wrong words, in the words of the command line; and their help, in 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from typer.main import get_command

from fencing.cli import display
from fencing.cli.app import app
from fencing.cli.services import Services
from fencing.cli.words import PHRASES, of_commands
from storage_guards import SQLAlchemyGuard
from tests.support.commands import Command

SOURCES = Path(__file__).parents[2]
LONG_NAME = "orders:" + "x" * 90
OF_PYTHON = re.compile(r"Input should|Value error|None|\w\(\)|\b(timeout|ttl|at_least|schema|owner)\b(?!=)", re.ASCII)
"""What makes sense to programmers alone."""


@pytest.fixture
def tables(tmp_path: Path) -> str:
    """The URL of a database with the tables of guards."""
    url = f"sqlite:///{tmp_path}/data.db"
    engine = create_engine(url)
    SQLAlchemyGuard(engine).create_tables()
    engine.dispose()
    return url


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run x --timeout -1", "--timeout takes seconds, 0 or more, not -1; --no-wait tries once, and without both"),
        ("run x --timeout nan", "--timeout takes seconds, 0 or more, not nan"),
        ("run x --timeout inf", "--timeout takes seconds, 0 or more, not inf"),
        ("run x --timeout soon", "--timeout takes a number, not 'soon'"),
        ("run x --ttl 0", "--ttl takes 0.01 to 31536000 seconds, which is a year, not 0; after them, a crashed"),
        ("run x --at-least -1", "--at-least takes 0 to 31536000 seconds, which is a year, not -1"),
        ("run x --grace -1", "--grace takes seconds, 0 or more, not -1"),
        ("run x --slots 0", "--slots takes a number from 1 to 64, not 0"),
        ("run x --slots 1.5", "--slots takes a whole number, not '1.5'"),
        ("run x --label=", "--label takes 1 to 200 printable characters"),
        ("run x --busy-status 256", "--busy-status takes an exit status from 0 to 255, not 256"),
        ("run x --lost-status x", "--lost-status takes a whole number, not 'x'"),
        ("run x --once=", "--once is wrong: the key is a text that is not empty"),
        ("run x --once 1", "--once needs a guard: pass --database URL"),
        ("watch --interval 0", "--interval takes seconds, 0.1 or more, not 0"),
        ("objects collect s3://b x --timeout -1", "--timeout takes seconds, 0 or more, not -1; 0 tries once"),
        ("objects collect s3://b x --keep -1", "--keep takes a number, 0 or more, not -1"),
        ("objects collect s3://b x --older-than 1", "--older-than is wrong: '1' is no duration with its unit"),
        ("prune sqlite:// --older-than soon", "--older-than is wrong: 'soon' is no duration with its unit"),
        ("prune sqlite:// --below x", "--below takes a whole number, not 'x'"),
        ("prune sqlite:// --done x --below-key=", "--below-key is wrong: the key is a text"),
        ("marks sqlite:// --schema a'b", "--schema is wrong: "),
        ("create-tables sqlite:// --only all", "--only: 'all' is not one of 'locks', 'marks'"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(command: Command, words: str, says: str) -> None:
    done = command(*words.split(), *(["--", "true"] if words.startswith("run") else []))
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith(f"fencing: {says}"), done.stderr
    if "--schema" not in words:
        assert not OF_PYTHON.search(re.sub(r"--\S+", "", done.stderr)), done.stderr


def test_the_texts_of_the_library_are_put_into_the_words_of_commands() -> None:
    busy = "try later; if nothing frees it, force_release() does, or choose another name"
    assert of_commands(busy) == "try later; if nothing frees it, fencing free NAME does, or choose another name"
    missing = "the table fencing_marks is missing: call guard.create_tables() once, or give guard.metadata to Alembic"
    assert of_commands(missing) == "the table fencing_marks is missing: call 'fencing create-tables URL' once"
    assert of_commands('pass schema="shop" to the guard') == "pass --schema shop"


@pytest.mark.thorough
def test_what_is_put_into_other_words_is_said_somewhere() -> None:
    """The literals of a text may be on several lines, so a part of it is enough."""
    files = [file for folder in ("fencing", "storage_guards") for file in (SOURCES / folder).rglob("*.py")]
    said = "".join(file.read_text("utf-8") for file in files if file.name != "words.py")
    said = re.sub(r'"\s*\n\s*f?"', "", said)
    for pattern, _ in PHRASES:
        text = re.sub(r"^\^", r'"', pattern).replace(r"(\S+)", "{own_ttl}").replace(r'"([^"]*)"', '"{schema}"')
        text = (
            text.replace("(resource|role)", "{name}")
            .replace("RedlockC", "{c")
            .replace("dinator takes", "dinator} takes")
            .replace("call (guard|coordinator)", "call guard")
        )
        assert re.search(text, said), pattern


# Services


def test_local_stands_beside_no_other_service(command: Command, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    done = command("holder", "x", "--local", "--redis", "redis://h", **state)
    assert (done.returncode, done.stderr[:44]) == (64, "fencing: pass --local or --redis, not both. ")
    assert command("holder", "x", "--local", FENCING_REDIS_URL="redis://h", **state).stdout == "x is free\n"
    done = command("list", "--local", "--database", "sqlite:////nowhere", **state)
    assert "pass --local or --database, not both" in done.stderr


def test_the_guard_of_once_may_stand_beside_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    given, sources = {"database": "postgresql://h/d"}, {"database": "--database"}
    assert Services(given, local=True, sources=sources, has_guard=True).url == f"sqlite:///{tmp_path}/fencing/locks.db"


@pytest.mark.parametrize(
    ("words", "variable", "says"),
    [
        (["--redis", "redis://h?sockt_timeout=1"], "", "--redis: a URL of redis:// has no option 'sockt_timeout'; did"),
        ([], "FENCING_REDIS_URL", "the variable FENCING_REDIS_URL: "),
        ([], "FENCING_REDLOCK_URLS", "the variable FENCING_REDLOCK_URLS: "),
        ([], "FENCING_DATABASE_URL", "the variable FENCING_DATABASE_URL: "),
        (["--redis-file", "FILE"], "", "--redis-file FILE: "),
    ],
)
def test_a_wrong_url_is_refused_with_what_names_it(
    command: Command, tmp_path: Path, words: list[str], variable: str, says: str
) -> None:
    file = tmp_path / "url"
    file.write_text("consul://h")
    done = command(
        "holder",
        "x",
        *(str(file) if word == "FILE" else word for word in words),
        **({variable: "no"} if variable else {}),
    )
    assert done.returncode == 64
    assert done.stderr.startswith(
        f"fencing: {says}".replace("FILE", str(file)) if "FILE" in words else f"fencing: {says}"
    )


def test_a_wrong_url_of_a_guard_is_refused_with_what_names_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("consul://h")
    words = ["free", "x", "--yes", "--redis", "redis://127.0.0.1:1"]
    assert "fencing: --guard: 'consul://h' is no URL" in command(*words, "--guard", "consul://h").stderr
    of_file = command(*words, "--guard-file", str(tmp_path / "url"))
    assert (of_file.returncode, f"the file {tmp_path}/url: " in of_file.stderr) == (64, True)


@pytest.mark.parametrize(
    "words",
    [
        *("holder x --database URL", "list --database URL", "watch --database URL", "free x --yes --database URL"),
        *("marks URL", "verify URL", "prune URL --older-than 9d", "enforce URL t --resource r --role r"),
        *("unenforce URL t", "run x --local --guard URL -- true"),
    ],
)
def test_a_file_that_is_not_there_is_not_made(command: Command, tmp_path: Path, words: str) -> None:
    file = tmp_path / "typo.db"
    done = command(*words.replace("URL", f"sqlite:///{file}").split(), XDG_STATE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (78, "")
    assert f"there is no file {file}: correct the path" in done.stderr
    assert "'fencing create-tables" in done.stderr
    assert not file.exists()


def test_a_schema_that_is_not_there(command: Command, tables: str) -> None:
    for words, status in (("marks", 78), ("verify", 2), ("prune --below 1", 78), ("unenforce t", 78)):
        name, *more = words.split()
        done = command(name, tables, *more, "--schema", "nosuch")
        said = done.stdout + done.stderr
        assert done.returncode == status
        assert (
            "there is no table fencing_marks in the schema nosuch, or no such schema; the schemas with one: main"
            in said
        )
        assert "drop" not in said


# Run


@pytest.mark.parametrize(
    "words",
    [
        "x --local --ttl 5 echo --help --ttl --",
        "--local x --ttl=5 -- echo --help --ttl --",
        "--ttl 5 x echo --help --ttl --",
        "--guard --ttl x --ttl 5 echo --help --ttl --",
    ],
)
def test_options_behind_the_commands_first_word_are_its_own(words: str) -> None:
    command = get_command(app).commands["run"]  # type: ignore[attr-defined]
    values = command.make_context("run", words.split()).params
    assert (values["name"], values["ttl"], values["command"]) == ("x", 5.0, ["echo", "--help", "--ttl", "--"])


# Help


@pytest.mark.thorough
def test_no_help_is_cut_or_speaks_of_types(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    group = get_command(app)
    names = [[name] for name in group.commands]  # type: ignore[attr-defined]
    for words in ([], *names, ["objects", "verify"], ["objects", "collect"]):
        said = command(*words, "--help", COLUMNS="80", TERMINAL_WIDTH="80").stdout
        assert max(map(len, said.splitlines())) <= 80
        assert "..." not in re.sub(r"\[ARGS\]\.\.\.|(COMMAND|NAME)\.\.\.", "", said), said
        assert not re.search(r"<\w|[{}]|x>=|<=x", said), said


# Tables


@pytest.mark.parametrize("columns", ["80", "30"])
def test_a_table_that_is_too_wide_has_a_paragraph_for_each_row(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    headers = ("NAME", "HOLDER", "NUMBER")
    narrow, wide = [("a", "me", 1), ("漢字", "you", 22)], [(LONG_NAME, "me", 1), ("b", "you", 2)]
    assert display.table(headers, narrow).plain.splitlines() == [
        "NAME  HOLDER  NUMBER",
        "a     me      1",
        "漢字  you     22",
    ]
    assert display.table(headers, wide).plain.splitlines() == [
        *(LONG_NAME, "  holder  me", "  number  1"),
        *("b", "  holder  you", "  number  2"),
    ]
