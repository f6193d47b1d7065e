"""Who may send a request: DNS rebinding and cross-origin pages are refused."""

from __future__ import annotations

import pytest

from appliance.errors import BadRequest
from appliance.http.edge import Forbidden, check_host, check_origin

TCP = {"server": ("127.0.0.1", 8080)}
UNIX = {"server": ("/run/appliance.sock", None)}


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
        check_origin(method, [origin], "127.0.0.1:8080")
    check_origin("GET", [origin], "127.0.0.1:8080")


def test_own_pages_and_programs_may() -> None:
    check_origin("POST", ["http://127.0.0.1:8080"], "127.0.0.1:8080")
    check_origin("POST", [], "127.0.0.1:8080")
