"""`bullpen dashboard` in a process of its own, over real sockets."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from bullpen import TaskQueue
from bullpen.web import server
from bullpen.web.server import ServerOptions
from tests.scenarios.cli_support import Folder, Worker

TOKEN = "the token in a file, which is long enough"


@contextmanager
def served(folder: Folder, *words: str) -> Iterator[tuple[Worker, str]]:
    """The process, and its address."""
    with Worker(folder, ["dashboard", "app", "--port", "0", *words]) as process:
        (port,) = process.seen(r"address +http://\S+:(\d+)$")
        process.seen(r"stop +Ctrl-C")
        yield process, f"http://127.0.0.1:{port}"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.python("add.enqueue(1)")
    return folder


def test_the_printed_token_and_link_open_a_session_and_a_signal_ends_the_server(folder: Folder) -> None:
    with served(folder) as (process, address):
        (token,) = process.seen(r"token +(\S+)$")
        (link,) = process.seen(r"log in +(\S+)")
        with httpx.Client(base_url=address) as browser:
            page = browser.get("/").text
            assert "Log in" in page
            assert "Nothing needs attention" not in page  # no worker runs
            assert "no worker is up" in page
            done = browser.post("/login", data={"token": token}, headers={"origin": address})
            assert (done.status_code, done.headers["location"]) == (303, "/")
            assert 'action="/queues/pause"' in browser.get("/queues").text
            assert "server" not in done.headers
        with httpx.Client(base_url=address, follow_redirects=True) as browser:
            assert "Log out" in browser.get(link).text
            assert browser.get(link).status_code == 403
        with httpx.Client(base_url=address) as browser, browser.stream("GET", "/events?view=/") as stream:
            assert next(line for line in stream.iter_lines() if line.startswith("event: live"))
            process.send(signal.SIGTERM)  # while a page is open
            assert process.ends() == 0
        assert token not in process.told.replace(f"token     {token}", "")
        assert "Traceback" not in process.told


def test_ctrl_c_ends_the_server(folder: Folder) -> None:
    with served(folder) as (process, _):
        process.send(signal.SIGINT)
        assert process.ends() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_request_ends_the_server(number: signal.Signals) -> None:
    options = ServerOptions("127.0.0.1", 0, None, (), (), "X-User", require_login=False, read_only=False)
    server.run(TaskQueue("memory://"), options, lambda facts: signal.raise_signal(number))
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.255.255.1"])
def test_another_address_is_rejected_without_authentication(folder: Folder, host: str) -> None:
    done = folder.run("dashboard", "app", "--host", host, "--port", "0")
    assert done.returncode == 2
    assert "can be reached from other machines" in done.stderr
    assert "--token-file" in done.stderr


def test_another_address_with_a_token_shows_nothing_without_a_login(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with served(folder, "--host", "0.0.0.0", "--token-file", "token") as (process, address):
        assert TOKEN not in process.told
        assert "HTTP without TLS" in process.told
        with httpx.Client(base_url=address) as browser:
            assert browser.get("/").status_code == 401
            assert browser.get("/tasks", headers={"host": "evil.example"}).status_code == 421
            browser.post("/login", data={"token": TOKEN}, headers={"origin": address})
            assert browser.get("/").status_code == 200


def test_a_trusted_proxy_names_the_user_and_headers_of_others_count_for_nothing(folder: Folder) -> None:
    words = ("--trusted-proxy", "127.0.0.1", "--allowed-host", "ops.example.org", "--user-header", "X-User")
    with served(folder, *words) as (process, address):
        assert "token" not in process.told
        with httpx.Client(base_url=address, headers={"host": "ops.example.org"}) as proxy:
            assert proxy.get("/").status_code == 401
            assert "ada" in proxy.get("/", headers={"x-user": "ada"}).text
            assert proxy.get("/", headers={"x-forwarded-user": "ada"}).status_code == 401
    with served(folder, "--trusted-proxy", "10.9.9.9") as (_, address):
        forged = {"x-forwarded-user": "ada", "x-forwarded-for": "10.9.9.9"}  # uvicorn alone would believe this
        assert httpx.get(address, headers=forged).status_code == 401


def test_a_login_can_be_required_on_loopback(folder: Folder) -> None:
    with served(folder, "--require-login") as (_, address):
        assert httpx.get(address).status_code == 401


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--token-file", "missing"), "the token cannot be read"),
        (("--token-file", "short"), "at least 20 characters"),
        (("--trusted-proxy", "proxy.example.org"), "addresses or networks"),
        (("--allowed-host", "a b"), "names of hosts"),
        (("--port", "70000"), "from 0 to 65535"),
    ],
)
def test_wrong_options_are_rejected_with_a_reason(folder: Folder, words: tuple[str, str], told: str) -> None:
    folder.write("short", "short")
    done = folder.run("dashboard", "app", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_and_a_missing_store_are_named(folder: Folder, tmp_path: Path) -> None:
    with served(folder) as (_, address):
        done = folder.run("dashboard", "app", "--port", address.rpartition(":")[2])
        assert (done.returncode, "choose another with --port" in done.stderr) == (2, True)
    done = folder.run("dashboard", "--url", "sqlite:///nothing.db")
    assert "there is no file" in done.stderr
    assert not os.path.exists(tmp_path / "nothing.db")


def test_without_its_packages_the_extra_is_named(folder: Folder) -> None:
    for package in ("starlette", "jinja2", "uvicorn"):
        said = folder.python(
            f"""
            import sys
            sys.modules["{package}"] = None
            from bullpen.cli.main import main
            import contextlib
            with contextlib.redirect_stderr(sys.stdout):
                main(["dashboard", "app"])
            """
        )
        assert 'pip install "pybullpen[web]"' in said


def test_a_proxy_at_the_unix_socket_names_the_user(folder: Folder, tmp_path: Path) -> None:
    path = tmp_path / "dashboard.sock"
    words = ["dashboard", "app", "--socket", str(path), "--allowed-host", "ops.example.org"]
    with Worker(folder, words) as process:
        process.seen(r"stop +Ctrl-C")
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://ops.example.org") as proxy:
            assert proxy.get("/").status_code == 401
            page = proxy.get("/queues", headers={"x-forwarded-user": "ada"})
            assert page.status_code == 200
            assert "ada" in page.text
            assert 'action="/queues/pause"' in page.text
            assert proxy.get("/", headers={"x-forwarded-user": "ada", "host": "evil.example"}).status_code == 421
        busy = folder.run(*words)
        assert busy.returncode == 2
        assert "another process listens there" in busy.stderr
        process.send(signal.SIGTERM)
        assert process.ends() == 0
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # as a process that was killed leaves it
    with Worker(folder, words) as process:
        process.seen(r"stop +Ctrl-C")
        process.send(signal.SIGTERM)
        assert process.ends() == 0
