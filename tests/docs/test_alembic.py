"""The recipes of the documentation, with the real Alembic: what it generates makes the table, and no more."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, MetaData, create_engine, inspect, text

from fencing import Fence, GuardNotEnforceable, SQLCoordinator, StaleFence
from storage_guards import SQLAlchemyGuard

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUARDS, LOCKS = DOCS / "guards" / "databases.md", DOCS / "coordinators" / "sql.md"
MINE = Fence("orders:1", 5, "a" * 22)
OTHER = Fence("orders:2", 5, "b" * 22)

ENV = """
from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from fencing import SQLCoordinator
from storage_guards import SQLAlchemyGuard


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
{recipe}
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=target_metadata, compare_server_default=True)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""


def recipe(page: Path) -> tuple[str, str]:
    """What the page says for env.py, and for script.py.mako, which locks do not need."""
    text_ = page.read_text("utf-8")
    env = re.search(r"```python\n# env\.py\n(.*?)```", text_, re.DOTALL)
    mako = re.search(r"`(import storage_guards\.[a-z_.]+)` to\s`script\.py\.mako`", text_)
    assert env
    return env[1], mako[1] if mako else ""


class Project:
    """An application's folder of migrations."""

    def __init__(self, folder: Path, url: str, page: Path = GUARDS) -> None:
        self.config = Config(str(folder / "alembic.ini"))
        self.config.set_main_option("script_location", str(folder / "migrations"))
        self.config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
        self.config.set_main_option("path_separator", "os")
        self.config.print_stdout = lambda *_: None  # type: ignore[method-assign]
        command.init(self.config, str(folder / "migrations"))
        env, imports = recipe(page)
        (folder / "migrations" / "env.py").write_text(ENV.format(recipe=env))
        mako = folder / "migrations" / "script.py.mako"
        mako.write_text(mako.read_text().replace("import sqlalchemy as sa", f"import sqlalchemy as sa\n{imports}"))
        self.versions = folder / "migrations" / "versions"

    def run(self, what: Any, *arguments: Any, **options: Any) -> None:
        what(self.config, *arguments, **options)


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/data.db"
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    engine = create_engine(url)
    yield engine
    engine.dispose()


def thorough(value: str) -> Any:
    return pytest.param(value, marks=pytest.mark.thorough)


@pytest.mark.thorough
def test_the_recipe(engine: Engine, tmp_path: Path) -> None:
    project = Project(tmp_path, engine.url.render_as_string(hide_password=False))
    guard = SQLAlchemyGuard(engine)

    project.run(command.revision, message="first", autogenerate=True)
    [made] = project.versions.glob("*.py")
    for name in ("fencing_marks", "fencing_marks_number", "fencing_marks_seq", "orders"):
        assert name in made.read_text()
    project.run(command.upgrade, "head")
    guard.claim(MINE)  # without create_tables()
    guard.write(MINE, text("INSERT INTO orders (id, total) VALUES (1, 1)"))
    with pytest.raises(StaleFence):
        guard.claim(Fence("orders:1", 4, "a" * 22))
    report = guard.verify()
    assert "upkeep" not in {finding.threatens for finding in report.findings}, str(report)

    project.run(command.check)
    project.run(command.revision, message="second", autogenerate=True)
    [second] = set(project.versions.glob("*.py")) - {made}
    assert second.read_text().count("    pass\n") == 2, "the second migration is not empty"

    project.run(command.upgrade, "head")
    guard.write(MINE, text("UPDATE orders SET total = 2"))
    first_id = table_id(engine)
    project.run(command.downgrade, "base")
    assert not {"fencing_marks", "orders"} & set(inspect(engine).get_table_names())
    project.run(command.upgrade, "head")
    assert table_id(engine) != first_id, "it is another table, and must not answer for that one"
    guard.create_tables()  # changes nothing
    guard.claim(OTHER)


