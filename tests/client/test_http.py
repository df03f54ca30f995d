from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from shoal import errors
from shoal._lib.clock import Deadline
from shoal.client.http import Api
from tests.client.fake import Answer, Asked, Break, FakeServer, problem, sse


def closed_port() -> int:
    fake = FakeServer()
    fake.close()
    return fake.port


def test_an_answer_comes_back_as_plain_data(server: FakeServer, api: Api) -> None:
    server.on("GET", "/whoami", {"name": "ann", "admin": False})
    assert api.request("GET", "/whoami") == {"name": "ann", "admin": False}
    assert server.asked[-1].headers["authorization"] == "Bearer secret-token"


def test_an_empty_answer_is_none(server: FakeServer, api: Api) -> None:
    server.on("DELETE", "/jobs/x", lambda _: Answer(None, 204))
    assert api.request("DELETE", "/jobs/x") is None


def test_json_lines_come_back_as_a_list(server: FakeServer, api: Api) -> None:
    lines = Answer(b'{"a":1}\n{"a":2}\n', headers={"Content-Type": "application/x-ndjson"})
    server.on("GET", "/jobs/x/samples", lambda _: lines)
    assert api.request("GET", "/jobs/x/samples") == [{"a": 1}, {"a": 2}]


def test_params_that_are_none_are_not_sent(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs", {"jobs": [], "next": None})
    api.request("GET", "/jobs", params={"state": None, "limit": 5})
    assert server.asked[-1].params == {"limit": "5"}


def test_a_problem_becomes_its_exception_with_facts_as_attributes(server: FakeServer, api: Api) -> None:
    server.on("POST", "/jobs", lambda _: problem(400, "bad_spec", "workers: 0", problems=[{"field": "workers"}]))
    with pytest.raises(errors.BadSpec, match="workers: 0") as caught:
        api.request("POST", "/jobs", json={})
    assert caught.value.problems == [{"field": "workers"}]
    assert caught.value.status == 400


def test_an_exception_with_a_constructor_of_its_own_is_mapped_too(server: FakeServer, api: Api) -> None:
    said = problem(400, "unknown_name", "no state is called 'runing'; did you mean 'running'?", nearest="running")
    server.on("GET", "/jobs", lambda _: said)
    with pytest.raises(errors.UnknownName, match="did you mean 'running'") as caught:
        api.request("GET", "/jobs")
    assert caught.value.nearest == "running"  # type: ignore[attr-defined]
    assert caught.value.problems == []


@pytest.mark.parametrize(
    "kind", [errors.NotFound, errors.NotSignedIn, errors.Conflict, errors.DoesNotFit, errors.StoreError]
)
def test_every_code_finds_its_class(server: FakeServer, api: Api, kind: type[errors.ShoalError]) -> None:
    server.on("POST", "/x", lambda _: problem(kind.status, kind.code, "said so"))
    with pytest.raises(kind, match="said so"):
        api.request("POST", "/x")


def test_an_unknown_code_keeps_its_code(server: FakeServer, api: Api) -> None:
    server.on("GET", "/x", lambda _: problem(418, "teapot", "short and stout"))
    with pytest.raises(errors.ShoalError) as caught:
        api.request("GET", "/x")
    assert (caught.value.code, caught.value.status) == ("teapot", 418)


def test_a_problem_cannot_overwrite_what_an_exception_is_made_of(server: FakeServer, api: Api) -> None:
    server.on("GET", "/x", lambda _: problem(404, "not_found", "gone", args=[1], message="other", with_traceback=3))
    with pytest.raises(errors.NotFound, match="gone") as caught:
        api.request("GET", "/x")
    assert caught.value.message == "gone"
    assert callable(caught.value.with_traceback)


def test_an_answer_that_is_no_problem_document_is_mapped_by_its_status(server: FakeServer, api: Api) -> None:
    server.on("GET", "/x", lambda _: Answer(b"<html>who?</html>", 404, {"Content-Type": "text/html"}))
    with pytest.raises(errors.NotFound, match="SHOAL_URL"):
        api.request("GET", "/x")


def test_no_server_is_said_with_the_address_and_what_to_do(impatient: None) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(errors.ServerAway, match="shoal server start") as caught:
        Api(url, "t").request("GET", "/jobs")
    assert url in caught.value.message
    assert caught.value.facts["url"] == url


def test_a_get_survives_a_restart_of_the_server(api: Api, server: FakeServer) -> None:
    server.on("GET", "/jobs", {"jobs": []})
    assert api.request("GET", "/jobs") == {"jobs": []}
    server.close()
    again: list[FakeServer] = []

    def restart() -> None:
        back = FakeServer(server.port)
        back.on("GET", "/jobs", {"jobs": ["back"]})
        again.append(back)

    timer = threading.Timer(0.3, restart)
    timer.start()
    try:
        assert api.request("GET", "/jobs") == {"jobs": ["back"]}
    finally:
        timer.join()
        again[0].close()


def test_a_get_whose_answer_breaks_off_is_asked_again(server: FakeServer, api: Api) -> None:
    server.on("GET", "/jobs", breaking_once(Answer({"jobs": [1]})))
    assert api.request("GET", "/jobs") == {"jobs": [1]}
    assert server.count("GET", "/jobs") == 2


def test_a_post_that_may_have_been_done_is_not_repeated(server: FakeServer, api: Api) -> None:
    server.on("POST", "/users", breaking_once(Answer({})))
    with pytest.raises(errors.ServerAway):
        api.request("POST", "/users", json={"name": "bob"})
    assert server.count("POST", "/users") == 1


def test_a_post_is_repeated_when_the_caller_says_it_is_harmless(server: FakeServer, api: Api) -> None:
    server.on("POST", "/jobs", breaking_once(Answer({"id": "x"}, 201)))
    assert api.request("POST", "/jobs", json={"key": "k"}, again=True) == {"id": "x"}
    assert server.count("POST", "/jobs") == 2


def test_a_proxy_that_says_bad_gateway_is_asked_again(server: FakeServer, api: Api) -> None:
    answers = iter([Answer(b"bad gateway", 502), Answer({"fine": True})])
    server.on("GET", "/whoami", lambda _: next(answers))
    assert api.request("GET", "/whoami") == {"fine": True}


def breaking_once(then: Answer) -> Any:
    calls = []

    def reply(_: Asked) -> Answer:
        calls.append(1)
        if len(calls) == 1:
            raise Break
        return then

    return reply


def test_the_token_is_not_shown(api: Api) -> None:
    assert "secret" not in repr(api)


def test_health_is_asked_without_the_token(server: FakeServer, api: Api) -> None:
    assert api.healthy()
    assert "authorization" not in server.asked[-1].headers


def test_another_program_on_the_port_is_not_taken_for_a_server(server: FakeServer, api: Api) -> None:
    server.replies[("GET", "/healthz")] = lambda _: Answer(b"<html>hello</html>")
    assert not api.healthy()


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("https://shoal.example", False),
    ],
)
def test_a_server_on_loopback_is_local(url: str, local: bool) -> None:
    with Api(url, "t") as api:
        assert api.local is local


