"""The types of the mark table, for migrations with Alembic.

With ``import storage_guards.sqlalchemy.alembic`` in ``script.py.mako`` each migration can name them, as in
``storage_guards.sqlalchemy.alembic.XID8()``. See docs/guards/databases.md. This module does not need Alembic.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import UserDefinedType

__all__ = ["XID8"]


class XID8(UserDefinedType[str]):
    """PostgreSQL's 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


ischema_names.setdefault("xid8", XID8)  # so that Alembic recognises the column that it has made
