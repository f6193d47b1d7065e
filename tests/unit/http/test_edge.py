"""Who may send a request: DNS rebinding and cross-origin pages are refused."""

from __future__ import annotations

import pytest

from appliance.errors import BadRequest
from appliance.http.edge import check_host
from appliance.http.origins import Forbidden, Origins

TCP = {"server": ("127.0.0.1", 8080)}
UNIX = {"server": ("/run/appliance.sock", None)}
NONE = Origins([])


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "127.9.9.9:1"],
)
def test_own_names(host: str) -> None:
    check_host(TCP, [host])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.168.1.5:8080",
        "evil.example:127.0.0.1",
        "evil.example@127.0.0.1",
        "[evil.example]",
        "0.0.0.0",  # noqa: S104
        "2130706433",
        "",
    ],
)
def test_other_names(host: str) -> None:
    with pytest.raises(Forbidden):
        check_host(TCP, [host])


def test_no_host_two_hosts_and_the_unix_socket() -> None:
    with pytest.raises(Forbidden):
        check_host(TCP, [])
    with pytest.raises(BadRequest):
        check_host(TCP, ["localhost", "evil.example"])
    check_host(UNIX, ["anything"])


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "origin", ["null", "", "http://evil.example", "http://127.0.0.1:9999", "http://127.0.0.1:8080.evil.example"]
)
def test_pages_of_other_origins_change_nothing(method: str, origin: str) -> None:
    with pytest.raises(Forbidden):
        NONE.check(method, [origin], "127.0.0.1:8080")
    NONE.check("GET", [origin], "127.0.0.1:8080")


def test_own_pages_and_programs_may() -> None:
    NONE.check("POST", ["http://127.0.0.1:8080"], "127.0.0.1:8080")
    NONE.check("POST", [], "127.0.0.1:8080")


LISTED = "https://intranet.example"


@pytest.mark.parametrize("origin", [LISTED, LISTED.upper()])
def test_a_listed_origin_may_do_what_programs_may(origin: str) -> None:
    origins = Origins([LISTED])
    for method in ("POST", "PUT", "DELETE", "PATCH", "GET"):
        origins.check(method, [origin], "127.0.0.1:8080")
    given = dict(origins.headers([origin]))
    assert given[b"access-control-allow-origin"] == origin.encode()
    assert given[b"vary"] == b"Origin"
    assert b"access-control-allow-credentials" not in given
    granted = origins.preflight("OPTIONS", [origin], "POST")
    assert granted is not None
    assert b"authorization" in dict(granted)[b"access-control-allow-headers"]


@pytest.mark.parametrize(
    "origin", ["null", "", "https://intranet.example.evil.example", "http://intranet.example", f"{LISTED}:8443"]
)
def test_no_other_origin_gets_anything_from_the_list(origin: str) -> None:
    origins = Origins([LISTED])
    with pytest.raises(Forbidden, match=r"server\.cors_origins"):
        origins.check("POST", [origin], "127.0.0.1:8080")
    assert [name for name, _ in origins.headers([origin])] == [b"vary"]
    assert origins.preflight("OPTIONS", [origin], "POST") is None


def test_two_origins_are_none_and_an_empty_list_says_nothing() -> None:
    assert [name for name, _ in Origins([LISTED]).headers([LISTED, LISTED])] == [b"vary"]
    assert NONE.headers([LISTED]) == []
    assert NONE.preflight("OPTIONS", [LISTED], "POST") is None
    assert Origins([LISTED]).preflight("OPTIONS", [LISTED], "") is None
    assert Origins([LISTED]).preflight("GET", [LISTED], "POST") is None
