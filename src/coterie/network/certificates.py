"""Certificates of a network: an authority, the server, and one per site.

A site is known by its certificate. NAME.pem has the site's private key, its certificate and the
certificate of the authority, which is all that its node needs; server.pem has those of the server.
sites.json lists the certificates with which sites may connect.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import secrets
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.core.errors import CoterieError
from coterie.runs.files import temporary_path, write_error, write_text

log = logging.getLogger("coterie")
REGISTRY = "sites.json"
DAYS = 365  # of the certificates of server and sites
AUTHORITY_DAYS = 3650
AUTHORITY, SERVER = "ca.pem", "server.pem"  # files; sites cannot have these names


# ------------------------------------------------------------------------------ registered sites
class AcceptedCertificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certificate with which a site may connect."""

    fingerprint: str  # SHA-256 of the certificate, as hexadecimal digits
    expires: str  # date


# site → its certificates, from the oldest to the newest; none: the site is revoked
Registry = dict[str, list[AcceptedCertificate]]


def read_registry(folder: Path) -> Registry:
    """Read sites.json of a folder of certificates.

    Raises:
        CoterieError: The file cannot be read, is damaged, or is of version 0.2.
    """
    file = folder / REGISTRY
    try:
        raw = file.read_bytes()
    except OSError as e:
        raise CoterieError(
            f"{file} cannot be read ({e.strerror})", "register sites with `coterie network certs`"
        ) from e
    try:
        return msgspec.json.decode(raw, type=Registry)
    except (msgspec.DecodeError, UnicodeError) as e:
        what = f"{file} is damaged"
        if b"BEGIN PUBLIC KEY" in raw:
            what = f"{file} has keys of version 0.2, and sites now have certificates"
        raise CoterieError(what, "make a new folder with `coterie network certs`") from e


def write_registry(folder: Path, registry: Registry) -> None:
    """Replace sites.json."""
    raw = msgspec.json.format(msgspec.json.encode(dict(sorted(registry.items()))), indent=1)
    write_text(folder / REGISTRY, raw.decode() + "\n")


def write_private(file: Path, raw: bytes) -> None:
    """Replace a file that only its owner can read."""
    temporary = temporary_path(file)
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(raw)
        os.replace(temporary, file)
    except OSError as e:
        raise write_error(e, file) from e


class SiteDirectory:
    """Finds the site of a certificate; reads sites.json again whenever the file changes.

    Args:
        certs: Folder of `coterie network certs`.
    """

    def __init__(self, certs: Path) -> None:
        self.certs = certs
        self.registry = read_registry(certs)
        self._changed = self._modified_at()
        self._replaced: set[str] = set()  # fingerprints earlier than one that its site has used

    @property
    def names(self) -> list[str]:
        """All registered sites that are not revoked."""
        return sorted(name for name, accepted in self.registry.items() if accepted)

    def reload(self) -> bool:
        """Read the file again if it has changed; return whether it has."""
        changed = self._modified_at()
        if changed in (None, self._changed):
            return False
        self._changed = changed
        try:
            self.registry = read_registry(self.certs)
        except CoterieError as e:
            log.warning("changes of the registered sites are ignored: %s", e)
            return False
        return True

    def find(self, fingerprint: str) -> str | None:
        """Return the site that may connect with a certificate; None if there is none.

        Once a site has connected with a renewed certificate, its earlier one is refused.
        """
        if fingerprint in self._replaced:
            return None
        for name, accepted in self.registry.items():
            known = [certificate.fingerprint for certificate in accepted]
            if fingerprint in known:
                self._replaced.update(known[: known.index(fingerprint)])
                return name
        return None

    def _modified_at(self) -> int | None:
        try:
            return (self.certs / REGISTRY).stat().st_mtime_ns
        except OSError:
            return None


# ------------------------------------------------------------------------------ certificates
class Issuer(NamedTuple):
    """A certificate with its private key; the authority signs with its own."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_authority(folder: Path, host: str) -> None:
    """Write the authority's ca.pem, and server.pem.

    Args:
        folder: Folder for the files.
        host: Name or address at which sites reach the server.

    Raises:
        CoterieError: The folder already has certificates.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (folder / AUTHORITY).exists():
        raise CoterieError(f"{folder} has certificates already", "choose another folder")
    # TLS finds an authority by its name, so each has its own
    authority = issue(f"coterie network {secrets.token_hex(4)}", None, days=AUTHORITY_DAYS)
    server = issue(host[:64], authority, host=host)
    write_private(folder / AUTHORITY, as_pem(authority))
    write_private(folder / SERVER, as_pem(server, authority))


