"""The state behind `gcs_app`: buckets, objects with generations, uploads in parts. One lock makes each step atomic."""

import hashlib
import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

MIN_PART = 5 * 1024 * 1024
"""Every part of an upload but the last has to be this big (docs/quotas)."""


class Refused(Exception):
    """An error reply: HTTP status, and the code in its XML."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Object:
    content: bytes
    etag: str
    generation: int
    headers: Mapping[str, str]
    metageneration: int = 1
    modified: float = field(default_factory=time.time)


class Conditions(NamedTuple):
    """x-goog-if-generation-match and x-goog-if-metageneration-match; generation 0: there must be no object."""

    generation: int | None = None
    metageneration: int | None = None

    def check(self, live: Object | None) -> None:
        generation = live.generation if live else 0
        metageneration = live.metageneration if live else None
        if self.generation is not None and self.generation != generation:
            raise Refused(412, "PreconditionFailed")
        if self.metageneration is not None and self.metageneration != metageneration:
            raise Refused(412, "PreconditionFailed")


@dataclass
class Upload:
    bucket: str
    key: str
    headers: Mapping[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class State:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, Object]] = {}
        self._uploads: dict[str, Upload] = {}
        # Real ones are microseconds, too: they grow over the whole store, and need more than 32 bits.
        self._generations = itertools.count(time.time_ns() // 1000)

    def create_bucket(self, bucket: str) -> None:
        with self._lock:
            if bucket in self._buckets:
                raise Refused(409, "BucketNameUnavailable")
            self._buckets[bucket] = {}

    def _objects(self, bucket: str) -> dict[str, Object]:
        if bucket not in self._buckets:
            raise Refused(404, "NoSuchBucket")
        return self._buckets[bucket]

    def _live(self, bucket: str, key: str) -> Object:
        live = self._objects(bucket).get(key)
        if live is None:
            raise Refused(404, "NoSuchKey")
        return live

    def get(self, bucket: str, key: str) -> Object:
        with self._lock:
            return self._live(bucket, key)

    def put(self, bucket: str, key: str, content: bytes, headers: Mapping[str, str], conditions: Conditions) -> Object:
        with self._lock:
            objects = self._objects(bucket)
            conditions.check(objects.get(key))
            etag = hashlib.md5(content).hexdigest()
            objects[key] = Object(content, etag, next(self._generations), headers)
            return objects[key]

    def copy(self, source: tuple[str, str], bucket: str, key: str, conditions: Conditions) -> Object:
        with self._lock:
            copied = self._live(*source)
            objects = self._objects(bucket)
            conditions.check(objects.get(key))
            objects[key] = replace(copied, generation=next(self._generations), metageneration=1, modified=time.time())
            return objects[key]

    def change_metadata(self, bucket: str, key: str, conditions: Conditions) -> Object:
        """What setting an ACL does: the generation stays, the metageneration grows."""
        with self._lock:
            live = self._live(bucket, key)
            conditions.check(live)
            changed = replace(live, metageneration=live.metageneration + 1)
            self._buckets[bucket][key] = changed
            return changed

    def delete(self, bucket: str, key: str, conditions: Conditions) -> None:
        with self._lock:
            conditions.check(self._live(bucket, key))
            del self._buckets[bucket][key]

    def keys(self, bucket: str) -> list[tuple[str, Object]]:
        with self._lock:
            objects = list(self._objects(bucket).items())
        return sorted(objects, key=lambda item: item[0].encode())

    def start_upload(self, bucket: str, key: str, headers: Mapping[str, str]) -> str:
        with self._lock:
            self._objects(bucket)
            name = f"upload-{next(self._generations)}"
            self._uploads[name] = Upload(bucket, key, headers)
            return name

    def _upload(self, name: str, bucket: str, key: str) -> Upload:
        upload = self._uploads.get(name)
        if upload is None or (upload.bucket, upload.key) != (bucket, key):
            raise Refused(404, "NoSuchUpload")
        return upload

    def put_part(self, name: str, bucket: str, key: str, number: int, content: bytes) -> str:
        if not 1 <= number <= 10_000:
            raise Refused(400, "InvalidArgument")
        with self._lock:
            self._upload(name, bucket, key).parts[number] = content
        return hashlib.md5(content).hexdigest()

    def complete(self, name: str, bucket: str, key: str, wanted: list[tuple[int, str]]) -> Object:
        with self._lock:
            upload = self._upload(name, bucket, key)
            if not wanted or wanted != sorted(set(wanted)):
                raise Refused(400, "InvalidPartOrder")
            contents: list[bytes] = []
            for number, etag in wanted:
                content = upload.parts.get(number)
                if content is None or hashlib.md5(content).hexdigest() != etag:
                    raise Refused(400, "InvalidPart")
                contents.append(content)
            if any(len(content) < MIN_PART for content in contents[:-1]):
                raise Refused(400, "EntityTooSmall")
            generation = next(self._generations)
            # No MD5 for what came in parts: its ETag says nothing about the content.
            made = Object(b"".join(contents), f"{generation:x}-{len(wanted)}", generation, upload.headers)
            self._objects(bucket)[key] = made
            del self._uploads[name]
            return made

    def abort(self, name: str, bucket: str, key: str) -> None:
        with self._lock:
            self._upload(name, bucket, key)
            del self._uploads[name]
