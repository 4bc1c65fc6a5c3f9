"""`bullpen dashboard`: serves web pages that show the queues of a store and operate them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from bullpen import __version__
from bullpen.cli import store
from bullpen.cli.app import HOW
from bullpen.cli.arguments import names, whole
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.settings import add_config
from bullpen.escaping import escape

PORT = 8787


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("app", nargs="?", metavar="APP", help=f"{HOW} (default: $BULLPEN_APP)")
    which.add_argument("--url", metavar="URL", help="the store, such as sqlite:///jobs.db, instead of APP")
    add_config(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=whole(0, 65_535), default=PORT, metavar="N", help=f"0 chooses a free port (default: {PORT})"
    )
    parser.add_argument(
        "--socket",
        dest="unix_socket",
        metavar="PATH",
        help="listen at a Unix socket instead, for a proxy whose user header counts",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="read the token from FILE (default: a new one is printed; other addresses than loopback need a file)",
    )
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        help="serve the HTTP API, for the tokens of FILE; see `bullpen tokens`",
    )
    parser.add_argument(
        "--allowed-host",
        dest="allowed_hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="name of the host in the addresses of browsers, beside loopback; may be repeated",
    )
    parser.add_argument(
        "--trusted-proxy",
        dest="trusted_proxies",
        type=names,
        default=(),
        metavar="A,B",
        help="addresses or networks of proxies whose user header counts",
    )
    parser.add_argument(
        "--user-header",
        default="X-Forwarded-User",
        metavar="NAME",
        help="header in which such a proxy names the user (default: X-Forwarded-User)",
    )
    parser.add_argument("--audit-file", metavar="FILE", help="keep the latest 1,000 changes there, for the system page")
    parser.add_argument("--require-login", action="store_true", help="show nothing without a login, also on loopback")
    parser.add_argument("--read-only", action="store_true", help="let no visitor change anything")


def _run(arguments: argparse.Namespace) -> int:
    from bullpen.web import server  # imported late: it needs packages that other commands do not need

    with store.open_queue(arguments) as queue:
        options = server.ServerOptions(
            host=arguments.host,
            port=arguments.port,
            token_file=arguments.token_file,
            allowed_hosts=arguments.allowed_hosts,
            trusted_proxies=arguments.trusted_proxies,
            user_header=arguments.user_header,
            require_login=arguments.require_login,
            read_only=arguments.read_only,
            tokens=arguments.tokens,
            audit_file=arguments.audit_file,
            unix_socket=arguments.unix_socket,
        )

        def announce(facts: Mapping[str, str]) -> None:
            print(escape(f"bullpen {__version__}: dashboard of {store.address_of(queue.storage)}"), file=sys.stderr)
            for name, text in facts.items():
                print(escape(f"  {name:<8}  {text}"), file=sys.stderr)
            sys.stderr.flush()

        server.run(queue, options, announce)
    return ExitCode.OK


COMMAND = Command("dashboard", "Serve web pages that show the queues and operate them.", add_arguments, _run)
