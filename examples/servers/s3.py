"""An S3: moto's, in a process of its own, with conditional puts that really exclude each other."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.servers.local import LocalProcess, ServerError, new_directory
from examples.servers.objects import ObjectServer, put

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "examples.servers.s3_app"
_REGION = "us-east-1"
_KEY = "S3RVER"  # the only one that s3rver knows; moto takes any


class S3Server(ObjectServer):
    """A running S3. ETags are hashes of the content, as in S3: the same bytes have the same ETag."""

    def _create(self, bucket: str) -> None:
        put(f"{self.url}/{bucket}")

    def _open(self, bucket: str, url: str, options: dict[str, Any]) -> "ObjectStore":
        from obstore.store import S3Store

        keys = {"access_key_id": _KEY, "secret_access_key": _KEY}
        return S3Store(bucket, **{"endpoint": url, "region": _REGION, **keys, **options})


def find_s3() -> bool:
    """Whether moto is installed, and what its server needs for S3: pip install 'moto[s3]' flask flask-cors."""
    return all(importlib.util.find_spec(package) for package in ("moto", "flask", "flask_cors"))


def start_s3(*, serialised: bool = True, pause: float | None = None) -> S3Server:
    """Start an S3; raises ServerError when moto is not installed.

    What it does not do as S3 does: it checks no signature, and completes a multipart upload whatever its If-Match says.
    `serialised=False`: one that misbehaves: of conditional puts that meet, all succeed.
    `pause`: seconds between looking whether a condition holds and storing; by default 0, when not serialised 0.2.
    """
    if not find_s3():
        raise ServerError("no S3: pip install 'moto[s3]' flask flask-cors")
    directory = new_directory()
    mode = "serialised" if serialised else "racy"
    if pause is None:
        pause = 0.0 if serialised else 0.2
    process = LocalProcess(
        command=lambda port: [sys.executable, "-m", PROGRAM, str(port), mode, str(pause)],
        directory=directory,
        data=directory / "data",
        ready=lambda process: "serving S3" in process.log,
        clashed=lambda log: "in use" in log,
        # Big objects are temporary files, and go with the directory.
        environment={**os.environ, "PYTHONPATH": str(_ROOT), "TMPDIR": str(directory)},
    )
    return S3Server(f"http://127.0.0.1:{process.port}", process, f"moto, {mode}")
