"""Watches, through MONITOR, whether scripts touch only keys that they were given as KEYS."""

from __future__ import annotations

import codecs
import hashlib
import re
import socket
import threading
import unittest
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

from examples.servers import RedisServer

_LINE = re.compile(rb"\+\d+\.\d+ \[\d+ (\S+)\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)


class ScriptWatch:
    """Everything that a server runs while it is entered. A context manager.

    Attributes:
        ran: the SHA-1 of each script that ran.
        undeclared: what scripts did with keys that they were not given: SHA-1, command, key.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.ran: set[str] = set()
        self.undeclared: set[tuple[str, str, bytes]] = set()
        self._lines: list[bytes] = []
        self._positions: dict[bytes, tuple[int, int, int]] = {}

    def __enter__(self) -> ScriptWatch:
        self._socket = socket.create_connection((self._server.host, self._server.port), timeout=60)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._file.readline() == b"+OK\r\n"
        self._last = uuid.uuid4().hex.encode()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def _read(self) -> None:
        for line in self._file:
            if self._last in line:
                return
            self._lines.append(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with self._server.client(socket_timeout=60) as client:
            client.execute_command("ECHO", self._last)
            self._thread.join(60)
            self._file.close()
            self._socket.close()
            assert not self._thread.is_alive()
            if error is None:
                self._assess(client)

    def _assess(self, client: Any) -> None:
        sha, keys = "", set[bytes]()
        for line in self._lines:
            match = _LINE.match(line.rstrip(b"\r\n"))
            assert match is not None, line
            words = [codecs.escape_decode(word)[0] for word in _WORD.findall(match[2])]
            if words[0].upper() in (b"EVAL", b"EVALSHA"):
                is_text = words[0].upper() == b"EVAL"
                sha = hashlib.sha1(words[1], usedforsecurity=False).hexdigest() if is_text else words[1].decode()
                keys = set(words[3 : 3 + int(words[2])])
                self.ran.add(sha)
            elif match[1] == b"lua":
                for key in self._keys_of(client, words):
                    if key not in keys:
                        self.undeclared.add((sha, words[0].decode(), key))

    def _keys_of(self, client: Any, words: list[bytes]) -> list[bytes]:
        """Return the keys of a command, from the positions that the server names."""
        name = words[0].lower()
        if name not in self._positions:
            [info] = client.execute_command("COMMAND INFO", name)
            assert b"movablekeys" not in info[2], name
            self._positions[name] = (info[3], info[4], info[5])
        first, last, step = self._positions[name]
        return words[first : last + 1 if last >= 0 else len(words) + last + 1 : step] if first else []


def run_contract(make_suite: Callable[[], Any]) -> None:
    """Run all tests of a contract, one after the other, each on a new instance."""
    for name in dir(make_suite()):
        if name.startswith("test_"):
            suite = make_suite()
            try:
                getattr(suite, name)()
            except unittest.SkipTest:
                pass
            finally:
                getattr(suite, "teardown_method", lambda: None)()
