"""docs/recipes/alembic.md: three processes migrate once, and a late one does not bring back what was rolled back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from examples.servers import RedisServer
from fencing import RedisCoordinator
from tests.support import wait_until
from tests.support.commands import COMMAND
from tests.support.programs import Programs, blocks

pytestmark = pytest.mark.thorough

(PAGE,) = blocks("alembic")

NAIVE = """
import os
from alembic import context
from sqlalchemy import create_engine

engine = create_engine(os.environ["DATABASE_URL"])
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
"""As Alembic writes it."""

LOCK_ALONE = PAGE.replace("        guard.advance(ctx.connection, lease)", "        pass").replace(
    ", guards=[guard]", ""
)

MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

class Base(DeclarativeBase):
    pass

class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int]
    paid: Mapped[int | None]
"""
FIRST = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "1", None

def upgrade():
    table = op.create_table(
        "account", sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("balance", sa.Integer, nullable=False),
    )
    op.bulk_insert(table, [{"id": 1, "balance": 0}])

def downgrade():
    op.drop_table("account")
"""
BONUS = """
import os, time
from pathlib import Path
import sqlalchemy as sa
from alembic import op

revision, down_revision = "2", "1"

def upgrade():
    Path(f"at-2.{os.getpid()}").touch()
    while not Path("go").exists() and not os.environ.get("GO"):
        time.sleep(0.01)
    op.execute("UPDATE account SET balance = balance + 100")
    if not Path("no-column").exists():
        op.add_column("account", sa.Column("paid", sa.Integer), if_not_exists=True)

def downgrade():
    op.execute("UPDATE account SET balance = balance - 100")
    op.drop_column("account", "paid")
"""


class Deployment(Programs):
    """A project with two migrations, and the processes of its replicas."""

    def __init__(self, stack: ExitStack, folder: Path, engine: Engine, redis: RedisServer) -> None:
        url = engine.url.render_as_string(hide_password=False)
        super().__init__(stack, folder, DATABASE_URL=url, FENCING_URL=redis.url)
        self.engine = engine
        self.write("alembic.ini", "[alembic]\nscript_location = migrations\npath_separator = os\n")
        self.write("shop/__init__.py", "")
        self.write("shop/models.py", MODELS)
        self.write("migrations/script.py.mako", "")
        self.write("migrations/versions/first.py", FIRST)
        self.write("migrations/versions/second.py", BONUS)

    def env(self, text_: str) -> None:
        self.write("migrations/env.py", text_)

    def alembic(self, *arguments: str) -> tuple[str, ...]:
        return sys.executable, "-m", "alembic", *arguments

    def replicas(self, count: int = 3) -> list[subprocess.Popen[bytes]]:
        return [self.start(*self.alembic("upgrade", "head")) for _ in range(count)]

    def value(self, query: str) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(text(query)).scalar_one()

    @property
    def balance(self) -> Any:
        return self.value("SELECT balance FROM account")


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, any_redis: RedisServer, tmp_path: Path) -> Iterator[Deployment]:
    engine = create_engine(request.getfixturevalue(f"{request.param}_url"))
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        deployment = Deployment(stack, tmp_path, engine, any_redis)
        try:
            yield deployment
        except BaseException as error:
            error.add_note(deployment.said()[-12000:])
            raise


on_postgres = pytest.mark.parametrize("shop", ["postgres"], indirect=True)


def test_three_replicas_migrate_an_empty_database_once(shop: Deployment) -> None:
    shop.env(PAGE)
    shop.touch("go")
    replicas = shop.replicas()
    assert [each.wait(120) for each in replicas] == [0, 0, 0], shop.said()
    assert shop.balance == 100
    assert shop.made("at-2.*") == 1
    assert shop.value("SELECT version_num FROM alembic_version") == "2"
    shop.run(*shop.alembic("check"))  # nothing to add, and nothing to drop


def test_the_database_itself_may_have_the_lock(shop: Deployment) -> None:
    shop.env(PAGE)
    shop.touch("go")
    shop.environment["FENCING_URL"] = shop.environment["DATABASE_URL"]
    shop.run(*COMMAND, "create-tables", shop.environment["DATABASE_URL"])
    replicas = shop.replicas()
    assert [each.wait(120) for each in replicas] == [0, 0, 0], shop.said()
    assert (shop.balance, shop.made("at-2.*")) == (100, 1)


def test_three_replicas_without_the_recipe(shop: Deployment) -> None:
    shop.env(NAIVE)
    shop.run(*shop.alembic("upgrade", "1"))
    replicas = shop.replicas()
    wait_until(lambda: shop.made("at-2.*") == 3)
    shop.touch("go")
    statuses = sorted(each.wait(120) for each in replicas)
    assert statuses[0] == 0 < statuses[1], shop.said()  # one has migrated
    assert shop.balance == (300 if shop.engine.dialect.name in ("mysql", "mariadb") else 100)


@on_postgres
@pytest.mark.parametrize("guarded", [True, False], ids=["page", "lock alone"])
def test_a_late_replica_does_not_bring_back_what_was_rolled_back(
    shop: Deployment, any_redis: RedisServer, guarded: bool
) -> None:
    # Its lock is forced free, and its next renewal is far away: it still believes in its lease.
    shop.env((PAGE if guarded else LOCK_ALONE).replace('"FENCING_URL"]', '"FENCING_URL"], ttl=300'))
    shop.run(*shop.alembic("upgrade", "1"))
    [late] = shop.replicas(1)
    wait_until(lambda: shop.made("at-2.*") == 1)
    with RedisCoordinator(any_redis.client()) as operator:
        assert operator.force_release("migrate:shop").holder is not None
    shop.env(PAGE)
    shop.run(*shop.alembic("upgrade", "head"), GO="1")
    assert shop.balance == 100
    shop.run(*shop.alembic("downgrade", "1"))
    assert shop.balance == 0
    shop.touch("go")
    assert late.wait(120) == 1  # that the lock was lost is known at the end of the block, too late
    assert shop.balance == (0 if guarded else 100)
    assert ("StaleFence" in shop.said(1)) is guarded
    assert shop.value("SELECT version_num FROM alembic_version") == ("1" if guarded else "2")


def test_a_replica_whose_lease_has_ended_sends_nothing_more(shop: Deployment, any_redis: RedisServer) -> None:
    shop.env(PAGE.replace('"FENCING_URL"]', '"FENCING_URL"], ttl=1'))
    shop.run(*shop.alembic("upgrade", "1"))
    [late] = shop.replicas(1)
    wait_until(lambda: shop.made("at-2.*") == 1)
    os.killpg(late.pid, signal.SIGSTOP)
    with RedisCoordinator(any_redis.client()) as other, other.hold("migrate:shop", timeout=60):
        shop.touch("go")
        os.killpg(late.pid, signal.SIGCONT)
        assert late.wait(120) == 1
    assert "LeaseLost" in shop.said(1)
    assert shop.balance == 0
