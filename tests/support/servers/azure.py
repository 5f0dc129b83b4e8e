"""An Azure Blob Storage: Azurite, Microsoft's emulator, from npm."""

import base64
import hashlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from examples.servers.local import Host, LocalProcess, ServerError, new_directory
from examples.servers.objects import ObjectServer, put
from tests.support.servers.npm import find_npm_program

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PROGRAM_VARIABLE = "FENCING_TEST_AZURITE"

# The emulator's account is the same everywhere; both are in its documentation.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class AzureServer(ObjectServer):
    """A running Azure Blob Storage; its buckets are containers. Every put makes a new ETag, even of the same bytes."""

    def __init__(self, url: str, host: Host, source: str) -> None:
        super().__init__(url, host, source)
        self.unsigned = {"sas_key": _shared_access_signature()}

    def _create(self, bucket: str) -> None:
        put(f"{self.url}/{bucket}?restype=container&{self.unsigned['sas_key']}")

    def _open(self, bucket: str, url: str, options: dict[str, Any]) -> "ObjectStore":
        from obstore.store import AzureStore

        key = {} if "sas_key" in options else {"account_key": KEY}
        return AzureStore(bucket, **{"account_name": ACCOUNT, "endpoint": url, **key, **options})


def _shared_access_signature() -> str:
    """For everything in the account's containers: learn.microsoft.com/rest/api/storageservices/create-account-sas."""
    fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": "2099-01-01T00:00:00Z", "sip": "", "spr": ""}
    fields["sv"] = "2020-12-06"
    text = "".join(f"{line}\n" for line in (ACCOUNT, *fields.values(), ""))
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    fields["sig"] = base64.b64encode(digest).decode()
    return urlencode({name: value for name, value in fields.items() if value})


def find_azurite() -> Path | None:
    """Azurite's blob service; what FENCING_TEST_AZURITE names comes first."""
    return find_npm_program(PROGRAM_VARIABLE, "azurite-blob", "azurite")


def start_azure() -> AzureServer:
    """Start an Azure Blob Storage; raises ServerError when Azurite is nowhere to be found."""
    program = find_azurite()
    if program is None:
        raise ServerError(f"no Azurite: run `make node`, or put azurite-blob on PATH or into {PROGRAM_VARIABLE}")
    directory = new_directory()

    def command(port: int) -> list[str]:
        others = [] if program.stem.endswith("blob") else ["--queuePort", "0", "--tablePort", "0"]
        quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        return [str(program), "--blobPort", str(port), "--location", str(directory / "data"), *quiet, *others]

    process = LocalProcess(
        command=command,
        directory=directory,
        data=directory / "data",
        ready=lambda process: "Azurite Blob service successfully listens" in process.log,
        clashed=lambda log: "EADDRINUSE" in log,
    )
    return AzureServer(f"http://127.0.0.1:{process.port}/{ACCOUNT}", process, f"Azurite: {program}")
