"""A throw-away certificate authority for a broker on loopback."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = datetime.timedelta(days=30)


def write_certificates(folder: Path, host: str) -> tuple[Path, Path]:
    """Write ca.pem, and server.pem (key and chain, 0600) for a host address; give both paths."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = _name("pointillist test authority")
    root = (
        _builder(name, name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]
    )
    leaf = (
        _builder(_name(host), name, server.public_key())
        .add_extension(names, critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    ca_file, server_file = folder / "ca.pem", folder / "server.pem"
    ca_file.write_bytes(root.public_bytes(pem))
    server_file.touch(mode=0o600)
    server_file.write_bytes(key + leaf.public_bytes(pem) + root.public_bytes(pem))
    return ca_file, server_file


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
    )
