"""The recipes of the documentation, with the real Alembic: what it generates makes the table, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, inspect, text

from fencing import Fence, SQLCoordinator, StaleFence
from storage_guards import SQLAlchemyGuard

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUARDS, LOCKS = DOCS / "guards" / "databases.md", DOCS / "coordinators" / "sql.md"
MINE = Fence("orders:1", 5, "a" * 22)

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


@pytest.mark.thorough
def test_the_recipe(engine: Engine, tmp_path: Path) -> None:
    project = Project(tmp_path, engine.url.render_as_string(hide_password=False))
    guard = SQLAlchemyGuard(engine)

    project.run(command.revision, message="first", autogenerate=True)
    [made] = project.versions.glob("*.py")
    for name in ("fencing_marks", "fencing_marks_number", "fencing_marks_seq", "orders"):
        assert name in made.read_text()
    project.run(command.upgrade, "head")
    guard.create_tables()  # makes the floor: old fences of a table that may have lost its marks are shut out
    with pytest.raises(StaleFence):
        guard.claim(MINE)
    with engine.begin() as connection:
        connection.execute(text("UPDATE fencing_marks SET number = 0"))
    guard.claim(MINE)
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
    project.run(command.downgrade, "base")
    assert not {"fencing_marks", "orders"} & set(inspect(engine).get_table_names())


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
