"""Who may do what on the dashboard."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.errors import InvalidOption
from bullpen.web.access import SESSION_SECONDS, AccessRules, Visitor, is_loopback

TOKEN = "a secret that nobody knows"
NOW = 1_000_000.0


def rules(**changes: Any) -> AccessRules:
    terms: dict[str, Any] = {
        "token": TOKEN,
        "hosts": ["localhost", "127.0.0.1", "[::1]", "Shop.example.org"],
        "trusted_proxies": (),
        "user_header": "X-User",
        "anonymous": False,
        "read_only": False,
        "secret": "random",
    }
    return AccessRules.read(**terms | changes)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8787", "LOCALHOST:1", "127.0.0.1:80", "[::1]:8787", "shop.example.org"]
)
def test_a_known_host_is_accepted(host: str) -> None:
    assert rules().accepts_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.example:8787",
            "localhost@evil.example",
            "127.0.0.1.nip.io",
        ),
        *(
            "localhost:8787 ",
            " localhost",
            "localhost/",
            "localhost:80:80",
            "localhost:abc",
            "[::1",
            "0.0.0.0",
            "127.1",
        ),
        *("localhost\n", "xshop.example.org", "shopxexample.org", "localhost.", "[::ffff:127.0.0.1]"),
    ],
)
def test_another_host_is_rejected(host: str) -> None:
    assert not rules().accepts_host(host)


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({"origin": "http://localhost:8787"}, True),
        ({"origin": "https://localhost:8787"}, True),  # a proxy ends TLS
        ({"origin": "http://LOCALHOST:8787", "sec-fetch-site": "same-origin"}, True),
        ({}, False),
        ({"origin": ""}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://localhost"}, False),
        ({"origin": "http://localhost:8788"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost:8787.evil.example"}, False),
        ({"origin": "http://user@localhost:8787"}, False),
        ({"origin": "file://localhost:8787"}, False),
        ({"origin": "http://localhost:8787, http://evil.example"}, False),
        ({"origin": "http://localhost:8787", "sec-fetch-site": "cross-site"}, False),
        ({"origin": "http://localhost:8787", "sec-fetch-site": "same-site"}, False),
    ],
)
def test_a_change_comes_from_a_page_of_the_same_host_and_port(headers: dict[str, str], accepted: bool) -> None:
    assert rules().accepts_origin({"host": "localhost:8787", **headers}) is accepted


def test_a_session_is_valid_until_its_time_and_with_its_token_only() -> None:
    session = rules().new_session("sixteen-random-b", NOW)
    visitor = rules().visitor("10.1.2.3", {}, session, NOW + SESSION_SECONDS - 1)
    assert visitor is not None
    assert visitor.may_operate
    assert rules().visitor("10.1.2.3", {}, session, NOW + SESSION_SECONDS) is None
    assert rules(token="another secret that nobody knows").visitor(None, {}, session, NOW) is None
    for forged in (
        session[:-1],
        session + "0",
        session.replace("sixteen", "fifteen"),
        "",
        ".",
        "a.b.c",
        session + "\n",
    ):
        assert rules().visitor("127.0.0.1", {}, forged, NOW) is None
    longer = session.replace(str(int(NOW) + SESSION_SECONDS), str(int(NOW) + 10 * SESSION_SECONDS))
    assert rules().visitor("127.0.0.1", {}, longer, NOW) is None


def test_the_user_header_counts_only_from_a_trusted_proxy() -> None:
    proxied = rules(trusted_proxies=["10.0.0.0/8", "::1"])
    for peer in ("10.1.2.3", "::1", "::ffff:10.1.2.3"):
        visitor = proxied.visitor(peer, {"x-user": "ada"}, "", NOW)
        assert visitor == Visitor("ada", may_operate=True, proof="user ada")
    for stranger in ("11.1.2.3", "127.0.0.1", "", None, "unix"):
        assert proxied.visitor(stranger, {"x-user": "ada"}, "", NOW) is None
    assert rules().visitor("10.1.2.3", {"x-user": "ada"}, "", NOW) is None
    assert proxied.visitor("10.1.2.3", {"x-user": ""}, "", NOW) is None
    assert proxied.visitor("10.1.2.3", {"x-user": "a\nb"}, "", NOW) is None
    assert proxied.visitor("10.1.2.3", {"x-user": "a" * 101}, "", NOW) is None


def test_an_anonymous_visitor_looks_from_loopback_only_and_not_through_a_proxy() -> None:
    opened = rules(anonymous=True)
    for peer in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"):
        assert opened.visitor(peer, {}, "", NOW) == Visitor("anonymous")
    for stranger in ("10.0.0.1", "", None):
        assert opened.visitor(stranger, {}, "", NOW) is None
    for header in ("x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host", "x-forwarded-proto"):
        assert opened.visitor("127.0.0.1", {header: "1.2.3.4"}, "", NOW) is None


def test_nobody_operates_a_read_only_dashboard() -> None:
    closed = rules(read_only=True, trusted_proxies=["10.0.0.1"])
    for visitor in (
        closed.visitor(None, {}, closed.new_session("sixteen-random-b", NOW), NOW),
        closed.visitor("10.0.0.1", {"x-user": "ada"}, "", NOW),
    ):
        assert visitor is not None
        assert not visitor.may_operate


def test_a_csrf_token_belongs_to_one_visitor() -> None:
    ada, bob = Visitor("ada", True, "user ada"), Visitor("bob", True, "user bob")
    assert rules().accepts_csrf(ada, rules().csrf_token(ada))
    for wrong in (rules().csrf_token(bob), "", "0" * 64, rules().csrf_token(ada)[:-1], "ä"):
        assert not rules().accepts_csrf(ada, wrong)
    assert not rules().accepts_csrf(Visitor("anonymous"), "")


def test_only_the_token_is_the_token() -> None:
    assert rules().accepts_token(TOKEN)
    for wrong in ("", TOKEN + " ", TOKEN[:-1], "ä", "None"):
        assert not rules().accepts_token(wrong)
    assert not rules(token=None, trusted_proxies=["::1"]).accepts_token("None")


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": "short"},
        {"hosts": ["localhost:8787"]},
        {"hosts": "localhost"},
        {"hosts": ["*"]},
        {"hosts": [7]},
        {"trusted_proxies": ["proxy.example.org"]},
        {"trusted_proxies": ["10.0.0.1/8"]},
        {"user_header": "X User"},
    ],
)
def test_wrong_rules_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        rules(**wrong)


def test_loopback_is_known() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("localhost")
    assert not is_loopback("10.0.0.1")
