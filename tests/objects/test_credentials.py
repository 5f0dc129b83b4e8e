"""The usual credentials of each cloud, as far as they can be tried here: a signed URL shows whose they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from fencing import Fence
from storage_guards import ObjectStoreGuard, Publication
from tests.support.object_guards import probed

pytestmark = pytest.mark.thorough


def signed_by(store: Any) -> str:
    """The URL that a publication of a guard on this store signs."""
    there: ObjectStoreGuard = probed(ObjectStoreGuard(MemoryStore()))
    there.publish(Fence("sales", 1, "a" * 22), {"x": b"1"}, claim=True)
    published: Any = there.read("sales")
    published._guard = ObjectStoreGuard(store)
    assert isinstance(published, Publication)
    [url] = published.signed_urls(60).values()
    return url


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_aws_the_environment(no_environment: pytest.MonkeyPatch) -> None:
    no_environment.setenv("AWS_ACCESS_KEY_ID", "OFTHEENVIRONMENT")
    no_environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    no_environment.setenv("AWS_SESSION_TOKEN", "of-the-session")
    url = signed_by(S3Store("acme", region="eu-central-1"))
    assert "X-Amz-Credential=OFTHEENVIRONMENT%2F" in url
    assert "X-Amz-Security-Token=of-the-session" in url


def test_aws_a_profile_through_boto3(no_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boto3 = pytest.importorskip("boto3")
    provider = pytest.importorskip("obstore.auth.boto3").Boto3CredentialProvider
    (tmp_path / "credentials").write_text("[data]\naws_access_key_id = OFTHEPROFILE\naws_secret_access_key = secret\n")
    (tmp_path / "config").write_text("[profile data]\nregion = eu-west-3\n")
    no_environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    no_environment.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    url = signed_by(S3Store("acme", credential_provider=provider(boto3.Session(profile_name="data"))))
    assert "X-Amz-Credential=OFTHEPROFILE%2F" in url
    assert "%2Feu-west-3%2Fs3%2F" in url, "the profile's region, too"


class Metadata(BaseHTTPRequestHandler):
    """The service of an EC2 machine that gives the credentials of its role."""

    def do_PUT(self) -> None:
        self._answer("a-token")

    def do_GET(self) -> None:
        keys = {"AccessKeyId": "OFTHEMACHINE", "SecretAccessKey": "secret", "Token": "of-the-role"}
        more = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "Expiration": "2100-01-01T00:00:00Z",
            "LastUpdated": "2026-01-01T00:00:00Z",
        }
        self._answer(json.dumps({**keys, **more}) if self.path.endswith("/uploader") else "uploader")

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(60)


def test_aws_the_role_of_a_machine(no_environment: pytest.MonkeyPatch, metadata: str) -> None:
    store = S3Store("acme", region="eu-central-1", metadata_endpoint=metadata, client_options={"allow_http": True})
    url = signed_by(store)
    assert "X-Amz-Credential=OFTHEMACHINE%2F" in url
    assert "X-Amz-Security-Token=of-the-role" in url


def test_google_the_key_of_a_service_account(tmp_path: Path) -> None:
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    forms = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    account = {"private_key": key.decode(), "private_key_id": "1", "client_email": "uploader@acme.example"}
    (tmp_path / "key.json").write_text(json.dumps({**account, "type": "service_account"}))
    url = signed_by(GCSStore("acme", service_account=str(tmp_path / "key.json")))
    assert "X-Goog-Credential=uploader%40acme.example%2F" in url


def test_azure_the_key_of_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    url = signed_by(AzureStore("data"))
    assert url.startswith("https://acme.blob.core.windows.net/data/fencing/sales/data/")
    assert "&sig=" in url