def lines(*texts: str) -> dict[str, Any]:
    return {"lines": [["worker-0", 1_000_000, text] for text in texts]}


def test_events_come_decoded_with_their_ids(server: FakeServer, api: Api) -> None:
    stream = [b": ping\n\n", sse(lines("a"), "c1"), sse({"state": "succeeded"}, event="end")]
    server.on("GET", "/jobs/x/logs", lambda _: Answer(stream=stream))
    got = list(api.stream("/jobs/x/logs", {"follow": 1}))
    assert [(event.id, event.event) for event in got] == [("c1", "message"), (None, "end")]
    assert got[0].data == lines("a")


def test_events_survive_any_cut_of_the_bytes(server: FakeServer, api: Api) -> None:
    whole = sse(lines("ä" * 50), "c1").replace(b"\n", b"\r\n") + sse({"state": "failed"}, "c2", "end")
    server.on("GET", "/s", lambda _: Answer(stream=[whole[at : at + 1] for at in range(len(whole))]))
    got = list(api.stream("/s"))
    assert got[0].data == lines("ä" * 50)
    assert got[1].id == "c2"


def test_a_broken_stream_goes_on_behind_the_last_event_without_loss(server: FakeServer, api: Api) -> None:
    everything = [f"line {number}" for number in range(20)]

    def reply(asked: Asked) -> Answer:
        return Answer(stream=dying_stream(everything, int(asked.headers.get("last-event-id", "0"))))

    server.on("GET", "/jobs/x/logs", reply)
    got = list(api.stream("/jobs/x/logs", {"follow": 1, "tail": 5}))
    texts = [text for event in got if event.event == "message" for _, _, text in event.data["lines"]]
    assert texts == everything
    assert server.count("GET", "/jobs/x/logs") > 3
    assert server.asked[0].params == {"follow": "1", "tail": "5"}
    assert server.asked[1].params == {"follow": "1", "cursor": "6"}


def dying_stream(everything: list[str], start: int) -> Iterator[bytes]:
    """Six whole events from `start`, then half of one, then death; at the end the end."""
    for number in range(start, min(start + 6, len(everything))):
        yield sse(lines(everything[number]), str(number + 1))
    if start + 6 >= len(everything):
        yield sse({"state": "succeeded"}, event="end")
        return
    yield sse(lines("torn"), "99")[:-8]
    raise Break


def test_a_stream_outlives_a_restart_of_the_server(server: FakeServer, api: Api) -> None:
    def first() -> Iterator[bytes]:
        yield sse(lines("a"), "1")
        raise Break

    server.on("GET", "/s", lambda _: Answer(stream=first()))
    stream = api.stream("/s")
    assert next(stream).id == "1"
    server.close()
    back = FakeServer(server.port)
    back.on("GET", "/s", lambda _: Answer(stream=[sse(lines("b"), "2"), sse({}, event="end")]))
    try:
        assert [event.id for event in stream] == ["2", None]
        assert back.asked[0].headers["last-event-id"] == "1"
    finally:
        back.close()


