"""Certificates of both sides, users and passwords, tokens that expire, and rights that are missing."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples.servers import EtcdServer
from fencing import CoordinatorUnavailable
from fencing.etcd.calls import encode
from fencing.etcd.layout import PREFIX
from fencing.kernel.fence import new_token
from tests.support.etcd import EtcdSide, with_faults
from tests.support.refusals import refused_as_held
from tests.support.tls import TlsOfBothSides, client_context

Start = Callable[..., EtcdServer]


def name() -> str:
    return f"access/{new_token()}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TlsOfBothSides:
    return TlsOfBothSides(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def sides() -> Iterator[list[EtcdSide]]:
    made = [EtcdSide(False, []), EtcdSide(True, [])]
    yield made
    for each in made:
        each.close()


def block(side: EtcdSide, coordinator: Any) -> None:
    lease = side.call(coordinator.acquire, name(), timeout=30)
    side.call(lease.renew)
    assert side.call(lease.release)


@pytest.mark.thorough
def test_certificates_of_both_sides(fresh_etcd: Start, certificates: TlsOfBothSides, sides: list[EtcdSide]) -> None:
    server = fresh_etcd(certificates.arguments)
    assert server.url.startswith("https://")
    trusted = client_context(certificates.folder, has_certificate=False)
    both = client_context(certificates.folder)
    for side in sides:
        block(side, side.coordinator(urls=[server.url], tls=both))
        held = side.call(side.coordinator(urls=[server.url], tls=both).acquire, "held")
        other = side.coordinator(urls=[server.url], tls=both)
        refused_as_held(partial(side.call, other.acquire, "held", timeout=0.3))  # a waiter's stream goes over TLS, too
        assert side.call(held.release)
        for tls, text in ((trusted, "certificate"), (None, "is not trusted")):
            with pytest.raises(CoordinatorUnavailable, match=text):
                side.call(side.coordinator(urls=[server.url], tls=tls).try_acquire, name())
        with pytest.raises(CoordinatorUnavailable, match="is it an etcd, and http or https"):
            side.call(side.coordinator(urls=[server.url.replace("https", "http")]).try_acquire, name())


def with_users(server: EtcdServer) -> None:
    """Make the user "worker", who may use nothing but the keys of locks, and turn the checks on."""
    for user, password in (("root", "r"), ("worker", "w"), ("nobody", "n")):
        server.call("auth/user/add", {"name": user, "password": password})
    for role in ("root", "locks"):
        server.call("auth/role/add", {"name": role})
    end = PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)
    permission = {"permType": "READWRITE", "key": encode(PREFIX), "range_end": encode(end)}
    server.call("auth/role/grant", {"name": "locks", "perm": permission})
    server.call("auth/user/grant", {"user": "root", "role": "root"})
    server.call("auth/user/grant", {"user": "worker", "role": "locks"})
    server.call("auth/enable", {})


@pytest.mark.thorough
def test_a_user_needs_no_more_than_the_keys_of_locks(fresh_etcd: Start, sides: list[EtcdSide]) -> None:
    server = fresh_etcd()
    with_users(server)
    for side in sides:
        coordinator = side.coordinator(urls=[server.url], user="worker", password="w")
        other = side.coordinator(urls=[server.url], user="worker", password="w")
        block(side, coordinator)
        held = side.call(other.acquire, "held")
        assert side.call(coordinator.try_acquire, "held") is None
        refused_as_held(partial(side.call, coordinator.acquire, "held", timeout=0.3))
        assert side.call(coordinator.force_release, "held").holder.number == held.fence.number
        assert not side.call(held.release)
        adopted = side.call(other.adopt, side.call(side.call(coordinator.acquire, "held").detach))
        assert side.call(adopted.release)
        for user, password, text in (
            ("worker", "wrong", "authentication failed"),
            ("nobody", "n", "permission denied"),
            (None, None, "user name is empty"),
        ):
            refused = side.coordinator(urls=[server.url], user=user, password=password)
            with pytest.raises(CoordinatorUnavailable, match=text) as error:
                side.call(refused.try_acquire, name())
            assert error.value.refused


@pytest.mark.thorough
def test_a_token_that_expires_within_a_block_is_replaced(
    fresh_etcd: Start, sides: list[EtcdSide], tmp_path: Path
) -> None:
    """Tokens of a second: the renewals of a lease need several."""
    make_key = "openssl genrsa -out key.pem 2048", "openssl rsa -in key.pem -pubout -out public.pem"
    for command in make_key:
        subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    keys = f"pub-key={tmp_path}/public.pem,priv-key={tmp_path}/key.pem"
    server = fresh_etcd(["--auth-token", f"jwt,{keys},sign-method=RS256,ttl=1s"])
    with_users(server)
    for side in sides:
        coordinator = side.coordinator(urls=[server.url], user="worker", password="w", ttl=2)
        faults = with_faults(coordinator)
        lease = side.call(coordinator.acquire, "long")
        side.wait_until(lambda: faults.paths.count("auth/authenticate") >= 3, seconds=60)  # noqa: B023
        assert lease.remaining() > 0
        assert side.call(lease.release)


@pytest.mark.thorough
def test_a_server_that_has_forgotten_its_tokens_gets_new_ones(fresh_etcd: Start, sides: list[EtcdSide]) -> None:
    server = fresh_etcd()
    with_users(server)
    for side in sides:
        coordinator = side.coordinator(urls=[server.url], user="worker", password="w")
        lease = side.call(coordinator.acquire, "kept")
        server.restart()
        side.call(lease.renew)
        assert side.call(lease.release)


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_authentication_comes_and_goes_under_a_coordinator(fresh_etcd: Start, asynchronous: bool) -> None:
    """Its user is given before there are any. No lock is lost."""
    server, side = fresh_etcd(), EtcdSide(asynchronous, [])
    coordinator = side.coordinator(urls=[server.url], user="worker", password="w")
    faults = with_faults(coordinator)
    lease = side.call(coordinator.acquire, "kept")
    block(side, coordinator)
    assert faults.paths.count("auth/authenticate") == 1
    with_users(server)
    side.call(lease.renew)
    block(side, coordinator)
    token = server.call("auth/authenticate", {"name": "root", "password": "r"})["token"]
    server.call("auth/disable", {}, credentials=token)
    side.call(lease.renew)
    block(side, coordinator)
    assert side.call(lease.release)
    side.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"urls": []}, "at least one server"),
        ({"urls": "http://localhost:2379"}, "takes a list"),
        ({"urls": [1]}, "is a URL"),
        ({"urls": ["redis://localhost"]}, "is a URL"),
        ({"urls": ["http://user:word@localhost"]}, "as such"),
        ({"urls": ["http://localhost/v3"]}, "no path"),
        ({"urls": ["http://localhost:port"]}, "is a URL"),
        ({"user": "worker"}, "both"),
        ({"tls": True, "urls": ["https://localhost"]}, "SSLContext"),
        ({"tls": ssl.create_default_context()}, "no endpoint begins with https"),
        ({"max_waiters": 3}, "max_waiters"),
        ({"clock_floor": 1}, "clock_floor"),
        ({"ttl": 0}, "ttl"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], text: str) -> None:
    for asynchronous in (False, True):
        with pytest.raises((TypeError, ValueError), match=text):
            EtcdSide(asynchronous, ["http://localhost:2379"]).coordinator(**options)
