"""The names that an editor completes: what users call, and nothing else."""

from __future__ import annotations

import pytest

from fencing import AsyncLease, Lease

LEASE = ["detach", "ensure_held", "fence", "held", "lost", "on_lost", "reclaim", "release", "remaining", "renew"]


def completed(kind: type) -> list[str]:
    """Return the names that a class and its bases define for others."""
    defined = {name for each in kind.__mro__ for name in (*vars(each), *vars(each).get("__annotations__", ()))}
    return sorted(name for name in defined if not name.startswith("_"))


@pytest.mark.parametrize("kind", [Lease, AsyncLease])
def test_a_lease_has_only_what_users_call(kind: type) -> None:
    assert completed(kind) == LEASE
