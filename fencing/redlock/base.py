"""What both coordinators of Redlock share: the nodes that they make of their arguments."""

from __future__ import annotations

import math
from typing import Any

from fencing.locks.capabilities import check_capabilities
from fencing.locks.settings import MAX_TTL, MIN_TTL, check_seconds
from fencing.redlock.nodes import Nodes, check_distinct
from fencing.redlock.plans import RedlockPlans

NODE_TIMEOUT_SHARE = 1 / 200
NODE_TIMEOUT_SECONDS = 0.005, 0.05
"""The time-out of a node, as a share of the ttl, and its limits. The values are those of the algorithm's description:
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/"""


def nodes_of(backend: RedlockPlans, clients: list[Any], node_timeout: float | None, longest_ttl: float | None) -> Nodes:
    """Return the nodes of a backend, whose coordinator has set its settings, and set its times."""
    ttl = backend.settings.ttl
    assert ttl is not None
    least, most = NODE_TIMEOUT_SECONDS
    backend.node_timeout = (
        min(max(ttl * NODE_TIMEOUT_SHARE, least), most)
        if node_timeout is None
        else check_seconds(node_timeout, "node_timeout")
    )
    backend.longest_ttl = ttl if longest_ttl is None else check_seconds(longest_ttl, "longest_ttl")
    if not MIN_TTL <= backend.longest_ttl <= MAX_TTL:
        raise ValueError(f"longest_ttl must be between {MIN_TTL} seconds and a year, not {longest_ttl}")
    if node_timeout is None and backend.node_timeout >= ttl / 3:
        raise ValueError(f"ttl must be above {3 * least:g} s with Redlock, not {ttl:g}")
    if not 0 < backend.node_timeout < ttl / 3:
        raise ValueError(f"node_timeout must be above 0 and below a third of the ttl ({ttl:g} s), not {node_timeout}")
    check_capabilities(backend, backend.settings, ttl)
    nodes = Nodes(clients, longest_ms=math.ceil(backend.longest_ttl * 1000), restart_wait=backend.restart_wait)
    check_distinct(nodes.factories)
    backend.nodes, backend.ready = nodes.count, nodes.ready
    return nodes
