"""Rights, log-ins, certificates, the chroot, several hosts, read-only servers, and wrong time-outs and names."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, make_digest_acl

from examples.servers import ZooKeeperEnsemble, ZooKeeperServer
from examples.servers.local import free_port
from fencing import CoordinatorUnavailable
from fencing.kernel.fence import new_token
from fencing.zookeeper.layout import BASES, LOCKS, PARENTS, ROOT, queue_of
from tests.support.refusals import refused_as_held
from tests.support.tls import TlsOfBothSides
from tests.support.zookeeper import ZooKeeperSide

Start = Callable[..., ZooKeeperServer]
Rights = dict[str, str]

RIGHTS: Rights = {
    "": "",
    "/fencing": "",
    ROOT: "",
    LOCKS: "read create",
    BASES: "read create write delete",
}
"""What docs/coordinators/zookeeper.md asks for, where the nodes exist already."""

ALL = "read create write delete"


def name() -> str:
    return f"access/{new_token()}"


def block(side: ZooKeeperSide, coordinator: Any) -> None:
    lease = side.call(coordinator.acquire, name(), timeout=30)
    side.call(lease.renew)
    assert side.call(lease.release)


def refused(side: ZooKeeperSide, coordinator: Any, text: str, **options: Any) -> None:
    """Refuse a lock, in words, at once or within the time that it may take."""
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable, match=text):
        side.call(coordinator.acquire, name(), **{"timeout": 5, **options})
    assert time.monotonic() - began < 30


def acl_of(user: str, rights: str) -> ACL:
    return make_digest_acl(user, user, **dict.fromkeys(rights.split(), True))


class Place:
    """A folder of the test's own, whose nodes an administrator makes, and in which a worker has some rights."""

    def __init__(self, side: ZooKeeperSide, rights: Rights, below: str = ALL) -> None:
        self.side, self.below = side, below
        self.chroot = f"/access-{new_token()}"
        self.admin = KazooClient(side.hosts, auth_data=[("digest", "admin:admin")])
        self.admin.start(30)
        for path, some in rights.items():
            self.give(path, some)

    def give(self, path: str, rights: str) -> None:
        """Make a node, or change its rights."""
        acl = [make_digest_acl("admin", "admin", all=True), *([acl_of("worker", rights)] if rights else [])]
        if self.admin.exists(self.chroot + path):
            self.admin.set_acls(self.chroot + path, acl)
        else:
            self.admin.create(self.chroot + path, acl=acl)

    def coordinator(self, user: str = "worker", password: str = "worker", **options: Any) -> Any:
        client = KazooClient(
            self.side.hosts + self.chroot,
            auth_data=[("digest", f"{user}:{password}")],
            default_acl=[acl_of("worker", self.below), make_digest_acl("admin", "admin", all=True)],
        )
        return self.side.coordinator(client=client, **options)

    def nodes(self) -> list[str]:
        """Return the paths of all that is in a queue, below the chroot."""
        locks = self.chroot + LOCKS
        if not self.admin.exists(locks):
            return []
        return [each for lock in self.admin.get_children(locks) for each in self.admin.get_children(f"{locks}/{lock}")]

    def close(self) -> None:
        self.admin.stop()
        self.admin.close()


@pytest.fixture
def place(side: ZooKeeperSide) -> Iterator[Callable[..., Place]]:
    with ExitStack() as stack:

        def make(*args: Any) -> Place:
            made = Place(side, *args)
            stack.callback(made.close)
            return made

        yield make


def held_in(side: ZooKeeperSide, coordinator: Any) -> list[str]:
    async def found() -> list[str]:
        return [resource async for resource, _ in coordinator.holders()]

    return side.call(found) if side.asynchronous else [resource for resource, _ in coordinator.holders()]


def use_everything(side: ZooKeeperSide, place: Place, *, lists: bool = True) -> None:
    """Use all that a coordinator can do."""
    one, other = place.coordinator(), place.coordinator()
    block(side, one)
    resource = name()
    held = side.call(other.acquire, resource, timeout=30)
    assert side.call(one.try_acquire, resource) is None
    refused_as_held(partial(side.call, one.acquire, resource, timeout=0.3))
    waiting: list[Any] = []
    waiter = threading.Thread(target=lambda: waiting.append(side.call(one.acquire, resource, timeout=30)))
    waiter.start()
    side.wait_until(lambda: len(place.nodes()) == 2)
    assert side.call(held.release)
    waiter.join()
    forced = side.call(other.force_release, resource)
    assert forced.holder.number == waiting[0].fence.number
    assert not side.call(waiting[0].release)
    adopted = side.call(other.adopt, side.call(side.call(one.acquire, resource, timeout=30).detach))
    assert side.call(one.holder, resource).number == adopted.fence.number
    if lists:
        assert held_in(side, one) == [resource]
    assert side.call(adopted.release)
    backend = one._backend
    plan = backend.plan_acquire(
        resource, new_token(), backend.settings, floor=adopted.fence.number + 1000, deadline=backend.clock() + 30
    )
    lifted = side.plan(one, plan)
    assert lifted.number > adopted.fence.number + 1000
    assert side.plan(one, backend.plan_release(lifted, backend.settings, deadline=backend.clock() + 30))
    assert place.nodes() == []


