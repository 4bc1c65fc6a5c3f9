"""What people write in a file becomes what `Pool` takes, or an error that says where and what would be right."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bullpen import CallPolicy, ConfigurationError, Pool, RecyclePolicy, RestartPolicy
from bullpen.pools.config_file import duration
from bullpen.pools.configuration import read_options, read_pools, read_toml
from tests.ratchets.options import option_names


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module to refer to."""
    module = ModuleType("shop_of_the_test")
    module.observe = print  # type: ignore[attr-defined]
    module.Cart = type("Cart", (), {"fill": staticmethod(len)})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_of_the_test", module)
    return module


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30s", 30), ("250ms", 0.25), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1.5 s", 1.5), (" 10us ", 1e-5)],
)
def test_durations(written: str, seconds: float) -> None:
    assert duration("idle_timeout", written) == pytest.approx(seconds)
    read = read_options("a", {"grace": written, "recycling": {"idle_timeout": written}}, "x")
    assert read["grace"] == read["recycling"].idle_timeout == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "30", "s", "-1s", "30 parsecs", "1h30m", "1,5s", "inf s", "1e3s"])
def test_what_is_no_duration_is_rejected(written: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"x: pool 'a': recycling.idle_timeout must be a number of seconds, or like"
    ):
        read_options("a", {"recycling": {"idle_timeout": written}}, "x")


@pytest.mark.parametrize("value", [30, 0.5, None, timedelta(seconds=3)])
def test_durations_that_are_durations_stay(value: Any) -> None:
    assert read_options("a", {"grace": value}, "x") == {"grace": value}


def test_functions_are_imported(shop: ModuleType) -> None:
    options = {
        "observer": "shop_of_the_test:observe",
        "initializer": "shop_of_the_test:Cart.fill",
        "calls": {"scheduler": "rotation"},
    }
    calls = CallPolicy(scheduler="rotation")
    assert read_options("a", options, "x") == {"observer": print, "initializer": len, "calls": calls}
    written = {"scheduler": "bullpen.pools.dispatch.ready_queue:Rotation", "wrap": len}
    read = read_options("a", {"calls": written}, "x")["calls"]
    assert read.wrap is len
    assert callable(read.scheduler)


def test_groups_and_lists_of_classes() -> None:
    options = {
        "restarts": {"limit": 3, "within": "1m"},
        "recycling": {"taint_on": ["builtins:MemoryError", "builtins:OSError"]},
    }
    assert read_options("a", options, "x") == {
        "restarts": RestartPolicy(limit=3, within=60.0),
        "recycling": RecyclePolicy(taint_on=(MemoryError, OSError)),
    }
    read = read_options("a", {"recycling": {"taint_on": "builtins:MemoryError"}}, "x")
    assert read == {"recycling": RecyclePolicy(taint_on=MemoryError)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recycling": {"max_reqests": 1}}, "'recycling.max_reqests' is not an option of a pool; did you mean"),
        ({"recycling": {"max_requests": 0}}, "recycling.max_requests must be a whole number ≥ 1"),
        ({"max_requests": 1}, "it belongs to a group: write recycling.max_requests"),
    ],
)
def test_groups_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_options("a", options, "x")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("observe", "observer must be written as 'module:attribute', got 'observe'"),
        (":observe", "observer must be written as 'module:attribute'"),
        ("shop_of_the_test:", "observer must be written as 'module:attribute'"),
        ("no_such_module:f", "importing 'no_such_module' raised ModuleNotFoundError"),
        ("shop_of_the_test:observ", "was imported, but has no 'observ'; did you mean 'observe'?"),
        ("shop_of_the_test:Cart.fil", "was imported, but has no 'fil'; did you mean 'fill'?"),
    ],
)
def test_a_wrong_import_says_what_was_tried(written: str, message: str, shop: ModuleType) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_options("gpu", {"observer": written}, "x.toml")
    assert message in str(caught.value)
    assert (caught.value.source, caught.value.pool, caught.value.option) == ("x.toml", "gpu", "observer")


def test_a_module_that_cannot_be_imported_is_the_cause() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_options("gpu", {"observer": "no_such_module:f"}, "x.toml")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_unknown_option_names_a_close_one() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_options("gpu", {"max_worker": 3}, "x.toml")
    problem = "'max_worker' is not an option of a pool; did you mean 'max_workers'?"
    assert str(caught.value) == f"x.toml: pool 'gpu': {problem}"
    with pytest.raises(ConfigurationError, match=r"'colour' is not an option of a pool$"):
        read_options("gpu", {"colour": "red"}, "x.toml")


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a/b", "a\n", 3, None])
def test_what_is_no_name_is_rejected(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no name for a pool"):
        read_pools({name: {}}, "x")


@pytest.mark.parametrize("name", ["gpu", "gpu-0", "a.b", "_a", "0", "Pool_1", "größe"])
def test_names(name: str) -> None:
    assert read_pools({name: {}}, "x") == {name: {"name": name}}


@pytest.mark.parametrize(("pools", "message"), [({}, "it has no pools"), ([], "table of pools"), ({"a": 3}, "got 3")])
def test_what_is_no_table_of_pools_is_rejected(pools: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_pools(pools, "x")


def test_every_option_of_a_pool_is_known() -> None:
    options = dict.fromkeys(option_names(Pool))
    assert read_options("a", options, "x") == options


def test_a_pool_that_is_there_is_taken_as_it_is() -> None:
    with Pool(1) as pool:
        assert read_pools({"a": pool}, "x") == {"a": pool}


# Files.


def test_the_nearest_file_that_has_pools_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "package" / "module"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.bullpen]\ndefault_pool = "b"\n[tool.bullpen.pools.b]\nmax_workers = 3\n'
    )
    (tmp_path / "package" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    monkeypatch.chdir(inner)
    assert read_toml(None) == ({"b": {"max_workers": 3}}, "b", str(tmp_path / "pyproject.toml"))
    (tmp_path / "package" / "pyproject.toml").write_text("[tool.bullpen.pools.near]\n")
    assert read_toml(None) == ({"near": {}}, None, str(tmp_path / "package" / "pyproject.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool", "it is not valid TOML"),
        ("", r"there is no \[tool.bullpen.pools.NAME\] in it"),
        ("[tool]\nbullpen = 3", "'bullpen' has to be a table"),
        (None, "it cannot be read"),
    ],
)
def test_a_wrong_file_is_named(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pools.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_toml(path)
    assert caught.value.source == str(path)


def test_no_file_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"no pyproject.toml here or above"):
        read_toml(None)
