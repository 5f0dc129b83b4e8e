"""Who believes to hold a lock, and whether it is granted to anybody else meanwhile.

No clock errs here, and time passes only where all wait. So a lease lasts until its client begins to release it, unless
the explorer says that it runs out, that the data is lost, or that the lock is taken away.
"""

from __future__ import annotations

from typing import Any

from fencing.kernel.fence import Fence, digest_of
from fencing.redis.calls import Call
from tests.explorer.clients import Answered, Local
from tests.explorer.simulated_redis import Reply, kind_of
from tests.explorer.state import GONE, OVERLAP, REVIVED, State, with_client
from tests.explorer.storage import RESOURCE

__all__ = ["gone", "granted", "held", "meant_for", "revived", "shared", "without"]

MINTS = ("acquire", "remint", "force_release")


def held(local: Local) -> tuple[Fence, ...]:
    """Return the fences under which a client believes to hold locks; while it claims, they are its plan's.

    While its lease is reclaimed the lock is kept, under the old fence or the new one.
    """
    if local.claiming is not None:
        return (local.claiming,)
    if local.fence is None or local.phase not in ("renew", "read", "write", "apply", "reclaim"):
        return ()
    return (local.fence, *local.others)


def token_in(call: Call) -> str:
    """Return the token that a call asks with."""
    if call.token is not None:
        return call.token
    return str(_values(call)["token"])


def _values(call: Call) -> dict[Any, Any]:
    """Return the values of a request of SQL."""
    return dict(zip(call.args[::2], call.args[1::2], strict=True))


def granted(state: State, client: int, call: Call, reply: Reply, named: bytes = b"") -> tuple[State, tuple[str, ...]]:
    """Note a grant, and who believes to hold the lock all the same.

    Args:
        state: the one with the grant.
        client: whose request it was.
        call: the request, which has just run.
        reply: its reply.
        named: the number of the grant that a force was meant for, and the digest of its token.
    """
    if call.script.name not in MINTS or not isinstance(reply, bytes):
        return state, ()
    fence = Fence(call.keys[0] if call.keys else RESOURCE, int(reply), token_in(call))
    over, followed = set(state.over), set(state.followed)
    if state.faults.resets:
        followed.discard(fence)  # numbers have begun again, so the late request of a grant has brought it back
    violated: tuple[str, ...] = ()
    for index, local in enumerate(state.clients):
        for each in held(local):
            if each.resource == fence.resource and each != fence:
                names = {b"%d" % each.number, digest_of(each.token).encode()}
                is_meant = call.script.name == "force_release" and not names.isdisjoint(named.split())
                if index != client and each.token not in over and not is_meant:
                    violated = (OVERLAP,)
                over.add(each.token)
                followed.add(each)
        if local.detached not in (None, fence):
            followed.add(local.detached)
    if call.script.name == "remint" and state.clients[client].phase == "reclaim":
        state = with_client(state, client, state.clients[client]._replace(others=(fence,)))
    return state._replace(over=frozenset(over), followed=frozenset(followed)), violated


def shared(state: State, client: int) -> tuple[str, ...]:
    """Return whether a client that has just got several locks holds one with another client."""
    mine = held(state.clients[client])
    others = [fence for index, local in enumerate(state.clients) if index != client for fence in held(local)]
    is_shared = any(
        each.resource == fence.resource and each.token not in state.over for each in mine for fence in others
    )
    return (OVERLAP,) if is_shared else ()


def revived(state: State, client: int, call: Call, reply: Reply) -> tuple[str, ...]:
    """Return whether a client is told that a lease of its own goes on, though the lock was granted again since."""
    local = state.clients[client]
    if local.fence is not None and call.script.name == "renew":
        renewed = [fence for i, fence in enumerate((local.fence, *local.others)) if _is_renewed(fence, i, reply)]
        return (REVIVED,) if state.followed.intersection(renewed) else ()
    if call.script.name == "remint" and isinstance(reply, bytes):
        record = b"%b %b" % (reply, token_in(call).encode())
        if any(isinstance(entry.value, bytes) and entry.value.startswith(record) for entry in state.redis.entries):
            return ()  # repeated
        old = str(_values(call)["old"] if call.token is None else call.args[5])
        return (REVIVED,) if any(fence.token == old for fence in state.followed) else ()
    return ()


def gone(state: State, client: int, call: Call, reply: Reply) -> tuple[str, ...]:
    """Return whether a client that reclaims its lease is told that the lock is gone, though nothing has ended it."""
    local = state.clients[client]
    if local.phase != "reclaim" or call.script.name != "remint" or isinstance(reply, bytes):
        return ()
    return () if state.over.issuperset(fence.token for fence in held(local)) else (GONE,)


def _is_renewed(fence: Fence, index: int, reply: Reply) -> bool:
    if isinstance(reply, bytes):
        return reply[index : index + 1] == b"r"
    return isinstance(reply, tuple) and fence.token in list[Any](reply)  # of SQL


def meant_for(local: Local) -> bytes:
    """Return the number of the grant that a client has seen, and the digest of its token, if both are told.

    A token that asks again after its lease is over is still the same holder: a force that has read its digest is meant
    for it.
    """
    for answer in reversed(local.history):
        if isinstance(answer, Answered) and kind_of(answer.reply) == b"held":
            assert isinstance(answer.reply, tuple)
            return b" ".join(bytes(each) for each in (answer.reply[3], answer.reply[5]) if isinstance(each, bytes))
        if isinstance(answer, Answered) and kind_of(answer.reply) in (b"row", b"free"):
            assert isinstance(answer.reply, tuple)
            return b"" if answer.reply[2:3] in ((), (None,)) else b"%d" % int(answer.reply[2])
    return b""


def without(state: State, client: int) -> State:
    """Forget what is of no more use: what a client held that is gone, or releases."""
    name = "ABCDEFGH"[client]
    keeps = state.clients[client].detached
    return state._replace(
        over=frozenset(token for token in state.over if token[0] != name),
        followed=frozenset(fence for fence in state.followed if fence.token[0] != name or fence == keeps),
    )