@pytest.mark.thorough
def test_a_user_needs_no_more_than_the_page_says(side: ZooKeeperSide, place: Callable[..., Place]) -> None:
    use_everything(side, place(RIGHTS))


@pytest.mark.thorough
def test_where_there_are_no_nodes_a_user_may_create_the_first(side: ZooKeeperSide, place: Callable[..., Place]) -> None:
    use_everything(side, place({"": "create"}))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("path", "right"),
    [
        *((path, right) for path, rights in RIGHTS.items() for right in rights.split()),
        *(("below", each) for each in ALL.split()),
    ],
)
def test_each_of_the_rights_is_needed(side: ZooKeeperSide, place: Callable[..., Place], path: str, right: str) -> None:
    """Without it the story ends early, and leaves its leases behind."""
    rights, below = dict(RIGHTS), ALL
    if path == "below":
        below = below.replace(right, "")
    else:
        rights[path] = rights[path].replace(right, "")
    with pytest.raises(CoordinatorUnavailable, match="see the table of rights"):
        use_everything(side, place(rights, below))


@pytest.mark.parametrize("rights", ["", "read", "create", "create delete"])
def test_a_user_without_rights_is_refused_and_leaves_nothing(
    side: ZooKeeperSide, place: Callable[..., Place], rights: str
) -> None:
    """Also one who may create a node in the queue, and not look at it. Who may not delete it keeps it."""
    here, resource = place(RIGHTS), name()
    owner, coordinator = here.coordinator(), here.coordinator()
    side.call(side.call(owner.acquire, resource, timeout=30).release)
    here.give(queue_of(resource), rights)
    began = time.monotonic()
    for call in (coordinator.try_acquire, partial(coordinator.acquire, timeout=60)):
        with pytest.raises(CoordinatorUnavailable, match=r"may not do this: see the table of rights in docs") as error:
            side.call(call, resource)
        assert error.value.refused
    assert time.monotonic() - began < 30, "it does not wait for what will not change"
    assert rights == "create" or here.nodes() == []
    side.call(coordinator.close)
    side.wait_until(lambda: here.nodes() == [])
    here.give(queue_of(resource), ALL)
    assert side.call(side.call(owner.acquire, resource, timeout=30).release)


def test_a_wrong_password_is_a_user_without_rights(side: ZooKeeperSide, place: Callable[..., Place]) -> None:
    """ZooKeeper's digest has no log-in that fails: who has another password is another user."""
    here = place(RIGHTS)
    block(side, here.coordinator())
    refused(side, here.coordinator(password="wrong"), "may not do this: see the table of rights")
    refused(side, side.coordinator(client=KazooClient(side.hosts + here.chroot)), "may not do this")
    block(side, here.coordinator())


def test_new_nodes_have_the_rights_of_the_client(side: ZooKeeperSide, place: Callable[..., Place]) -> None:
    here, resource = place({"": "create"}), name()
    lease = side.call(here.coordinator().acquire, resource, timeout=30)
    [base] = here.admin.get_children(here.chroot + BASES)
    paths = [*PARENTS, f"{BASES}/{base}", queue_of(resource), f"{queue_of(resource)}/{here.nodes()[0]}"]
    for path in paths:
        acls, _ = here.admin.get_acls(here.chroot + path)
        assert {each.id.id.partition(":")[0] for each in acls} == {"worker", "admin"}, path
    assert side.call(lease.release)


def test_an_acl_that_the_servers_do_not_know_is_refused(side: ZooKeeperSide) -> None:
    side.client.ensure_path("/access-acl")
    client = KazooClient(f"{side.hosts}/access-acl", default_acl=[ACL(31, Id("unheard", "of"))])
    refused(side, side.coordinator(client=client), "default_acl of the client is refused; pass another one")


