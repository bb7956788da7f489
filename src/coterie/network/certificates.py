"""The certificate authority, the server's certificate, and a key for each site's node."""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from coterie.core.errors import CoterieError
from coterie.network.registry import REGISTRY, read_registry, write_private
from coterie.runs.files import write_text

DAYS = 365


def make_authority(folder: Path, host: str) -> None:
    """Write ca.crt, which sites trust, and server.crt with server.key.

    The key of the authority is used once and not stored.

    Args:
        folder: Folder for the files.
        host: Name or address of the server.

    Raises:
        CoterieError: The folder already has certificates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "ca.crt").exists():
        raise CoterieError(f"{folder} has certificates already", "choose another folder")
    ca_key, server_key = new_key(), new_key()
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coterie network")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    authority = certificate(issuer, issuer, ca_key.public_key(), ca_key, is_authority=True)
    served = certificate(subject, issuer, server_key.public_key(), ca_key, hosts=[host])
    write_text(folder / "ca.crt", authority.public_bytes(Encoding.PEM).decode())
    write_text(folder / "server.crt", served.public_bytes(Encoding.PEM).decode())
    write_secret(folder / "server.key", server_key)


def certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: Any,
    signing_key: Any,
    hosts: Sequence[str] = (),
    is_authority: bool = False,
) -> x509.Certificate:
    """Return a certificate that is valid for a year."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if hosts:
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signing_key, hashes.SHA384())


# ------------------------------------------------------------------------------ sites
def register_site(folder: Path, name: str) -> Path:
    """Make a key for a site's node and register it under the site's name.

    Returns:
        The file of the private key.

    Raises:
        CoterieError: The name is registered already, or cannot be the name of a file.
    """
    known = read_registry(folder) if (folder / REGISTRY).exists() else {}
    if name in known:
        raise CoterieError(f"the site {name!r} is registered in {folder}", "choose another name")
    key = new_key()
    file = folder / f"{name}.key"
    if file.name != f"{name}.key" or "/" in name or name.startswith("."):
        raise CoterieError(f"{name!r} cannot be the name of a file", "choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    write_secret(file, key)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    known[name] = public
    text = {name: raw.decode() for name, raw in sorted(known.items())}
    write_text(folder / REGISTRY, json.dumps(text, indent=1) + "\n")
    return file


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP384R1())


def write_secret(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key that only its owner can read."""
    write_private(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
