"""What people see of arguments."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.tasks.model.arguments import REDACTED, looks_secret, shown_arguments

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