def threads() -> int:
    return len([each for each in threading.enumerate() if "_thread_worker" in each.name or "zk_loop" in each.name])


def test_a_log_in_that_fails_is_refused_and_leaves_no_threads(side: ZooKeeperSide) -> None:
    """A program that tries again and again has the threads of one session at most."""
    coordinator = side.coordinator(client=KazooClient(side.hosts, auth_data=[("unheard", "of")]))
    before = threads()
    for _ in range(5):
        refused(side, coordinator, "the log-in failed; correct auth_data or sasl_options of the client, then retry")
        with pytest.raises(CoordinatorUnavailable, match="log-in failed") as error:
            side.call(coordinator.holder, name())
        assert error.value.refused
    side.wait_until(lambda: threads() <= before + 3)
    side.call(coordinator.close)
    side.wait_until(lambda: threads() <= before)
    block(side, side.coordinator())


def test_without_pure_sasl_a_log_in_is_refused(side: ZooKeeperSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kazoo.protocol.connection.PURESASL_AVAILABLE", False)
    client = KazooClient(side.hosts, sasl_options={"mechanism": "DIGEST-MD5", "username": "a", "password": "b"})
    coordinator = side.coordinator(client=client)
    for _ in range(3):
        refused(
            side, coordinator, "cannot use the settings of the client.*Missing SASL support.*make a new coordinator"
        )


JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required user_worker="secret";
};
"""


@pytest.mark.thorough
def test_sasl(side: ZooKeeperSide, fresh_zookeeper: Start, tmp_path: Path) -> None:
    """A user whom SASL knows, a wrong password, and a server that does not know SASL."""
    if find_spec("puresasl") is None:
        pytest.skip("pure-sasl is not installed")
    (tmp_path / "jaas").write_text(JAAS)
    server = fresh_zookeeper(
        java=(
            f"-Djava.security.auth.login.config={tmp_path}/jaas",
            "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        )
    )

    def client(password: str, hosts: str = server.hosts, **options: Any) -> KazooClient:
        return KazooClient(
            hosts,
            sasl_options={"mechanism": "DIGEST-MD5", "username": "worker", "password": password},
            default_acl=[ACL(31, Id("sasl", "worker"))],
            **options,
        )

    coordinator = side.coordinator(client=client("secret"))
    block(side, coordinator)
    held = side.call(coordinator.acquire, "held", timeout=30)
    refused(side, side.coordinator(client=client("wrong")), "the log-in failed")
    refused(side, side.coordinator(client=KazooClient(server.hosts)), "may not do this")
    server.restart()  # kazoo cannot tell a connection that ends in a log-in from one that fails
    side.wait_until(lambda: _renews(side, held))
    assert side.call(held.release)
    other = side.coordinator(client=client("secret", side.hosts, timeout=5))
    refused(side, other, "SASL has not answered the log-in", timeout=2)


def _renews(side: ZooKeeperSide, lease: Any) -> bool:
    try:
        side.call(lease.renew)
    except CoordinatorUnavailable:
        return False
    return True


def test_a_chroot_that_is_absent_is_refused_until_it_is_there(side: ZooKeeperSide) -> None:
    chroot = f"/access-{new_token()}/deep"
    coordinator = side.coordinator(client=KazooClient(side.hosts + chroot))
    for _ in range(2):
        refused(side, coordinator, f"has no node '{chroot}', the chroot of the client; create it")
    assert side.client.exists(chroot) is None
    side.client.ensure_path(chroot)
    block(side, coordinator)
    assert side.client.exists(f"{chroot}{LOCKS}")


@pytest.mark.thorough
def test_several_hosts_of_which_some_are_dead_or_silent(side: ZooKeeperSide) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (dead, silent)]
        for some, ttl in ((ports[:1], 10), (ports[1:], 4)):
            hosts = ",".join([*(f"127.0.0.1:{port}" for port in some), side.hosts])
            coordinator = side.coordinator(client=KazooClient(hosts, randomize_hosts=False), ttl=ttl)
            lease = side.call(coordinator.acquire, name(), timeout=60)
            assert lease.remaining() > 0.5 * ttl
            assert side.call(lease.release)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``TlsOfBothSides`` makes them, and with the server's key and certificate in one file."""
    folder = TlsOfBothSides(tmp_path_factory.mktemp("certificates")).folder
    key = (folder / "server.key").read_text()
    (folder / "server-both.pem").write_text(key + (folder / "server.pem").read_text())
    return folder


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo's
@pytest.mark.thorough
def test_certificates_of_both_sides(side: ZooKeeperSide, fresh_zookeeper: Start, certificates: Path) -> None:
    secure = free_port()
    server = fresh_zookeeper(
        **{
            "secureClientPort": secure,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": f"{certificates}/server-both.pem",
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": f"{certificates}/authority.pem",
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        }
    )
    assert server.port != secure
    hosts = f"127.0.0.1:{secure}"
    ca, worker = f"{certificates}/authority.pem", f"{certificates}/worker"
    both = {"use_ssl": True, "ca": ca, "certfile": f"{worker}.pem", "keyfile": f"{worker}.key", "check_hostname": True}
    one, other = (side.coordinator(client=KazooClient(hosts, **both)) for _ in range(2))
    block(side, one)
    held = side.call(one.acquire, "held", timeout=30)
    refused_as_held(partial(side.call, other.acquire, "held", timeout=0.3))
    assert side.call(held.release)
    for wrong, text in (
        ({"use_ssl": True, "ca": ca}, ""),  # without a certificate
        ({"use_ssl": True, "certfile": f"{worker}.pem", "keyfile": f"{worker}.key"}, "certificate verify failed"),
        ({"use_ssl": True, "ca": f"{certificates}/absent"}, "No such file"),
        ({}, ""),
    ):
        coordinator = side.coordinator(client=KazooClient(hosts, **wrong))
        refused(side, coordinator, f"no server of it has accepted a session in time.*{text}", timeout=1)
    for each in side.made:  # before the server: kazoo leaves a socket of TLS that cannot connect to the collector
        side.call(each.close)
    gc.collect()


