"""TLS of a throw-away authority, for tests: its certificates, and a front that ends TLS before a plain server.

    python tests/support/run.py private_tls HOST:PORT CERTIFICATE KEY HOST:PORT [SOCKET]

listens at the first address and passes the bytes on to the second, as stunnel does. It reads none of them. SOCKET is a
file where it listens without TLS, for a test that stands outside its network.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from . import RUN

LIFE = timedelta(days=2)
CHUNK = 1 << 16


@dataclass(frozen=True)
class PrivateAuthority:
    """The files of one authority and of the one server that it vouches for."""

    ca_file: Path
    certificate: Path
    key: Path

    @classmethod
    def made(cls, folder: Path, *addresses: str) -> PrivateAuthority:
        """New ones in this folder, for a server at these IP addresses."""
        folder.mkdir(parents=True, exist_ok=True)
        found = cls(folder / "ca.pem", folder / "server.pem", folder / "server.key")
        own, its = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        issuer, subject = _name("throw-away authority"), _name(addresses[0])
        usage = x509.KeyUsage(False, False, False, False, False, key_cert_sign=True, crl_sign=True,
                              encipher_only=False, decipher_only=False)  # fmt: skip
        authority = (
            _draft(issuer, issuer, own)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
            .sign(own, hashes.SHA256())
        )
        names = [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        server = (
            _draft(subject, issuer, its)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key()), critical=False)
            .sign(own, hashes.SHA256())
        )
        found.ca_file.write_bytes(authority.public_bytes(Encoding.PEM))
        found.certificate.write_bytes(server.public_bytes(Encoding.PEM))
        found.key.write_bytes(its.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return found

    def context(self) -> ssl.SSLContext:
        """For a server."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.certificate, self.key)
        return made

    def front(self, listen: str, target: str, *socket: str) -> list[str]:
        """The command of a front."""
        return [*(*RUN, "private_tls"), *(listen, str(self.certificate), str(self.key), target, *socket)]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _draft(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return (
        made.serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + LIFE)
    )


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while piece := await source.read(CHUNK):
            target.write(piece)
            await target.drain()
    with contextlib.suppress(OSError, RuntimeError):
        target.close()


async def _serve(listen: str, tls: ssl.SSLContext, target: str, socket: str = "") -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = target.rpartition(":")
        try:
            behind_reader, behind_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, behind_writer), _pass_on(behind_reader, writer))

    host, _, port = listen.rpartition(":")
    if socket:
        await asyncio.start_unix_server(one, socket)
    async with await asyncio.start_server(one, host, int(port), ssl=tls) as server:
        await server.serve_forever()


def main(argv: list[str]) -> None:
    listen, certificate, key, target, *socket = argv
    tls = PrivateAuthority(Path(), Path(certificate), Path(key)).context()
    asyncio.run(_serve(listen, tls, target, *socket))


if __name__ == "__main__":
    main(sys.argv[1:])
