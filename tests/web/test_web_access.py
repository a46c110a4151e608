"""Who gets in, to what, and what is said and recorded of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pages.layout import PAGE_HEADERS
from tests.web_kit import add_token, client, fill, header_of
from transport.settings.config import ListenRefused, listen_address
from web.access_tokens import (
    LOCAL,
    SeriesOwners,
    TokenBook,
    TokenFileRefused,
    Viewer,
    new_token,
    read_tokens,
    write_tokens,
)
from web.guard import RateLimit
from web.page_shape import Role
from web.web_server import DEFAULT_PORT, WebSettings


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def asked(store: Path) -> Iterator[TestClient]:
    with client(store) as found:
        yield found


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "web" / "tokens.json"


def test_server_answers_only_to_its_own_names(asked: TestClient) -> None:
    for host in ("127.0.0.1:8765", "localhost", "[::1]:1", "LOCALHOST"):
        assert asked.get("/api/v1/pages", headers={"host": host}).status_code == 200
    for host in ("rebound.example", "127.0.0.1.example", "", "[::2]", "10.0.0.1"):
        answer = asked.get("/api/v1/pages", headers={"host": host})
        assert (answer.status_code, "fleet" in answer.text) == (421, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_server_changes_nothing_for_anybody(asked: TestClient, method: str) -> None:
    for address in ("/fleet", "/api/v1/store"):
        answer = asked.request(method, address)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_head_is_get_without_its_body(asked: TestClient) -> None:
    head, got = asked.head("/privacy"), asked.get("/privacy")
    assert (head.status_code, head.headers["etag"]) == (200, got.headers["etag"])


@pytest.mark.parametrize("address", ["/fleet", "/api/v1/store", "/nothing", "/fleet?span=aeon"])
def test_every_answer_has_the_headers_that_keep_it_to_itself(
    asked: TestClient, address: str
) -> None:
    answer = asked.get(address)
    assert {name: answer.headers[name] for name in PAGE_HEADERS} == dict(PAGE_HEADERS)
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_pages_hold_nothing_inline_and_nothing_from_elsewhere(asked: TestClient) -> None:
    text = asked.get("/fleet").text
    assert "<style" not in text
    assert " style=" not in text
    assert " onclick" not in text
    assert "<script>" not in text
    assert text.replace("http://www.w3.org/2000/svg", "").find("http") == text.find("http-equiv")


def test_page_of_another_site_loads_nothing(asked: TestClient) -> None:
    other = {"sec-fetch-site": "cross-site"}
    loaded = asked.get("/api/v1/store", headers={**other, "sec-fetch-mode": "no-cors"})
    followed = asked.get("/fleet", headers={**other, "sec-fetch-mode": "navigate"})
    assert (loaded.status_code, followed.status_code) == (403, 200)


def test_long_addresses_are_refused(asked: TestClient) -> None:
    assert asked.get(f"/fleet?model={'x' * 4_000}").status_code == 414


def test_token_opens_and_nothing_else_does(store: Path, token_file: Path) -> None:
    ada = add_token(token_file, "ada", Role.ANALYST)
    late = add_token(token_file, "late", Role.ANALYST, life_s=-1)
    with client(store, token_file=token_file) as asked:
        assert asked.get("/fleet", headers=ada).status_code == 200
        bearer = {"authorization": f"Bearer {_secret(ada)}"}
        assert asked.get("/fleet", headers=bearer).status_code == 200
        forged = header_of("plst_" + "A" * 43)
        odd = {"authorization": b"Basic \xe9"}
        for headers in ({}, late, forged, {"authorization": "Basic %%%"}, odd, header_of("")):
            answer = asked.get("/fleet", headers=headers)
            assert (answer.status_code, "Fleet" in answer.text) == (401, False)
            assert answer.headers["www-authenticate"].startswith("Basic ")


def _secret(header: dict[str, str]) -> str:
    import base64

    return base64.b64decode(header["authorization"].split()[1]).decode().partition(":")[2]


def test_revoked_token_opens_nothing_any_more(store: Path, token_file: Path) -> None:
    ada = add_token(token_file, "ada", Role.ANALYST)
    with client(store, token_file=token_file) as asked:
        assert asked.get("/privacy", headers=ada).status_code == 200
        write_tokens(token_file, [])
        assert asked.get("/privacy", headers=ada).status_code == 401


def test_token_file_that_others_may_read_lets_nobody_in(store: Path, token_file: Path) -> None:
    ada = add_token(token_file, "ada", Role.ANALYST)
    token_file.chmod(0o644)
    with client(store, token_file=token_file) as asked:
        assert asked.get("/privacy", headers=ada).status_code == 503


def test_guessing_is_stopped_and_the_right_token_with_it(store: Path, token_file: Path) -> None:
    ada = add_token(token_file, "ada", Role.ANALYST)
    with client(store, token_file=token_file) as asked:
        codes = [
            asked.get("/fleet", headers=header_of(f"plst_{at}")).status_code for at in range(12)
        ]
        assert codes[0] == 401
        assert codes[-1] == 429
        assert asked.get("/fleet", headers=ada).status_code == 429


def test_auditor_sees_how_it_is_kept_private_and_no_mix(store: Path, token_file: Path) -> None:
    auditor = add_token(token_file, "eve", Role.AUDITOR)
    with client(store, token_file=token_file) as asked:
        assert asked.get("/fleet", headers=auditor).status_code == 403
        assert asked.get("/api/v1/pages/fleet/mix", headers=auditor).status_code == 403
        page = asked.get("/privacy", headers=auditor)
        assert (page.status_code, 'href="/fleet' in page.text) == (200, False)
        assert asked.get("/", headers=auditor).history[0].headers["location"] == "/privacy"


def test_operator_sees_its_own_series_and_those_of_the_fleet(
    tmp_path: Path, token_file: Path
) -> None:
    store = fill(tmp_path, "fleet-mix", "acme-mix", "other-mix", domain="operator")
    owners = SeriesOwners(
        frozenset({"fleet-mix"}),
        {"acme": frozenset({"acme-mix"}), "other": frozenset({"other-mix"})},
    )
    headers = {
        name: add_token(token_file, name, role, operator)
        for name, role, operator in (
            ("ada", Role.ANALYST, None), ("a1", Role.OPERATOR, "acme"),
            ("z1", Role.OPERATOR, "zeta"),
        )
    }  # fmt: skip
    with client(store, token_file=token_file, owners=owners) as asked:
        seen = {
            name: {
                row["series"]
                for row in asked.get("/api/v1/pages/privacy/budget", headers=header).json()["rows"]
            }
            for name, header in headers.items()
        }
        named = {
            name: {
                one["name"] for one in asked.get("/api/v1/store", headers=header).json()["series"]
            }
            for name, header in headers.items()
        }
    assert seen == {"ada": {"fleet-mix"}, "a1": {"fleet-mix", "acme-mix"}, "z1": {"fleet-mix"}}
    assert named == seen
    with client(store) as here:
        rows = here.get("/api/v1/pages/privacy/budget").json()["rows"]
    assert {row["series"] for row in rows} == {"fleet-mix", "acme-mix", "other-mix"}


def test_series_that_nobody_is_known_to_own_is_shown_to_nobody(
    tmp_path: Path, token_file: Path
) -> None:
    store = fill(tmp_path, "whose", domain="operator")
    ada = add_token(token_file, "ada", Role.ANALYST)
    with client(store, token_file=token_file) as asked:
        assert asked.get("/api/v1/pages/privacy/budget", headers=ada).json()["rows"] == []


def test_series_has_one_owner() -> None:
    with pytest.raises(ValueError, match="expected one owner, got the fleet and acme"):
        SeriesOwners(frozenset({"mix"}), {"acme": frozenset({"mix"})})


def test_each_query_is_recorded_on_a_line_of_its_own(store: Path, tmp_path: Path) -> None:
    record, tokens = tmp_path / "record" / "queries.jsonl", tmp_path / "tokens.json"
    ada = add_token(tokens, "ada", Role.ANALYST)
    with client(store, token_file=tokens, record_file=record) as asked:
        asked.get("/privacy?span=day", headers=ada)
        asked.get("/fleet?model=%0A%22%7D", headers=ada)
        asked.get("/fleet")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    kept = [(one["viewer"], one["role"], one["asked"], one["status"]) for one in lines]
    assert kept == [
        ("ada", "analyst", "/privacy?span=day", 200),
        ("ada", "analyst", "/fleet?model=%0A%22%7D", 422),
        (None, None, "/fleet", 401),
    ]
    assert record.stat().st_mode & 0o777 == 0o600
    assert "plst_" not in record.read_text()


def test_rate_limit_lets_a_burst_through_and_refills() -> None:
    now = [0.0]
    limit = RateLimit(2.0, 3, lambda: now[0])
    assert [limit.allows("a") for _ in range(4)] == [True, True, True, False]
    assert limit.allows("b")
    now[0] = 1.0
    assert [limit.allows("a") for _ in range(3)] == [True, True, False]


def test_beyond_this_machine_it_takes_tls_and_a_token(tmp_path: Path) -> None:
    tokens, pem = tmp_path / "tokens.json", tmp_path / "web.pem"
    pem.touch(0o600)
    away = WebSettings(tmp_path, tmp_path, "0.0.0.0")
    with pytest.raises(ListenRefused, match="reached from other machines: expected TLS"):
        away.check(time.time())
    with pytest.raises(ListenRefused, match="expected TLS"):
        WebSettings(tmp_path, tmp_path, names=("fleet.example.org",)).check(time.time())
    with pytest.raises(ListenRefused, match="expected a certificate and its key"):
        WebSettings(tmp_path, tmp_path, cert_file=pem).check(time.time())
    secure = WebSettings(
        tmp_path, tmp_path, "0.0.0.0", cert_file=pem, key_file=pem, token_file=tokens
    )
    add_token(tokens, "late", Role.ANALYST, life_s=-1)
    with pytest.raises(ListenRefused, match="expected a token that is in force"):
        secure.check(time.time())
    add_token(tokens, "ada", Role.ANALYST)
    secure.check(time.time())
    pem.chmod(0o644)
    with pytest.raises(PermissionError, match="chmod o="):
        secure.check(time.time())
    WebSettings(tmp_path, tmp_path).check(time.time())
    WebSettings(tmp_path, tmp_path, "::1").check(time.time())


def test_listen_address_is_read_with_and_without_its_parts() -> None:
    asked = ["127.0.0.1:80", "0.0.0.0", ":9000", "[::1]:443", "[::]"]
    assert [listen_address(text, DEFAULT_PORT) for text in asked] == [
        ("127.0.0.1", 80), ("0.0.0.0", 8765), ("127.0.0.1", 9000), ("::1", 443), ("::", 8765),
    ]  # fmt: skip
    for text in ("host:port", "host:70000", "::1", "a:b:c"):
        with pytest.raises(ListenRefused, match="expected HOST:PORT"):
            listen_address(text, DEFAULT_PORT)


def test_kept_token_is_a_hash_and_its_file_is_this_users(token_file: Path) -> None:
    token, secret = new_token("ada", Role.ANALYST, 2_000_000_000)
    write_tokens(token_file, [token])
    assert secret not in token_file.read_text(encoding="utf-8")
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert TokenBook(token_file, lambda: 0.0).viewer(secret) == Viewer("ada", Role.ANALYST)
    assert len(secret) > 43


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"format": 2, "tokens": []}', '{"format": 1, "tokens": [], "more": 1}',
        '{"format": 1, "tokens": [{"name": "a", "role": "local", "sha256": "", "expires_s": 1}]}',
    ],
)  # fmt: skip
def test_file_that_is_none_of_tokens_is_refused(token_file: Path, text: str) -> None:
    token_file.parent.mkdir()
    token_file.write_text(text, encoding="utf-8")
    token_file.chmod(0o600)
    with pytest.raises(TokenFileRefused, match="expected a file of tokens"):
        read_tokens(token_file)


def test_operators_token_names_its_operator_and_no_other_does() -> None:
    for role, operator in ((Role.OPERATOR, None), (Role.ANALYST, "acme"), (Role.LOCAL, None)):
        with pytest.raises(TokenFileRefused):
            new_token("a", role, 1, operator)


def test_local_viewer_sees_what_lies_on_this_machine() -> None:
    assert SeriesOwners().visible(LOCAL, ()) is None


def test_metrics_are_those_of_the_series_that_a_token_may_see(
    tmp_path: Path, token_file: Path
) -> None:
    store = fill(tmp_path, "fleet-mix", "acme-mix", domain="operator")
    owners = SeriesOwners(frozenset({"fleet-mix"}), {"acme": frozenset({"acme-mix"})})
    roles = (
        ("ada", Role.ANALYST, None),
        ("a1", Role.OPERATOR, "acme"),
        ("eve", Role.AUDITOR, None),
    )
    with client(store, token_file=token_file, owners=owners) as asked:
        said = {
            name: asked.get("/metrics", headers=add_token(token_file, name, role, operator)).text
            for name, role, operator in roles
        }
        assert asked.get("/metrics").status_code == 401
    assert {name: "acme-mix" in text for name, text in said.items()} == {
        "ada": False, "a1": True, "eve": False,
    }  # fmt: skip
    assert {name: "pointillist_release_value{" in text for name, text in said.items()} == {
        "ada": True, "a1": True, "eve": False,
    }  # fmt: skip
    assert all("pointillist_windows_released_ratio{" in text for text in said.values())
