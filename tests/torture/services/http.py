"""A service over HTTP, behind a proxy: it keeps the counters in SQLite, and checks fences there."""

from __future__ import annotations

import os
import sys
from typing import Any

import httpx2

from examples.servers.local import LocalProcess, new_directory
from examples.servers.server import Server
from storage_guards import AsyncHTTPGuard, HTTPGuard
from tests.torture.processes import ROOT
from tests.torture.services.base import GUARD_SECONDS, Given, Kit, Sides
from tests.torture.services.sqlite import SQLite
from tests.torture.ways import HTTP as WAYS

__all__ = ["HTTP"]

PROGRAM = (sys.executable, "-m", "tests.torture.services.http_app")
KEY = b"torture " * 4
"""It signs claims. The service takes no others."""


class HTTP(SQLite):
    name = "http"
    storages = ("http",)
    done_once = ()
    has_locks = False
    important = b"PUT "
    late = b"POST /claims"  # a late PUT may overwrite what its own lease has written since

    def start(self) -> Given:
        given = super().start()
        directory = new_directory()
        process = LocalProcess(
            command=lambda port: [*PROGRAM, str(port), given["url"], KEY.hex()],
            directory=directory,
            data=directory / "data",
            ready=lambda process: "serving" in process.log,
            clashed=lambda log: "Address already in use" in log,
            environment={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        url = f"http://127.0.0.1:{process.port}"
        self.server = self.stack.enter_context(Server(url, process, "ours", port=process.port))
        return {"url": self.proxy(self.server).url(url)}

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        make: Any = httpx2.AsyncClient if sides.asynchronous else httpx2.Client
        client = make(base_url=given["url"], timeout=GUARD_SECONDS)
        guard: Any = AsyncHTTPGuard if sides.asynchronous else HTTPGuard
        return [Kit(guard("/claims", client, timeout=GUARD_SECONDS, key=KEY), client, WAYS, sides.asynchronous)]
