"""A Google Cloud Storage: a small one of ours, in a process of its own. What it does and leaves out: `gcs_app`."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.servers.local import LocalProcess, new_directory
from examples.servers.objects import ObjectServer, put

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_ROOT = Path(__file__).resolve().parents[3]


class GCSServer(ObjectServer):
    """A running GCS. Every put makes a new generation, which conditional puts match; ETags are content hashes."""

    def _create(self, bucket: str) -> None:
        put(f"{self.url}/{bucket}")

    def _open(self, bucket: str, url: str, options: dict[str, Any]) -> "ObjectStore":
        from obstore.store import GCSStore

        # The way to another address that all versions of obstore have.
        account = {
            "gcs_base_url": url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return GCSStore(bucket, **{"service_account_key": json.dumps(account), **options})


def start_gcs() -> GCSServer:
    """Start a GCS; its objects are in memory, and gone at its end."""
    directory = new_directory()
    process = LocalProcess(
        command=lambda port: [sys.executable, "-m", "tests.support.servers.gcs_app", str(port)],
        directory=directory,
        data=directory / "data",
        ready=lambda process: "serving GCS" in process.log,
        clashed=lambda log: "Address already in use" in log,
        environment={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    return GCSServer(f"http://127.0.0.1:{process.port}", process, "ours, after Google's documentation")