def register_site(folder: Path, name: str) -> Path:
    """Make the certificate of a new site.

    Returns:
        The file for the site.

    Raises:
        CoterieError: The name is registered already, or cannot be the name of a file.
    """
    registry = read_registry(folder) if (folder / REGISTRY).exists() else {}
    if name in registry:
        raise CoterieError(
            f"the site {name!r} is registered in {folder}",
            "choose another name, or renew its certificate with --renew",
        )
    invalid = not name or name != Path(name).name or name.startswith(".") or len(name) > 64
    if invalid or f"{name}.pem" in (AUTHORITY, SERVER):
        raise CoterieError(f"{name!r} cannot be the name of a site", "choose another name")
    return _issue_to_site(folder, name, registry)


def renew(folder: Path, name: str) -> Path:
    """Make a new certificate for a site, or for the server if the name is `server`.

    The server accepts the earlier certificate of a site until the site connects with the new one.

    Returns:
        The file with the new certificate.

    Raises:
        CoterieError: There is no such site.
    """
    if name != "server":
        return _issue_to_site(folder, name, _registry_with(folder, name))
    authority = read_issuer(folder / AUTHORITY)
    old = read_issuer(folder / SERVER).certificate
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    host = str(names[0].value)
    write_private(folder / SERVER, as_pem(issue(host[:64], authority, host=host), authority))
    return folder / SERVER


def revoke(folder: Path, name: str) -> None:
    """Refuse all certificates of a site from now on, also while the server runs.

    Raises:
        CoterieError: There is no such site.
    """
    write_registry(folder, {**_registry_with(folder, name), name: []})


def _registry_with(folder: Path, name: str) -> Registry:
    registry = read_registry(folder)
    if name not in registry:
        known = ", ".join(sorted(registry)) or "none"
        raise CoterieError(f"there is no site {name!r} in {folder}", f"registered are: {known}")
    return registry


def _issue_to_site(folder: Path, name: str, registry: Registry) -> Path:
    authority = read_issuer(folder / AUTHORITY)
    site = issue(name, authority)
    file = folder / f"{name}.pem"
    write_private(file, as_pem(site, authority))
    accepted = AcceptedCertificate(
        site.certificate.fingerprint(hashes.SHA256()).hex(),
        site.certificate.not_valid_after_utc.date().isoformat(),
    )
    write_registry(folder, {**registry, name: [*registry.get(name, [])[-1:], accepted]})
    return file


# ------------------------------------------------------------------------------ X.509
def issue(
    name: str, authority: Issuer | None, *, host: str | None = None, days: int = DAYS
) -> Issuer:
    """Make a key and its certificate.

    Args:
        name: Common name of the owner.
        authority: Signs the certificate; None: the certificate is an authority's own.
        host: Name or address of a server; None: the certificate is for a client.
        days: Days until the certificate expires.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(authority is None, None), critical=True)
    )
    if authority is not None:
        usage = ExtendedKeyUsageOID.SERVER_AUTH if host else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if host is not None:
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
    signed = builder.sign(key if authority is None else authority.key, hashes.SHA256())
    return Issuer(signed, key)


def read_issuer(file: Path) -> Issuer:
    """Read a private key and its certificate.

    Raises:
        CoterieError: The file is missing or damaged.
    """
    try:
        raw = file.read_bytes()
        certificate = x509.load_pem_x509_certificate(raw)
        key = load_pem_private_key(raw, None)
    except FileNotFoundError as e:
        raise CoterieError(
            f"there is no file {file}", "make it with `coterie network certs DIR --host HOST`"
        ) from e
    except (OSError, ValueError, TypeError) as e:
        raise CoterieError(f"{file} is not a key with its certificate", "restore it") from e
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CoterieError(f"{file} has a key of another kind", "restore it")
    return Issuer(certificate, key)


def as_pem(owner: Issuer, authority: Issuer | None = None) -> bytes:
    """Return a key, its certificate and the authority's certificate as text.

    The first line has the dates, for people and for nodes, which do not need cryptography.
    """
    begins, expires = owner.certificate.not_valid_before_utc, owner.certificate.not_valid_after_utc
    dates = f"valid from {begins.isoformat()} to {expires.isoformat()}\n".encode()
    key = owner.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [owner] if authority is None else [owner, authority]
    return dates + key + b"".join(each.certificate.public_bytes(Encoding.PEM) for each in chain)
