"""Makes HTML from templates. Every value is escaped, and control characters in it are made visible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from bullpen import __version__
from bullpen.cli.reads import count_text
from bullpen.cli.terminal.output import duration, state, when
from bullpen.escaping import escape_lines
from bullpen.tasks.model.info import TaskInfo
from bullpen.web.access import AccessRules
from bullpen.web.actions import DONE
from bullpen.web.views import View

NAVIGATION = (
    ("overview", "/", "Overview"),
    ("queues", "/queues", "Queues"),
    ("tasks", "/tasks", "Tasks"),
    ("failures", "/failures", "Failures"),
    ("workers", "/workers", "Workers"),
    ("functions", "/functions", "Functions"),
    ("schedules", "/schedules", "Schedules"),
    ("waits", "/waits", "Waits"),
    ("limits", "/limits", "Limits"),
    ("system", "/system", "System"),
)


class Renderer:
    """The templates of one dashboard."""

    def __init__(self, rules: AccessRules) -> None:
        self._rules = rules
        self._templates = Environment(
            loader=PackageLoader("bullpen.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_visible,
        )
        self._templates.filters |= {
            "duration": _duration,
            "when": when,
            "clock": _clock,
            "short": _short,
            "sentence": _sentence,
            "capital": lambda text: text[:1].upper() + text[1:],
            "with_code": _with_code,
            "many": count_text,
            "breakable": _breakable,
            "path": lambda text: quote(text, safe=""),
        }
        self._templates.globals |= {"state_of": _state_of, "navigation": NAVIGATION, "version": __version__}

    def page(self, request: Request, name: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        template = self._templates.get_template(f"{name}.html")
        return HTMLResponse(template.render(self._values(request, name, values)), status)

    def live_part(self, request: Request, view: View, values: Mapping[str, Any]) -> str:
        """The block of the page that changes: the same HTML as in the page."""
        template = self._templates.get_template(view.template)
        context = template.new_context(self._values(request, view.name, values))
        return "".join(template.blocks["live"](context))

    def _values(self, request: Request, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        visitor = getattr(request.state, "visitor", None)
        done = request.query_params.get("done", "")
        return {
            "page": name,
            "root": request.state.root,
            "visitor": visitor,
            "may_operate": visitor is not None and visitor.may_operate,
            "csrf": "" if visitor is None else self._rules.csrf_token(visitor),
            "has_session": visitor is not None and visitor.proof.startswith("session "),
            "may_log_in": self._rules.token is not None,
            "notice": DONE.get(done, ""),
            **values,
        }


def _visible(value: object) -> object:
    """A value as a page shows it: nothing for None, and no character that reorders or hides text."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else escape_lines(str(value))


def _state_of(task: TaskInfo, now: datetime) -> dict[str, str]:
    """As the command line has it: a glyph, a word and a colour."""
    told = state(task, now)
    glyph, _, word = told.text.partition(" ")
    return {"glyph": glyph, "word": word, "style": told.style or "waiting"}


# Words that begin a message. Other first words may be names, which keep their spelling.
FIRST_WORDS = frozenset("a at attempt check if it its no other run start tasks the to workers".split())


def _sentence(text: str) -> str:
    """The text with a capital letter at its begin."""
    return text[0].upper() + text[1:] if text.partition(" ")[0] in FIRST_WORDS else text


def _with_code(text: str) -> Markup:
    """Text in which backticks surround commands."""
    parts = [escape(escape_lines(part)) for part in text.split("`")]
    return Markup().join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


SHORT_NAME = 28  # characters that no column breaks


def _breakable(name: str) -> str:
    """A name that may be broken at its dots and underscores, if it is long."""
    if len(name) <= SHORT_NAME:
        return name
    return Markup("<wbr>").join(escape(escape_lines(part)) for part in re.findall(r"[^._-]*[._-]*", name) if part)


def _duration(seconds: float) -> str:
    return "<1 ms" if seconds < 0.0005 else duration(seconds)


def _clock(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _short(task_id: str) -> str:
    """The part of an id that differs between neighbours."""
    return task_id if len(task_id) <= 13 else f"…{task_id[-12:]}"
