"""A certificate for servers, which no client trusts by default."""

from __future__ import annotations

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
