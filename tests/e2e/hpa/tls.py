"""One self-signed certificate for whatever speaks HTTPS here, on the loopback interface."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.rig.debian import program


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1 and localhost, and its key; both PEM."""

    certificate: Path
    key: Path

    def trusted(self) -> ssl.SSLContext:
        """For a client: this certificate and no other."""
        return ssl.create_default_context(cafile=str(self.certificate))

    def served(self) -> ssl.SSLContext:
        """For a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def self_signed(directory: Path) -> Certificate:
    """A new one, good for a day."""
    made = Certificate(directory / "tls.crt", directory / "tls.key")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = [program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-addext", names]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return made
