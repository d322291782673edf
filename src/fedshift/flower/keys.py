"""Certificates and keys of a federation: an authority, the server's certificate, and a pair of keys for each site."""

from __future__ import annotations

import ipaddress
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..core.errors import UserError

DAYS = 398
"""Days for which certificates hold."""


@dataclass(frozen=True)
class Keys:
    """Files of a federation at its server: `server` stays there, and each site gets its folder under `sites`."""

    folder: Path

    @property
    def address(self) -> Path:
        """The address of the server, host:port."""
        return self.folder / "address.txt"

    @property
    def ca(self) -> Path:
        """The certificate of the authority, by which sites know the server."""
        return self.folder / "ca.crt"

    @property
    def server(self) -> tuple[Path, Path]:
        """The server's certificate and its private key."""
        return self.folder / "server" / "server.pem", self.folder / "server" / "server.key"

    def site(self, name: str) -> Path:
        """Return the folder that the site gets."""
        return self.folder / "sites" / name

    def public(self, name: str) -> Path:
        """Return the public key of a site, in the form of OpenSSH."""
        return self.folder / "server" / f"{name}.pub"

    @property
    def names(self) -> list[str]:
        """Names of the sites that have keys."""
        return sorted(file.stem for file in (self.folder / "server").glob("*.pub"))


def write(keys: Keys, host: str, port: int, sites: Sequence[str], study: Path) -> None:
    """Write certificates for a server and keys for the sites. Raises UserError where there are some already.

    Each site's folder holds the authority's certificate, its private key, the server's address, and the study.
    """
    if keys.ca.exists():
        raise UserError(
            keys.folder, "has certificates already", "remove the folder, or go on with it: leave out --init"
        )
    now = datetime.now(UTC)

    def certificate(title: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedshift federation")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=DAYS))
        )

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = certificate("fedshift federation", authority).add_extension(x509.BasicConstraints(True, 0), critical=True)
    ca = ca.add_extension(_usage(signs=True), critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
    hosts = [_general_name(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    leaf = certificate(host, server).add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(False, None), critical=True)
    leaf = leaf.add_extension(_usage(signs=False), critical=True)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issued = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    leaf = leaf.add_extension(issued, critical=False)
    # The authority's key is dropped: nobody can issue a second certificate.
    for folder in (keys.folder / "server", *map(keys.site, sites)):
        folder.mkdir(parents=True)
    _write_certificate(keys.ca, ca, authority)
    pem, key = keys.server
    _write_certificate(pem, leaf, authority)
    _write_private(key, server, openssh=False)
    keys.address.write_text(f"{host}:{port}\n", encoding="utf-8")
    for name in sites:
        own = ec.generate_private_key(ec.SECP384R1())
        _write_private(keys.site(name) / "key", own, openssh=True)
        keys.public(name).write_bytes(_public(own))
        for file in (keys.ca, keys.address, study):
            shutil.copy(file, keys.site(name))


def _usage(signs: bool) -> x509.KeyUsage:

    kinds = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    never = dict.fromkeys((*kinds, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **never)


def _general_name(host: str) -> x509.GeneralName:

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_certificate(file: Path, builder: x509.CertificateBuilder, authority: ec.EllipticCurvePrivateKey) -> None:

    file.write_bytes(builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM))


def _write_private(file: Path, key: ec.EllipticCurvePrivateKey, openssh: bool) -> None:

    form = PrivateFormat.OpenSSH if openssh else PrivateFormat.PKCS8
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
        out.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:

    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