@pytest.mark.thorough
def test_a_server_that_only_reads_is_refused(side: ZooKeeperSide) -> None:
    """A member without the others answers those who ask for no more than reads; the coordinator never does."""
    with ExitStack() as stack:
        [alone] = ZooKeeperEnsemble(stack, java=("-Dreadonlymode.enabled=true",), started=1).members
        assert alone.mode == "read-only"
        refused(side, side.coordinator(client=KazooClient(alone.hosts, read_only=True)), "no server of it", timeout=2)
        hosts = f"{alone.hosts},{side.hosts}"
        block(side, side.coordinator(client=KazooClient(hosts, read_only=True, randomize_hosts=False)))


@pytest.mark.parametrize(("ttl", "text"), [(0.1, "at least 0.4 s"), (3600, "at most 60 s")])
def test_a_time_that_the_servers_do_not_keep_is_refused(side: ZooKeeperSide, ttl: float, text: str) -> None:
    coordinator, resource = side.coordinator(ttl=ttl), name()
    for call in (partial(coordinator.acquire, timeout=5), coordinator.try_acquire, coordinator.holder):
        words = f"keeps a session for {text}, and the ttl is .*pass another"
        with pytest.raises(CoordinatorUnavailable, match=words) as error:
            side.call(call, resource)
        assert error.value.refused
    assert side.queue(resource) == []


@pytest.mark.parametrize(
    ("ttl", "text"),
    [
        (None, "ttl must be a number of seconds"),
        (0, "ttl must be between"),
        (-1, "ttl must be between"),
        (float("nan"), "ttl must be a finite number"),
        (float("inf"), "ttl must be a finite number"),
        ("10", "ttl must be a number of seconds"),
    ],
)
def test_a_ttl_that_is_none_is_refused(side: ZooKeeperSide, ttl: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        side.coordinator(ttl=ttl)


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_of_the_client_that_is_no_ttl_is_refused(side: ZooKeeperSide, timeout: Any) -> None:
    with pytest.raises(ValueError, match="ttl must be between"):
        side.coordinator(client=KazooClient(side.hosts, timeout=timeout))


@pytest.mark.parametrize(
    "resource", [".", "..", "...", "a/b", "/", "//", "a\nb", " ", "%", "%2E", "é" * 256, "\x7f\ufffe"]
)
def test_every_name_works(side: ZooKeeperSide, resource: str) -> None:
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, resource, timeout=30)
    assert resource in held_in(side, coordinator)
    assert side.call(coordinator.holder, resource).number == lease.fence.number
    assert len(side.queue(resource)) == 1
    assert side.call(lease.release)


@pytest.mark.parametrize(("resource", "text"), [("a\0b", "NUL"), ("x" * 2000, "at most 512 bytes"), ("", "empty")])
def test_names_of_no_node_are_refused(side: ZooKeeperSide, resource: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        side.call(side.coordinator().acquire, resource)
