"""What people see of arguments."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from bullpen.tasks.model.arguments import REDACTED, looks_secret, redacted_text, secret_texts, shown_arguments

SECRET = "password new_password PASSWORD userPassword api_key apiKey api-keys X-Auth-Token tokens access_token"
SECRET += " client_secret Authorization cookie card_number session_id pin"


@pytest.mark.parametrize("name", SECRET.split())
def test_names_that_look_like_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["key", "author", "pinned", "tokenizer", "shipping", "secretary", "monkey", "name", ""]
)
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


def login(user: str, password: str, *codes: int, options: dict[str, Any] | None = None, **more: Any) -> None: ...


def test_arguments_have_the_names_of_their_parameters() -> None:
    options = {"api_key": "k", "retries": 3, "nested": [{"token": "t", "kind": 1}]}
    shown = shown_arguments(login, ("ada", "s3cret", 1, 2), {"options": options, "ssn": 5, "other": 6}, ("ssn",))
    assert shown == {
        "user": "ada",
        "password": REDACTED,
        "codes": [1, 2],
        "options": {"api_key": REDACTED, "retries": 3, "nested": [{"token": REDACTED, "kind": 1}]},
        "ssn": REDACTED,
        "other": 6,
    }


def test_arguments_without_a_parameter_are_redacted() -> None:
    def now_shorter(user: str) -> None: ...

    assert shown_arguments(now_shorter, ("ada", "s3cret"), {}, ()) == {"user": "ada", "args[1]": REDACTED}


def test_named_parameters_are_redacted_at_any_depth() -> None:
    def save(rows: list[Any], *codes: str) -> None: ...

    assert shown_arguments(save, ([{"name": 1, "mail": 2}], "a", "b"), {}, ("mail", "codes")) == {
        "rows": [{"name": 1, "mail": REDACTED}],
        "codes": REDACTED,
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("shop: password=hunter2 for ada", "shop: password=[redacted] for ada"),
        ("""{"api_key": "a b c", 'who': 'ada'}""", """{"api_key": [redacted], 'who': [redacted]}"""),
        ("Authorization: Bearer abc.def, next", "Authorization: [redacted] next"),
        ("user.who = 7; x=1", "user.who = [redacted]; x=1"),
        ("postgresql://ada:hunter2@db/shop", "postgresql://ada:[redacted]@db/shop"),
        ("token=4711-0815, pin: '4711-0815'", "token=[redacted], pin: [redacted]"),
        ("card 4711-0815 of order 1", "card [redacted] of order 1"),
        ("tokens: 3, accessToken='it", "tokens: [redacted], accessToken=[redacted]"),
        ("a: b=c is no secret, nor is password", "a: b=c is no secret, nor is password"),
        (r"""{"password": "a\"b c", "x": 1}""", """{"password": [redacted], "x": 1}"""),
        (r"""{"body": "{\"token\": \"a b\", \"x\": 1}"}""", r"""{"body": "{\"token\": [redacted], \"x\": 1}"}"""),
        ("password => hunter2, %70assword=hunter2&x=1", "password => [redacted], %70assword=[redacted]&x=1"),
        ("Cookie: a=1; session=2", "Cookie: [redacted]"),
        ("Set-Cookie='a=1; b=2' x=1", "Set-Cookie=[redacted] x=1"),
        ("redis://ada:hun/t@er2@db/0 of ada@db", "redis://ada:[redacted]@db/0 of ada@db"),
        ("""{"a": "http://db:80/x", "mail": "ada@db"}""", """{"a": "http://db:80/x", "mail": "ada@db"}"""),
        ("", ""),
    ],
)
def test_a_text_is_shown_without_secrets(text: str, shown: str) -> None:
    assert redacted_text(text, ["who"], ["4711-0815"]) == shown


def test_the_texts_of_secret_arguments() -> None:
    def charge(card_number: str, order: dict[str, object], pin: int, *rest: str) -> None: ...

    args = ("4711-0815", {"id": 12345, "token": ["abcd", "x"], "auth": {"user": "ada lovelace"}}, 98765, "more")
    assert secret_texts(charge, args, {}, ["rest"]) == [
        *("ada%20lovelace", "ada lovelace", "4711-0815", "98765", "abcd", "more")
    ]


def test_a_secret_is_known_however_it_is_written() -> None:
    def sign(private_key: str) -> None: ...

    secret = 'BEGIN "k\'y"\nü/\\ END'
    secrets = secret_texts(sign, (secret,), {}, ())
    for written in (secret, repr(secret), json.dumps(secret), quote(secret, safe=""), f"{secret!r}"[1:-1]):
        assert "k" not in redacted_text(f"<{written}>", (), secrets)


def test_a_long_line_without_names_takes_linear_time() -> None:
    assert redacted_text("a" * 1_000_000, ["who"]) == "a" * 1_000_000
