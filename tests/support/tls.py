"""Certificates for servers and clients, which nobody trusts by default."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

MAKE_CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost "
    "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
)


class Tls:
    """A certificate that no default trusts. ``arguments`` are for the servers that have it."""

    def __init__(self, directory: Path) -> None:
        subprocess.run(MAKE_CERTIFICATE.split(), cwd=directory, check=True, capture_output=True)
        self.certificate = str(directory / "cert.pem")
        port = ("--tls-port", "{port}", "--port", "0", "--tls-auth-clients", "no")
        files = ("--tls-cert-file", self.certificate, "--tls-key-file", str(directory / "key.pem"))
        self.arguments = (*port, *files, "--tls-ca-cert-file", self.certificate)


_REQUEST = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} -keyout {name}.key"
_AUTHORITY = f"{_REQUEST} -x509 -days 1 -out {{name}}.pem"
_SIGN = (
    "openssl x509 -req -in {name}.csr -CA authority.pem -CAkey authority.key -days 1 "
    "-extfile {name}.ext -out {name}.pem"
)


class TlsOfBothSides:
    """Certificates of an etcd and of its client, and the authority of both. ``arguments`` are for the server."""

    def __init__(self, folder: Path) -> None:
        def run(command: str, **values: str) -> None:
            subprocess.run(command.format(**values).split(), cwd=folder, check=True, capture_output=True)

        self.folder = folder
        run(_AUTHORITY, name="authority")
        for each, use in (("server", "serverAuth,clientAuth"), ("worker", "clientAuth")):
            (folder / f"{each}.ext").write_text(f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={use}\n")
            run(_REQUEST + " -out {name}.csr", name=each)
            run(_SIGN, name=each)
        self.arguments = (
            *("--cert-file", f"{folder}/server.pem", "--key-file", f"{folder}/server.key"),
            *("--client-cert-auth", "--trusted-ca-file", f"{folder}/authority.pem"),
        )


def client_context(folder: Path, *, has_certificate: bool = True) -> ssl.SSLContext:
    """Return a context that trusts the authority of ``TlsOfBothSides``, with the client's certificate or without."""
    context = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    if has_certificate:
        context.load_cert_chain(folder / "worker.pem", folder / "worker.key")
    return context
