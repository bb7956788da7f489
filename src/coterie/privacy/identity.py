"""Registered keys of clients, which sign the keys of secure sums: ECDSA on the curve P-256."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from coterie.core.errors import CoterieError, SiteRefusal

ALGORITHM = ec.ECDSA(hashes.SHA256())
WRONG = "the signature of a client's key is wrong"


class KeyIdentity:
    """A client of a simulation: the keys of all clients are known to each.

    Args:
        name: The client.
        key: Its private key.
        registered: The public key of each client.
    """

    def __init__(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        registered: dict[str, ec.EllipticCurvePublicKey],
    ) -> None:
        self.name = name
        self.key = key
        self.registered = registered

    def sign(self, message: bytes) -> bytes:
        """A signature."""
        return self.key.sign(message, ALGORITHM)

    def verify(self, name: str, message: bytes, signature: bytes) -> None:
        """Check a signature; raise `SiteRefusal` if it is wrong."""
        try:
            self.registered[name].verify(signature, message, ALGORITHM)
        except (InvalidSignature, KeyError) as e:
            raise SiteRefusal(WRONG) from e


def make_identities(names: Iterable[str]) -> dict[str, KeyIdentity]:
    """New keys for the clients of a simulation."""
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in names}
    registered = {name: key.public_key() for name, key in keys.items()}
    return {name: KeyIdentity(name, key, registered) for name, key in keys.items()}


class CertifiedSignature(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A signature with the certificate of its key."""

    certificate: bytes  # DER
    signature: bytes


def read_identity(file: Path) -> CertificateIdentity:
    """Read the key with which a site signs the keys of secure sums.

    Args:
        file: The site's file of `coterie network certs`: key, certificate and authority.

    Raises:
        CoterieError: The file is not a site's file.
    """
    try:
        raw = file.read_bytes()
        certificate, authority = x509.load_pem_x509_certificates(raw)
        key = load_pem_private_key(raw, password=None)
        (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except OSError as e:
        raise CoterieError(f"{file} cannot be read ({e.strerror})", "check the path") from e
    except (ValueError, TypeError) as e:
        raise CoterieError(
            f"{file} is not a site's file of `coterie network certs`",
            "make one with `coterie network certs` on the server",
        ) from e
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return CertificateIdentity(str(name.value), key, certificate, authority)


class CertificateIdentity:
    """A site with a certificate. It accepts the certificates that its own authority issued.

    Args:
        name: The site.
        key: Its private key.
        certificate: Its certificate.
        authority: The certificate of the authority.
    """

    def __init__(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
        authority: x509.Certificate,
    ) -> None:
        self.name = name
        self.key = key
        self.certificate = certificate
        self.authority = authority

    def sign(self, message: bytes) -> bytes:
        """A signature with the certificate."""
        raw = self.certificate.public_bytes(Encoding.DER)
        signature = self.key.sign(message, ALGORITHM)
        return msgspec.msgpack.encode(CertifiedSignature(raw, signature))

    def verify(self, name: str, message: bytes, signature: bytes) -> None:
        """Check a signature and its certificate; raise `SiteRefusal` if one is wrong."""
        try:
            given = msgspec.msgpack.decode(signature, type=CertifiedSignature)
            certificate = x509.load_der_x509_certificate(given.certificate)
            certificate.verify_directly_issued_by(self.authority)
            now = datetime.datetime.now(datetime.UTC)
            is_valid = certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            key = certificate.public_key()
            if not is_valid or [n.value for n in names] != [name]:
                raise SiteRefusal("the certificate of a client is not its own, or has expired")
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise SiteRefusal(WRONG)
            key.verify(given.signature, message, ALGORITHM)
        except (InvalidSignature, ValueError, TypeError, msgspec.DecodeError) as e:
            raise SiteRefusal(WRONG) from e
