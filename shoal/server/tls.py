"""Certificates: the administrator's, or a self-signed one made at the first start, whose fingerprint clients pin."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import BadConfig

if TYPE_CHECKING:
    from cryptography import x509

LIFETIME = timedelta(days=3650)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Certificate:
    """`fingerprint` is the SHA-256 of the certificate to pin; None where the usual authorities vouch for it.

    Programs on this machine reach a server that listens everywhere by a loopback address, which no authority vouches
    for: they pin as well.
    """

    cert: Path
    key: Path
    fingerprint: str | None


def is_loopback(host: str) -> bool:
    if host in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_certificate(cert: Path, key: Path, host: str) -> Certificate:
    """The administrator's; BadConfig when the two files are not a certificate and its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as wrong:
        raise BadConfig(f"{cert} and {key} are not a certificate and its key: {wrong}; give PEM files") from None
    pem = cert.read_text()
    pinned = _signed_itself(pem) or host in EVERYWHERE or is_loopback(host)
    return Certificate(cert, key, fingerprint_of(pem) if pinned else None)


def self_signed(folder: Path, host: str) -> Certificate:
    """The certificate under `folder`; made when there is none, or none that names the host."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = names_of(host)
    if not (key.exists() and cert.exists() and _still_good(cert.read_text(), names)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(cert, key, names)
    return Certificate(cert, key, fingerprint_of(cert.read_text()))


def fingerprint_of(pem: str) -> str:
    """SHA-256 of the first certificate, as lower-case hex."""
    end = "-----END CERTIFICATE-----"
    return sha256(ssl.PEM_cert_to_DER_cert(pem[: pem.index(end) + len(end)])).hexdigest()


def names_of(host: str) -> list[str]:
    """Every name and address a client may call this machine by; the given host first."""
    machine = socket.gethostname()
    found = [host, machine, *LOOPBACK, *_addresses(machine)]
    return [name for name in dict.fromkeys(found) if name not in (*EVERYWHERE, "")]


def _addresses(machine: str) -> list[str]:
    try:
        return sorted({str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(machine, None)})
    except OSError:
        return []  # a machine that cannot look itself up is still reached by the host that was given


def _make(cert_file: Path, key_file: Path, names: list[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Shoal server")])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_private(key_file, pem)
    _write_private(cert_file, cert.public_bytes(serialization.Encoding.PEM))


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_private(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)


def _load(pem: str) -> x509.Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem.encode())


def _signed_itself(pem: str) -> bool:
    cert = _load(pem)
    return cert.issuer == cert.subject


def _still_good(pem: str, names: list[str]) -> bool:
    """Whether it lasts another month and names the host; other names may have changed since, which does no harm."""
    from cryptography import x509

    cert = _load(pem)
    held = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    lasts = cert.not_valid_after_utc > datetime.now(UTC) + timedelta(days=30)
    return lasts and _general(names[0]) in list(held)