def table_id(engine: Engine) -> str:
    with engine.connect() as connection:
        row = connection.execute(text("SELECT recent_writes FROM fencing_marks WHERE resource = 'fencing:floor'"))
        found = row.scalar_one()
    return found.decode() if isinstance(found, bytes) else str(found)


@pytest.mark.thorough
def test_a_script_of_a_migration(engine: Engine, tmp_path: Path) -> None:
    """``--sql`` writes a script for somebody who runs it elsewhere."""
    project = Project(tmp_path, engine.url.render_as_string(hide_password=False))
    project.run(command.revision, message="first", autogenerate=True)
    project.config.output_buffer = io.StringIO()
    env = tmp_path / "migrations" / "env.py"
    env.write_text(
        env.read_text()
        .replace("connection=connection", "dialect_name=engine.dialect.name, literal_binds=True, as_sql=True")
        .replace("compare_server_default=True", "")
    )
    project.run(command.upgrade, "head", sql=True)
    script = project.config.output_buffer.getvalue()
    with engine.connect() as connection:
        connection.execute(text("DROP TABLE alembic_version"))
        for statement in script.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(
                    statement.replace("%", "%%") if engine.dialect.name == "mysql" else statement
                )
        connection.commit()
    SQLAlchemyGuard(engine).claim(MINE)


@pytest.mark.parametrize("engine", ["sqlite", thorough("postgres"), thorough("mariadb")], indirect=True)
def test_create_all_makes_what_is_needed_but_no_floor_of_a_table_that_was_there(engine: Engine) -> None:
    guard = SQLAlchemyGuard(engine)
    own = guard.metadata.tables["fencing_marks"]
    for number, metadata in enumerate((own.metadata, MetaData())):
        table = own if metadata is own.metadata else own.to_metadata(metadata)
        metadata.create_all(engine)
        guard.claim(Fence(f"orders:{number}", 1, "a" * 22))
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM fencing_marks"))
            before = [*table.dispatch.before_create], [*table.dispatch.after_create]
            assert [len(each) for each in before] == [1, 1]
            for listeners in before:  # as Alembic does it with if_not_exists
                listeners[0](table, connection)
        metadata.create_all(engine)
        with pytest.raises(GuardNotEnforceable, match="floor"):
            guard.claim(OTHER)
        metadata.drop_all(engine)


@pytest.mark.thorough
def test_what_it_makes_is_what_create_tables_makes(engine: Engine, tmp_path: Path) -> None:
    def columns() -> list[Any]:
        found = inspect(engine)
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                return list(connection.execute(text("PRAGMA table_info(fencing_marks)")).all())
        table = found.get_columns("fencing_marks")
        return [
            (column["name"], str(column["type"]), column["nullable"], column["default"]) for column in table
        ] + sorted(str(check["sqltext"]) for check in found.get_check_constraints("fencing_marks"))

    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    wanted = columns()
    assert "VARCHAR" not in str(wanted)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE fencing_marks"))
    project = Project(tmp_path, engine.url.render_as_string(hide_password=False))
    project.run(command.revision, message="first", autogenerate=True)
    project.run(command.upgrade, "head")
    assert columns() == wanted


@pytest.mark.thorough
def test_the_recipe_for_locks(engine: Engine, tmp_path: Path) -> None:
    project = Project(tmp_path, engine.url.render_as_string(hide_password=False), LOCKS)
    project.run(command.revision, message="first", autogenerate=True)
    project.run(command.upgrade, "head")
    with SQLCoordinator(engine) as coordinator:
        with coordinator.hold("a", timeout=5) as lease:
            assert coordinator.try_acquire("a") is None
        assert coordinator.acquire("a").release()
        made = {column["name"] for column in inspect(engine).get_columns("fencing_locks")}
        assert made == set(coordinator.metadata.tables["fencing_locks"].columns.keys())
    assert lease.fence.number > 0
    project.run(command.check)
    project.run(command.downgrade, "base")
    assert "fencing_locks" not in inspect(engine).get_table_names()
