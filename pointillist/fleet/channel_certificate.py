"""A party's certificate for the channel: its own key signs it, and the other party pins just it."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from .party_files import give_to_role, write_new

VALID_DAYS: Final = 397
"""Over a year, so that it is renewed in the same month; a doctor warns a month before."""


def make_certificate(folder: Path, party: str, names: Sequence[str], user: str | None) -> str:
    """Write `party`.key (0600, its user's own) and `party`.pem; give the certificate as PEM.

    names       host names or addresses by which the other party calls it
    Raises      OSError, ValueError for a name that no certificate can carry
    """
    key = ec.generate_private_key(ec.SECP256R1())
    pem = _certificate(party, names, key).public_bytes(Encoding.PEM).decode()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    write_new(folder / f"{party}.key", secret, 0o600)
    give_to_role(folder / f"{party}.key", user)
    write_new(folder / f"{party}.pem", pem)
    return pem


def one_certificate(text: str) -> str:
    """Give the one certificate of a text as PEM, without what may stand around it.

    Raises      ValueError
    """
    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        found = []
    if len(found) != 1:
        raise ValueError(f"expected one certificate in PEM, got {len(found) or 'other text'}")
    return found[0].public_bytes(Encoding.PEM).decode()


def _certificate(
    party: str, names: Sequence[str], key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"pointillist {party}")])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        # It vouches for itself alone: the other party trusts this one, and none that it signed.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)
