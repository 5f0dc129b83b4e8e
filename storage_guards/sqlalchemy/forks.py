"""The pool of an engine after a fork: the child must not use the connections of its parent.

Both would read the same stream of replies, and one could end the other's transaction. This happens where a server loads
an application, and forks its workers after that, as ``gunicorn --preload`` does.
"""

from __future__ import annotations

import weakref

from sqlalchemy import Engine
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from fencing.kernel import process
from fencing.sql.dialects import SQLite, dialect_of

_pools: weakref.WeakKeyDictionary[Engine, _Inherited] = weakref.WeakKeyDictionary()


def renew_pool_in_children(engine: Engine) -> None:
    """Give the engine an empty pool in every forked child, as SQLAlchemy's documentation demands.

    https://docs.sqlalchemy.org/en/20/core/pooling.html#using-connection-pools-with-multiprocessing-or-os-fork
    """
    if engine not in _pools:
        found = _pools.setdefault(engine, _Inherited(engine))
        if process.is_forked():
            found.renew()  # its idle connections may be those of the parent


class _Inherited:
    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)  # which is the key to this object
        self._pools: list[Pool] = []  # not collected in the child: to close a connection may end the parent's session
        process.after_fork(self.renew)

    def renew(self) -> None:
        engine = self._engine()
        if engine is None or (
            isinstance(dialect_of(engine), SQLite) and isinstance(engine.pool, (SingletonThreadPool, StaticPool))
        ):
            return  # a database in memory is in its only connection
        self._pools.append(engine.pool)
        engine.dispose(close=False)
