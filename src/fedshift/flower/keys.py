"""Certificates and keys of a federation: an authority, the server's certificate, and a pair of keys for each site."""

from __future__ import annotations

import ipaddress
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..core.errors import UserError
from ..io.disk import write_private

DAYS = 398
"""Days for which certificates are valid."""
AUTHORITY = "fedshift federation"
"""Name of the certificate authority in its certificate."""


@dataclass(frozen=True)
class Keys:
    """Paths of the certificates and keys of a federation, in `folder` at its server.

    The folder `server` stays there, and each site gets its folder under `sites`.
    """

    folder: Path

    @property
    def address(self) -> Path:
        """The file with the address of the server, host:port."""
        return self.folder / "address.txt"

    @property
    def ca(self) -> Path:
        """The file with the certificate of the authority, by which sites recognise the server."""
        return self.folder / "ca.crt"

    @property
    def server(self) -> tuple[Path, Path]:
        """The files with the server's certificate and its private key."""
        return self.folder / "server" / "server.pem", self.folder / "server" / "server.key"

    def site(self, name: str) -> Path:
        """Return the folder of files to hand to the site `name`."""
        return self.folder / "sites" / name

    def public(self, name: str) -> Path:
        """Return the file with the public key of the site `name`, in the format of OpenSSH."""
        return self.folder / "server" / f"{name}.pub"

    @property
    def names(self) -> list[str]:
        """The names of the sites whose public key is at the server, sorted."""
        return sorted(file.stem for file in (self.folder / "server").glob("*.pub"))


def write(keys: Keys, host: str, port: int, sites: Sequence[str], study: Path) -> None:
    """Write certificates for the server and a pair of keys for each site.

    `host` and `port` are where sites reach the server. Each site's folder holds its private key, the authority's
    certificate, the server's address, and a copy of the file `study`. Raises UserError if the folder has certificates
    already.
    """
    if keys.ca.exists():
        remedy = "remove the folder, or go on with it: leave out --init"
        raise UserError(keys.folder, "has certificates already", remedy)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = (x509.BasicConstraints(True, 0), True), (_usage(signs=True), True), (authority_id, False)
    hosts = x509.SubjectAlternativeName([_host(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id)
    serves = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    plain = (x509.BasicConstraints(False, None), True), (_usage(signs=False), True)
    leaf = (hosts, False), *plain, (serves, False), (issuer, False)
    for folder in (keys.folder / "server", *map(keys.site, sites)):
        folder.mkdir(parents=True)
    # The authority's key is dropped: nobody can issue a second certificate.
    keys.ca.write_bytes(_certificate(AUTHORITY, authority, authority, ca))
    pem, key = keys.server
    pem.write_bytes(_certificate(host, server, authority, leaf))
    write_private(key, server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    keys.address.write_text(f"{host}:{port}\n", encoding="utf-8")
    for name in sites:
        pair = ec.generate_private_key(ec.SECP384R1())
        write_private(keys.site(name) / "key", pair.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        keys.public(name).write_bytes(pair.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
        for file in (keys.ca, keys.address, study):
            shutil.copy(file, keys.site(name))


def _certificate(
    title: str,
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    extensions: Iterable[tuple[x509.ExtensionType, bool]],
) -> bytes:
    """Return a certificate of a key, signed by the authority, in PEM.

    `title` is its common name. `extensions` are pairs: an extension, and whether it is critical.
    """
    now = datetime.now(UTC)
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (title, AUTHORITY))
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=DAYS))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)


def _usage(signs: bool) -> x509.KeyUsage:
    kinds = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    never = dict.fromkeys((*kinds, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **never)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
