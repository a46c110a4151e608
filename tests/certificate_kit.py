"""Certificates of a test: of an authority's own, and what it gives out."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aggregator.party.channel_address import TlsFiles

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """A CA of one test, and the files it gives out."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    address: str = "127.0.0.1"

    @classmethod
    def make(cls, folder: Path, address: str = "127.0.0.1") -> Authority:
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate("test CA", key, None, key, ca=True)
        made = cls(folder, key, certificate, address)
        _write(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
        return made

    def issue(self, name: str) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.IPAddress(ipaddress.ip_address(self.address))
        issued = _certificate(name, key, self.certificate, self.key, address)
        files = TlsFiles(
            self.folder / "ca.pem", self.folder / f"{name}.pem", self.folder / f"{name}.key"
        )
        _write(files.cert_file, issued.public_bytes(serialization.Encoding.PEM))
        _write(files.key_file, _private(key))
        return files


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a certificate that its own key signed, for a name or address; give both files, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    try:
        known: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        known = x509.DNSName(name)
    made = _certificate(name, key, None, key, known)
    paths = folder / "web.pem", folder / "web.key"
    _write(paths[0], made.public_bytes(serialization.Encoding.PEM))
    _write(paths[1], _private(key))
    return paths


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    *known: x509.GeneralName,
    ca: bool = False,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    draft = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if known:
        draft = draft.add_extension(x509.SubjectAlternativeName(known), critical=False)
    return draft.sign(signer, hashes.SHA256())


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
