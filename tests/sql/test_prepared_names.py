"""The names of prepared statements: a connection knows a statement by its name alone."""

from __future__ import annotations

from storage_guards.psycopg.statements import texts_in
from storage_guards.sql.mysql import Tables
from storage_guards.sqlalchemy.mysql import _located


def test_no_two_schemas_share_a_name_on_mariadb() -> None:
    """One's mark was checked for the other's. The CRC-32 of the checks of the first two is the same, and of the claims
    of the others."""
    names = ("t_0f3ddd8298", "t_b37a90786c", "t_bba78ff4f8", "t_1d72761db9")
    located = [_located(Tables(each, is_partitioned=True, done_is_partitioned=True, is_innodb=False)) for each in names]
    assert len({each.check.name for each in located}) == 4
    assert len({each.claim.name for each in located}) == 4


def test_no_two_schemas_share_a_name_on_postgresql() -> None:
    texts = [texts_in(each) for each in ("t_ff81d0f447", "t_69d19deb1c")]
    assert len({each.check_name for each in texts}) == 2
    assert all(len(each.claim_name) <= 63 for each in texts)  # the server cuts longer ones
