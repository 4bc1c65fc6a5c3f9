"""The dashboard: pages that show the queues of one store and operate them, as an ASGI app.

    app = Starlette(routes=[Mount("/bullpen", dashboard(queue, token=TOKEN, hosts=["shop.example.org"]))])

`bullpen dashboard` serves the same app. The order of a request: `gate.py` checks it and finds out who asks, by the
rules of `access.py`; `app.py` finds the page or the action; `views.py` reads the store for a page, `actions.py` changes
it; `templates/` makes HTML. `events.py` sends the live part of a page again while it changes.

Everything that a page shows may come from a stranger who can enqueue: Jinja escapes every value, and control characters
are made visible before. No page needs JavaScript.
"""

from bullpen.errors import MissingExtra

try:
    import jinja2
    import starlette
except ModuleNotFoundError as error:
    raise MissingExtra("the dashboard", extra="web") from error

from bullpen.web.app import dashboard

__all__ = ["dashboard"]

del jinja2, starlette
