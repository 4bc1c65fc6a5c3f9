"""Addresses of stores."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import InvalidOption, MissingExtra
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.open import looks_like_address, masked, open_storage, without_passwords
from bullpen.tasks.storage.postgres.store import PostgresStorage
from bullpen.tasks.storage.redis.store import RedisStorage
from bullpen.tasks.storage.sqlite.store import SqliteStorage


def test_memory() -> None:
    assert isinstance(open_storage("memory://"), MemoryStorage)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///sub/jobs.db", "sub/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("SQLite:///a%20b.db", "a b.db"),
    ],
)
def test_paths_are_relative_with_three_slashes_and_absolute_with_four(url: str, path: str) -> None:
    storage = open_storage(url)
    assert isinstance(storage, SqliteStorage)
    assert storage.path == Path.cwd() / path


def test_a_plain_path_is_no_address_but_what_is_meant_is_clear() -> None:
    for written in ("jobs.db", "sqlite://jobs.db"):
        with pytest.raises(InvalidOption, match=r"^url must be sqlite:///jobs\.db, got "):
            open_storage(written)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("wrong", "right"),
    [("prefx", "prefix"), ("socket_timout", "socket_timeout"), ("health_check_intervall", "health_check_interval")],
)
async def test_an_option_that_redis_does_not_know_gets_the_name_that_was_probably_meant(wrong: str, right: str) -> None:
    storage = open_storage(f"redis://127.0.0.1:6379/0?protocol=2&{wrong}=secret")
    with pytest.raises(InvalidOption, match=rf"^redis:// has no option '{wrong}'; did you mean {right}\?$"):
        await storage.open()


@pytest.mark.anyio
async def test_an_option_that_redis_does_not_know_is_rejected_without_its_value() -> None:
    storage = open_storage("redis://127.0.0.1:6379/0?prefx=secret")
    with pytest.raises(InvalidOption, match=r"^redis:// has no option 'prefx'; did you mean prefix\?$"):
        await storage.open()


def test_options_of_sqlite() -> None:
    storage = open_storage("sqlite:///jobs.db?synchronous=normal&busy_timeout=0.5")
    assert isinstance(storage, SqliteStorage)
    assert (storage.synchronous, storage.busy_timeout) == ("normal", 0.5)
    assert open_storage("sqlite:///jobs.db").synchronous == "full"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("redis://:s3cret@127.0.0.1:1/zero", "host:port/number"),
        ("redis://:s3cret@127.0.0.1:1/0/1", "host:port/number"),
        ("redis://:s3/cret@127.0.0.1:1/0", "%2F for /"),
        ("redis://:1/s3cret@127.0.0.1:1/0", "%2F for /"),
        ("redis://:s3#cret@127.0.0.1:1/0", "%23 for #"),
        ("redis://:s3?cret@127.0.0.1:1/0", r"%3F for \?"),
        ("redis://:s3[cret@127.0.0.1:1/0", r"%5B for \["),
        ("redis://:s3cret@127.0.0.1:port/0", "host:port/number"),
        ("redis+cluster://:s3cret@127.0.0.1:1,127.0.0.1:port", "host:port"),
        ("redis://:s3cret@127.0.0.1:1/0?socket_timeout=-1", "seconds above 0"),
        ("redis://:s3cret@127.0.0.1:1/0?socket_timeout=0", "seconds above 0"),
        ("redis://:s3cret@127.0.0.1:1/0?socket_timeout=nan", "seconds above 0"),
        ("redis://:s3cret@127.0.0.1:1/0?socket_timeout=soon", "seconds above 0"),
        ("redis://:s3cret@127.0.0.1:1/0?decode_responses=true", "without it"),
        ("redis://:s3cret@127.0.0.1:1/0?max_connections=1", "without it"),
        ("redis+cluster://:s3cret@127.0.0.1:1?max_connections=1", "without it"),
    ],
)
@pytest.mark.anyio
async def test_an_address_that_redis_py_would_misunderstand_is_rejected(address: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words) as rejected:
        await open_storage(address).open()
    shown = "".join(traceback.format_exception(rejected.value))
    assert "s3" not in shown
    assert "cret" not in shown


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("jobs.db", "url must be sqlite:///jobs.db, got"),
        ("/var/jobs.db", "url must be sqlite:////var/jobs.db, got"),
        ("", "memory://"),
        (7, "memory://"),
        (None, "memory://"),
        ("mysql://host/db", "postgresql://"),
        ("memory://name", "memory://"),
        ("sqlite://jobs.db", "url must be sqlite:///jobs.db, got"),
        ("sqlite:///", "sqlite:///relative.db"),
        ("sqlite:///folder/", "sqlite:///relative.db"),
        ("sqlite:///:memory:", "url must be memory://"),
        ("sqlite://:memory:", "url must be memory://"),
        ("sqlite://", "url must be memory://"),
        ("sqllite:///jobs.db", "url must be sqlite:///…"),
        ("postgrsql://me:secret@host/db", "url must be postgresql://…"),
        ("reddis://host/0", "url must be redis://…"),
        ("memry://", "url must be memory://"),
        ("redis+sentinel://host/0", "redis+cluster://host:port,host:port (with ?prefix=), got"),
        ("postgresql+asyncpg://host/db", "url must be postgresql://…"),
        ("postgres+psycopg://host/db", "url must be postgresql://…"),
        ("postgresql+psycopg2://host/db", "url must be postgresql://…"),
        ("sqlite+aiosqlite:///jobs.db", "url must be sqlite:///…"),
        ("sqlite:///C:\\data\\jobs.db", "a path of this system, not of Windows"),
        ("sqlite:///C:/data/jobs.db", "a path of this system, not of Windows"),
        ("sqlite://C:\\data\\jobs.db", "url must be sqlite:///C:/data/jobs.db, got"),
        ("C:\\data\\jobs.db", "url must be sqlite:///C:/data/jobs.db, got"),
        ("sqlite:///a%00b.db", "sqlite:///relative.db"),
        ("sqlite:///jobs.db?sycnhronous=full", "sqlite:/// has no option 'sycnhronous'; did you mean synchronous?"),
        ("sqlite:///jobs.db?zzz=full", "'zzz'; the options are busy_timeout, shared, synchronous"),
        ("sqlite:///jobs.db?synchronous=off", '"full" or "normal"'),
        ("sqlite:///jobs.db?busy_timeout=soon", "seconds"),
        ("sqlite:///jobs.db?busy_timeout=nan", "seconds"),
        ("sqlite:///jobs.db?busy_timeout=-1", "seconds"),
        ("postgresql://host/db?schema=My-Schema", "lower-case"),
        ("postgresql://host/db?schema=", "lower-case"),
        ("postgresql://host/db?notify=maybe", "true or false"),
        ("postgresql://host/db?connections=0", "whole number"),
        ("postgresql://host/db?timeout=0", "seconds"),
        ("redis://host/0?prefix=a{b", "in {}"),
        ("redis://host/0?prefix=", "a few characters"),
    ],
)
def test_a_wrong_address_is_rejected_with_what_is_allowed(url: str, word: str) -> None:
    with pytest.raises(InvalidOption) as rejected:
        open_storage(url)
    assert word in str(rejected.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresqll://me:s3cret@host/db", "postgresqll://me:***@host/db"),
        ("postgresqll://s3cret@host/db", "postgresqll://***@host/db"),
        ("mysql://h:5432,h2.example/db", "mysql://h:5432,h2.example/db"),
        ("mysql://[::1]:5432/db", "mysql://[::1]:5432/db"),
        ("mysql://h/db?password=s3cret&user=me", "mysql://h/db?password=***&user=me"),
        ("mysql://h/db?PASSWORD=s3cret", "mysql://h/db?PASSWORD=***"),
        ("mysql://h/db?%70assword=s3cret", "mysql://h/db?***"),
        ("mysql://h/db?%2570assword=s3cret;pwd=s3cret", "mysql://h/db?***&pwd=***"),
        ("mysql://h/db?schema=a&token=s3cret&passwrd=s3cret", "mysql://h/db?schema=a&token=***&passwrd=***"),
        ("mysql://h/db?listen_url=postgresql%3A%2F%2Fu%3As3cret%40h", "mysql://h/db?listen_url=***"),
        ("postgresql+asyncpg://me:s3/cret@host/db", "postgresql+asyncpg://***"),
        ("sqlite://u:s3cret@h:db", "sqlite://***"),
        *(
            (unreadable, "***")
            for unreadable in (
                "postgresqll://me:s3cret@s3cret@host/db",
                "postgresqll://me:s3/cret@host/db",
                "postgresql:/root:s3cret@127.0.0.1/x",
                "postgresql:/root:s3cret",
                "//root:s3cret",
                "redis:u:s3cret@h",
                "postgres//u:s3cret@h/x",
                "u:s3cret@h.db",
                "u:s3cret.db",
                "mysql://h/db?user=me#s3cret",
                "mysql://h/db#?user=s3cret",
                "mysql://me:s3cret/db",
                "mysql://h:5432,me:s3cret",
                "mysql:me:s3cret",
                "me:s3cret/db",
                "me:pa/s3cret",
                "127.0.0.1:5432/db?a=s3cret",
                "host=h user=me password=s3cret",
                "PASSWORD = 's3cret' host=h",
                "mysql://me:pa?s3cret",
                "mysql%253A%252F%252Fme%253As3cret%2540host",
            )
        ),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    with pytest.raises(InvalidOption) as rejected:
        open_storage(url)
    assert rejected.value.value == shown
    assert "s3" not in str(rejected.value)


SECRET = "s3cret"
NAMES = st.sampled_from("password passwd pwd pass token auth secret api_key sslpassword listen_url credentials".split())


@st.composite
def spelled(draw: st.DrawFn, name: str) -> str:
    """The same name for a driver: letters of either case, some as %xx."""
    return "".join(
        f"%{ord(letter):02x}" if draw(st.booleans()) else letter.upper() if draw(st.booleans()) else letter
        for letter in name
    )


NOISE = st.text("ab:/?#&;=[]%,. \n\ud800é", max_size=6)
OPTIONS = st.one_of(
    NAMES.flatmap(spelled).map(lambda name: f"{name}={SECRET}"), st.just("schema=jobs"), st.just("=x"), NOISE
)


@given(
    st.sampled_from(["postgresql://", "redis://", "mysql:", ""]),
    st.one_of(st.just("me:s3cret@h"), st.just("me:s3cret"), st.tuples(NOISE, NOISE).map("s3cret@".join)),
    st.sampled_from(["", "/db", "/0"]),
    st.lists(OPTIONS, max_size=4).map("&".join),
)
def test_no_spelling_shows_a_secret(scheme: str, place: str, path: str, query: str) -> None:
    url = f"{scheme}{place}{path}?{query}"
    assert SECRET not in masked(url), url


def test_an_address_that_is_wholly_encoded_is_not_shown() -> None:
    with pytest.raises(InvalidOption, match=r"got '\*\*\*'$"):
        open_storage("postgresql%3A%2F%2Fme%3As3cret%40host")


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_shown(url: str) -> None:
    shown = masked(url)
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "place",
    [
        "me:s3c/ret@host/db",
        "me:s3c#ret@host/db",
        "me:s3c?ret@host/db",
        "me:s3c[ret@host/db",
        "me:s3c]ret@host/db",
        "me:p@s3c:ret@host/db",
        "me:s3c@@host/db",
        "s3c@ret@host",
        "me:s3c@host:54x/db",
        "me@host:54x/db?password=s3c",
        "host:s3c",
        "me%3As3c%40host/db",
        "me:5432?s3c@host/db",
        "me@host/db?listen_url=postgresql://me:p@s3c:ret@host/db",
        "me@host/db?listen_url=postgresql:/me:s3c@host/db",
        "me@host/db?listen_url=s3c:ret@host/db",
        "me@host/db?listen_url=postgresql://me:s3c/ret@host/db",
    ],
)
def test_an_address_that_postgres_cannot_read_is_rejected_without_its_password(place: str) -> None:
    with pytest.raises(InvalidOption, match="%2F") as rejected:
        open_storage(f"postgresql://{place}")
    shown = "".join(traceback.format_exception(rejected.value.with_traceback(None))) + repr(vars(rejected.value))
    assert "s3c" not in shown
    assert "ret@" not in shown


@pytest.mark.parametrize(
    "place",
    [
        "u@127.0.0.1:99999/x",
        "a:5432,b:65536/x",
        "host:0/x",
        "[::1]:99999/x",
        "/x?host=a&port=99999",
        "/x?host=a,b&port=5432,any",
        "/x?host=a:99999",
        "u@host/x?listen_url=postgresql://u@host:99999/x",
    ],
)
def test_a_port_that_is_none_is_rejected(place: str) -> None:
    with pytest.raises(InvalidOption, match="a port from 1 to 65535") as rejected:
        open_storage(f"postgresql://{place}")
    assert "9999" not in str(rejected.value)  # without a host, what comes after the colon is a password


@pytest.mark.parametrize(
    "place",
    [
        "me:%2F%23%3F%40@host/db",
        "[::1]:5432/db",
        "me@/db?host=/tmp",
        "me@%2Ftmp:5432/db",
        "a:1,b:65535,c/db",
        "/db?host=a,b&port=5432,5433",
        "/db?host=a:1,b",
        "/db?host=/cloudsql/project:region:name",
        "host:/db?port=",
        "/db?host=a&password=s3c%2F",
        "host",
    ],
)
def test_any_address_that_postgres_knows_is_taken(place: str) -> None:
    storage = open_storage(f"postgresql://{place}")
    assert isinstance(storage, PostgresStorage)
    assert urlsplit(storage.url).netloc == urlsplit(f"postgresql://{place}").netloc


def test_what_other_clients_of_postgres_take_is_no_setting_of_the_server() -> None:
    known = "connect_timeout=3&keepalives=1&keepalives_idle=5&channel_binding=prefer&gssencmode=disable"
    storage = open_storage(f"postgresql://host/db?{known}")
    assert isinstance(storage, PostgresStorage)
    assert (storage.url, storage.connect_timeout, storage.timeout) == ("postgresql://host/db", 3.0, 10.0)
    with pytest.raises(InvalidOption, match="asyncpg"):
        open_storage("postgresql://host/db?channel_binding=require")


def test_options_of_postgres_are_taken_and_the_others_are_the_drivers() -> None:
    storage = open_storage(
        "postgresql://me:s3cret@host:5433/db?schema=jobs&sslmode=require&notify=false&prepared=false&connections=3&timeout=2.5"
    )
    assert isinstance(storage, PostgresStorage)
    assert (storage.url, storage.schema) == ("postgresql://me:s3cret@host:5433/db?sslmode=require", "jobs")
    assert (storage.notify, storage.prepared, storage.migrate, storage.connections) == (False, False, True, 3)
    assert storage.timeout == 2.5
    assert "s3cret" not in repr(storage)


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("redis://:s3cret@host:6380/2?prefix=jobs&socket_timeout=5", "redis://:s3cret@host:6380/2?socket_timeout=5"),
        ("rediss://host/0?prefix=jobs", "rediss://host/0"),
        ("valkey://host?prefix=jobs", "valkey://host"),
        ("rediss+cluster://a:7000,b:7001?prefix=jobs", "rediss://a:7000,b:7001"),
    ],
)
def test_options_of_redis_are_taken_and_the_others_are_the_drivers(url: str, driver: str) -> None:
    storage = open_storage(url)
    assert isinstance(storage, RedisStorage)
    assert (storage.url, storage.prefix) == (driver, "jobs")
    assert "s3cret" not in repr(storage)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("postgresql://host/db", "asyncpg", "postgres"),
        ("redis://host", "redis", "redis"),
    ],
)
def test_a_missing_driver_is_named_with_what_to_install(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(MissingExtra, match=rf'pip install "pybullpen\[{extra}\]"'):
        open_storage(url)


@pytest.mark.parametrize("encode", [str, quote, lambda text: quote(quote(text, safe=""), safe="")])
@pytest.mark.parametrize(
    "address",
    [
        *("postgresql:/me:s3cret", "//me:s3cret", "redis:me:s3cret", "postgresql:u:s3cret/db", "me:s3cret/db"),
        *("auth=s3cret", "password: s3cret", "password = s3cret", "api_key=s3cret", "passphrase=s3cret"),
    ],
)
def test_a_part_of_an_address_is_known_however_it_is_encoded(address: str, encode: Callable[[str], str]) -> None:
    assert looks_like_address(encode(address))


@pytest.mark.parametrize(
    "word",
    [
        *("app:queue", "shop.jobs:queue", "redis:queue", "tenant:42:mail", "password:reset", "approved:42", "a-b_c.d"),
        *(
            "2030-01-31T18:00",
            "12:30",
            "0 6 * * MON",
            '{"a": 1}',
            "mail,reports:2",
            "mail:2@process",
            "[1, 2]",
            "~/x y",
        ),
    ],
)
def test_no_other_word_is_taken_for_an_address(word: str) -> None:
    assert not looks_like_address(word)


def test_a_lane_is_shown_as_it_was_typed() -> None:
    assert without_passwords("got 'mail:2@proces'", ["mail:2@proces"]) == "got 'mail:2@proces'"
    for address in ("me:123456@db", "me:1234@db", "s3cret@prod"):
        assert "***" in without_passwords(f"got {address!r}", [address])
