"""Which addresses requests may name."""

from __future__ import annotations

import pytest

from ratoon.errors import InvalidRequest
from ratoon.router.hosts import Hosts

OPEN = Hosts(["tools.example.com", "*.corp.example", "10.1.2.3:9000"], has_local=True)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "https://api.anthropic.com",
        "http://localhost:11434/v1",
        "http://127.0.0.1:5000/execute",
        "http://[::1]/x",
        "http://tools.example.com/run",
        "https://TOOLS.example.com./run",
        "https://llm.corp.example:8443/v1",
        "http://10.1.2.3:9000/x",
    ],
)
def test_what_is_allowed_may_be_called(url: str) -> None:
    assert OPEN.check(url, "where") == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://api.openai.com/v1", "does not call"),
        ("https://api.openai.com.evil.example", "does not call"),
        ("https://corp.example", "does not call"),
        ("https://evilcorp.example", "does not call"),
        ("http://10.1.2.3/x", "does not call"),
        ("http://169.254.169.254/latest", "does not call"),
        ("http://2130706433/", "does not call"),
        ("http://[::ffff:10.0.0.1]/", "does not call"),
        ("http://tools.example.com@evil.example/", "user name"),
        ("file:///etc/passwd", "http or https"),
        ("http://", "http or https"),
        ("http://[::1", "not a URL"),
        ("http://10.1.2.3:99999/", "not a port"),
        ("", "http or https"),
    ],
)
def test_what_is_not_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"where: .*{message}"):
        OPEN.check(url, "where")


@pytest.mark.parametrize("entry", ["fd00::7", "[fd00::7]", "[FD00:0::7]:80"])
def test_an_ipv6_address_is_listed_as_such(entry: str) -> None:
    assert Hosts([entry]).check("http://[fd00::7]/x", "where")
    for url in ("http://[fd00::8]/x", "http://fd00/x"):
        with pytest.raises(InvalidRequest, match="does not call"):
            Hosts([entry]).check(url, "where")


def test_a_port_of_an_ipv6_address_is_the_only_one() -> None:
    with pytest.raises(InvalidRequest, match="does not call"):
        Hosts(["[fd00::7]:80"]).check("http://[fd00::7]:81/x", "where")


@pytest.mark.parametrize("url", ["http://localhost/x", "http://127.0.0.1/x", "http://[::1]/x"])
def test_a_server_that_others_reach_does_not_call_its_own_machine(url: str) -> None:
    with pytest.raises(InvalidRequest, match="does not call"):
        Hosts().check(url, "where")
