from __future__ import annotations

import socket
import ssl
from pathlib import Path

import httpx
import pytest

from shoal.client.http import Api
from shoal.errors import BadConfig, ServerAway
from shoal.home import Home
from shoal.server import process
from shoal.server.serve import choose_certificate
from shoal.server.settings import ServerSettings
from shoal.server.tls import fingerprint_of, is_loopback, own_certificate, self_signed
from tests.server.conftest import eventually


def test_a_certificate_is_made_once_and_kept(tmp_path: Path) -> None:
    made = self_signed(tmp_path / "tls", "0.0.0.0")
    again = self_signed(tmp_path / "tls", "0.0.0.0")
    assert made == again
    assert made.key.stat().st_mode & 0o777 == 0o600
    assert made.fingerprint is not None and len(made.fingerprint) == 64


def test_another_host_makes_a_new_certificate_that_names_it(tmp_path: Path) -> None:
    first = self_signed(tmp_path, "127.0.0.1")
    second = self_signed(tmp_path, "node7.example.org")
    assert first.fingerprint != second.fingerprint
    assert self_signed(tmp_path, "127.0.0.1") == second  # loopback is always among the names


def test_a_self_signed_certificate_of_the_administrators_is_pinned_too(tmp_path: Path) -> None:
    made = self_signed(tmp_path, "localhost")
    assert own_certificate(made.cert, made.key, "shoal.example").fingerprint == made.fingerprint


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "x.pem"
    wrong.write_text("hello")
    with pytest.raises(BadConfig, match="PEM"):
        own_certificate(wrong, wrong, "shoal.example")
    with pytest.raises(BadConfig):
        own_certificate(tmp_path / "none", tmp_path / "none", "shoal.example")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_certificate(host: str, tmp_path: Path) -> None:
    assert is_loopback(host)
    assert choose_certificate(Home(tmp_path), ServerSettings(host=host)) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_any_other_address_gets_one_unless_a_proxy_stands_in_front(host: str, tmp_path: Path) -> None:
    assert not is_loopback(host)
    assert choose_certificate(Home(tmp_path), ServerSettings(host=host)) is not None
    assert choose_certificate(Home(tmp_path), ServerSettings(host=host, behind_proxy=True)) is None


@pytest.mark.real
def test_a_server_on_all_addresses_speaks_tls_with_the_fingerprint_it_noted(home: Home) -> None:
    note = process.start(home, {"host": "0.0.0.0"})
    assert note.url.startswith("https://")
    port = int(note.url.rsplit(":", 1)[1])
    assert fingerprint_of(ssl.get_server_certificate(("127.0.0.1", port))) == note.fingerprint
    trusting = ssl.create_default_context(cafile=str(home.root / "tls" / "cert.pem"))
    assert httpx.get(f"{note.url}/healthz", verify=trusting, trust_env=False).json() == {"ok": True}
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/1.1 200")
    assert f"fingerprint {note.fingerprint}" in home.server_log.read_text()


@pytest.mark.real
def test_the_fingerprint_stays_the_same_over_a_restart(home: Home) -> None:
    first = process.start(home, {"host": "0.0.0.0"})
    process.stop(home)
    second = process.start(home, {"host": "0.0.0.0"})
    assert (first.fingerprint, first.url) == (second.fingerprint, second.url)


@pytest.mark.real
def test_a_start_that_fails_for_its_host_leaves_the_pinned_certificate(home: Home) -> None:
    pinned = process.start(home, {"host": "0.0.0.0"}).fingerprint
    process.stop(home)
    with pytest.raises(ServerAway, match="not an address of this machine"):
        process.start(home, {"host": "999.1.1.1"})
    assert fingerprint_of((home.root / "tls" / "cert.pem").read_text()) == pinned


def signed_by_an_authority(folder: Path) -> tuple[Path, Path]:
    """A certificate for shoal.example of an authority nobody here knows."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal.example")]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("shoal.example")]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    paths = folder / "signed.pem", folder / "signed.key"
    paths[0].write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    paths[1].write_bytes(pem)
    return paths


@pytest.mark.parametrize(
    ("host", "pinned"), [("0.0.0.0", True), ("::", True), ("127.0.0.1", True), ("shoal.example", False)]
)
def test_an_authoritys_certificate_is_pinned_where_programs_come_by_loopback(
    tmp_path: Path, host: str, pinned: bool
) -> None:
    found = own_certificate(*signed_by_an_authority(tmp_path), host).fingerprint
    assert (found is not None) is pinned


@pytest.mark.real
def test_jobs_run_under_an_authoritys_certificate(home: Home, tmp_path: Path) -> None:
    cert, key = signed_by_an_authority(tmp_path)
    note = process.start(home, {"tls_cert": cert, "tls_key": key})
    with Api(note.url, home.read_token(), note.fingerprint) as api:
        job = api.request("POST", "/jobs", json={"spec": {"command": ["true"]}})["id"]
        eventually(lambda: api.request("GET", f"/jobs/{job}")["state"] == "succeeded")
    with pytest.raises(ServerAway, match="pinned"), Api(note.url, home.read_token(), "0" * 64) as api:
        api.request("GET", "/whoami")
