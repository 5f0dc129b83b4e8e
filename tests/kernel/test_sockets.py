"""A socket that other code waits on is shut by its number, and that may be another socket's by then."""

from __future__ import annotations

import os
import socket

import pytest

from fencing.kernel.sockets import shut_down


def test_whoever_waits_finds_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        shut_down(ours.fileno)
        assert theirs.recv(1) == b""
        assert ours.fileno() >= 0


def test_a_socket_that_has_got_the_number_meanwhile_is_not_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    another, its_peer = socket.socketpair()
    number, dup = ours.fileno(), os.dup

    def close_first(fileno: int) -> int:
        ours.close()
        os.dup2(another.fileno(), number)
        return dup(fileno)

    monkeypatch.setattr(os, "dup", close_first)
    with theirs, another, its_peer:
        shut_down(ours.fileno)  # of a closed socket it is -1
        os.close(number)
        its_peer.sendall(b"x")
        assert another.recv(1) == b"x"


def test_of_a_closed_socket_nothing_is_shut_and_nothing_raised() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.close()
    another, its_peer = socket.socketpair()  # with the numbers that are free now
    with another, its_peer:
        shut_down(ours.fileno)
        its_peer.sendall(b"x")
        assert another.recv(1) == b"x"
