"""Text on the pages of the dashboard."""

from __future__ import annotations

import pytest

from bullpen.web.rendering import _breakable, _sentence, _with_code


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it failed", "It failed"),
        ("its attempt 2 failed", "Its attempt 2 failed"),
        ("at most one task starts", "At most one task starts"),
        ("app.send fails more often", "app.send fails more often"),  # a name keeps its spelling
        ("`bullpen errors` shows it", "`bullpen errors` shows it"),
        ("48 tasks wait", "48 tasks wait"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_and_a_name_does_not(text: str, shown: str) -> None:
    assert _sentence(text) == shown


def test_commands_are_code_and_everything_is_escaped() -> None:
    assert _with_code("run `bullpen why <ID>` & read") == "run <code>bullpen why &lt;ID&gt;</code> &amp; read"
    assert _with_code("`\u202e`") == "<code>\\u202e</code>"


def test_a_long_name_may_be_broken_at_its_dots_and_underscores_only() -> None:
    assert _breakable("app.send_mail") == "app.send_mail"
    assert _breakable("shop.mail.send_the_receipt_of_an_order") == (
        "shop.<wbr>mail.<wbr>send_<wbr>the_<wbr>receipt_<wbr>of_<wbr>an_<wbr>order"
    )
    assert _breakable(f"<b>.{'x' * 40}\u202e") == f"&lt;b&gt;.<wbr>{'x' * 40}\\u202e"