def test_a_stream_gives_up_when_the_server_stays_away(impatient: None) -> None:
    with pytest.raises(errors.ServerAway):
        list(Api(f"http://127.0.0.1:{closed_port()}", "t").stream("/s"))


def test_a_stream_that_is_refused_raises_at_once(server: FakeServer, api: Api) -> None:
    server.on("GET", "/s", lambda _: problem(404, "not_found", "no job 'x'"))
    with pytest.raises(errors.NotFound, match="no job 'x'"):
        list(api.stream("/s"))
    assert server.count("GET", "/s") == 1


def test_a_stream_ends_with_its_deadline(server: FakeServer, api: Api) -> None:
    done = threading.Event()

    def silent() -> Iterator[bytes]:
        yield sse(lines("a"), "1")
        done.wait(30)

    server.on("GET", "/s", lambda _: Answer(stream=silent()))
    try:
        assert [event.id for event in api.stream("/s", deadline=Deadline(0.3))] == ["1"]
    finally:
        done.set()


def ranged(content: bytes, *, cut: int | None = None, tag: str | None = None) -> Any:
    """A file with Range; `cut` ends the first answer after so many bytes."""
    calls = []

    def reply(asked: Asked) -> Answer:
        calls.append(asked)
        start = int(asked.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            return problem(416, "range", "behind the end")
        body = content[start:]
        headers = {"Content-Type": "application/octet-stream", **({"ETag": tag} if tag else {})}
        if cut is not None and len(calls) == 1:
            return Answer(None, 206 if start else 200, headers, cut_off(body[:cut]), len(body))
        return Answer(body, 206 if start else 200, headers)

    return reply


def cut_off(piece: bytes) -> Iterator[bytes]:
    yield piece
    raise Break


def test_a_download_goes_on_where_it_broke_off(server: FakeServer, api: Api) -> None:
    content = bytes(range(256)) * 4000
    server.on("GET", "/jobs/x/file", ranged(content, cut=300_000))
    assert b"".join(api.get_bytes("/jobs/x/file", {"path": "m.bin"})) == content
    assert [one.headers.get("range") for one in server.asked] == [None, "bytes=300000-"]


def test_a_download_starts_where_it_is_told(server: FakeServer, api: Api) -> None:
    server.on("GET", "/f", ranged(b"0123456789"))
    assert b"".join(api.get_bytes("/f", start=4)) == b"456789"
    assert b"".join(api.get_bytes("/f", start=10)) == b""


def test_a_download_from_a_server_without_range_skips_what_is_there(server: FakeServer, api: Api) -> None:
    server.on("GET", "/f", lambda _: Answer(b"0123456789", headers={"Content-Type": "application/octet-stream"}))
    assert b"".join(api.get_bytes("/f", start=4)) == b"456789"


def test_a_file_that_changes_during_a_download_is_not_patched_together(server: FakeServer, api: Api) -> None:
    answers = iter([
        Answer(None, 200, {"ETag": '"one"'}, cut_off(b"01234"), 10),
        Answer(b"abcdefghij", 200, {"ETag": '"two"'}),
    ])  # fmt: skip
    server.on("GET", "/f", lambda _: next(answers))
    with pytest.raises(errors.Conflict, match="fetch it again"):
        list(api.get_bytes("/f"))
    assert server.asked[-1].headers["if-range"] == '"one"'


@pytest.fixture
def tls_server(server: FakeServer, tmp_path: Path) -> FakeServer:
    """The fake behind a self-signed certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shoal")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1))
    cert = builder.sign(key, hashes.SHA256())
    file = tmp_path / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + cert.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
    server.fingerprint = sha256(cert.public_bytes(serialization.Encoding.DER)).hexdigest()  # type: ignore[attr-defined]
    return server


def test_a_pinned_certificate_is_accepted(tls_server: Any) -> None:
    tls_server.on("GET", "/whoami", {"name": "ann"})
    shown = ":".join(tls_server.fingerprint[at : at + 2] for at in range(0, 64, 2)).upper()
    with Api(f"https://127.0.0.1:{tls_server.port}", "t", fingerprint=shown) as api:
        assert api.request("GET", "/whoami") == {"name": "ann"}


def test_another_certificate_than_the_pinned_one_gets_no_request(tls_server: Any) -> None:
    with Api(f"https://127.0.0.1:{tls_server.port}", "t", fingerprint="0" * 64) as api:
        with pytest.raises(errors.ServerAway, match="not 0000"):
            api.request("GET", "/whoami")
        assert not api.healthy()
    assert tls_server.asked == []


def test_a_self_signed_certificate_without_a_pin_is_refused(tls_server: Any, impatient: None) -> None:
    with Api(f"https://127.0.0.1:{tls_server.port}", "t") as api, pytest.raises(errors.ServerAway, match="FINGERPRINT"):
        api.request("GET", "/whoami")
