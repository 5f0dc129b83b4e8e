"""Stores of objects, each behind a proxy: counters that are published, and counters that are written in place."""

from __future__ import annotations

import base64
import pickle
from abc import abstractmethod
from typing import Any

from examples.servers import ObjectServer, S3Server, find_s3, start_s3
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from tests.support.servers import AzureServer, GCSServer, find_azurite, start_azure, start_gcs
from tests.torture.services.base import GUARD_SECONDS, Given, Kit, Place, Service, Sides
from tests.torture.ways import IN_PLACE, OBJECTS, parsed

__all__ = ["GCS", "S3", "Azure"]

START_SECONDS = 30.0
OPTIONS: Any = {"allow_http": True, "timeout": "3s", "connect_timeout": "1s"}


class Objects(Service):
    important = b"PUT "
    kind: type[ObjectServer]

    @abstractmethod
    def start_server(self) -> ObjectServer: ...

    def start(self) -> Given:
        self.server = self.stack.enter_context(self.start_server())
        bucket = self.server.new_bucket()
        self.guard = ObjectStoreGuard(self.server.store(bucket=bucket), timeout=START_SECONDS)
        report = base64.b64encode(pickle.dumps(self.guard.verify(timeout=START_SECONDS))).decode()
        return {"url": self.proxy(self.server).url(self.server.url), "bucket": bucket, "probe": report}

    def direct(self) -> Given:
        return {"url": self.server.url}

    def final(self, place: Place) -> dict[str, Any]:
        body: bytes | None = None
        if "place" in place.storage:
            stored = self.guard.get(place.name)
            body = None if stored is None else bytes(stored.data)
        elif (current := self.guard.read(place.name)) is not None:
            body = current.read("total")
        value, last = parsed(body)
        return {"value": value, "write": last}

    @classmethod
    def open_kits(cls, given: Given, storage: str, sides: Sides) -> list[Kit]:
        store = cls.kind(given["url"], None, "").store(bucket=given["bucket"], client_options=OPTIONS)  # type: ignore[arg-type]
        guard: Any = (AsyncObjectStoreGuard if sides.asynchronous else ObjectStoreGuard)(store, timeout=GUARD_SECONDS)
        guard._report = pickle.loads(base64.b64decode(given["probe"]))  # the director has tried the store out
        return [Kit(guard, store, IN_PLACE if "place" in storage else OBJECTS, sides.asynchronous)]


class S3(Objects):
    name = "s3"
    storages = ("s3", "s3-in-place")
    done_once = ("s3",)
    kind = S3Server

    @classmethod
    def why_not(cls) -> str:
        return "" if find_s3() else "moto is not installed"

    def start_server(self) -> ObjectServer:
        return start_s3()

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        return S3.open_kits(given, storage, sides)


class GCS(Objects):
    name = "gcs"
    storages = ("gcs", "gcs-in-place")
    done_once = ("gcs",)
    kind = GCSServer

    def start_server(self) -> ObjectServer:
        return start_gcs()

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        return GCS.open_kits(given, storage, sides)


class Azure(Objects):
    name = "azure"
    storages = ("azure", "azure-in-place")
    done_once = ("azure",)
    kind = AzureServer

    @classmethod
    def why_not(cls) -> str:
        return "" if find_azurite() else "Azurite is not installed (make node)"

    def start_server(self) -> ObjectServer:
        return start_azure()

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        return Azure.open_kits(given, storage, sides)
