from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bullpen import ConfigurationError, Pools
from bullpen.cli.main import main
from bullpen.cli.settings import SETTINGS, find_all
from tests.other_users import AS_ROOT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(text)
    return file


def test_a_flag_counts_before_the_environment_before_the_file_before_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_all()["concurrency"][:2] == (10, "default")
    file = write(folder, "[tool.bullpen]\nconcurrency = 20\ngrace = 3.5\n")
    assert find_all()["concurrency"][:2] == (20, str(file))
    assert find_all()["grace"].value == 3.5
    monkeypatch.setenv("BULLPEN_CONCURRENCY", "30")
    assert find_all()["concurrency"][:2] == (30, "BULLPEN_CONCURRENCY")
    assert find_all({"concurrency": 40})["concurrency"][:2] == (40, "--concurrency")
    assert find_all({"concurrency": None})["concurrency"].value == 30


def test_an_unknown_variable_is_a_warning_with_the_name_that_was_probably_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BULLPEN_CONCURENCY", "30")
    for from_kubernetes in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(f"BULLPEN_{from_kubernetes}", "1")
    find_all()
    find_all()
    warning = (
        "bullpen: warning: the variable BULLPEN_CONCURENCY is not a setting; did you mean 'BULLPEN_CONCURRENCY'?\n"
    )
    assert capsys.readouterr().err == warning


def test_lists_are_written_as_toml_has_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, '[tool.bullpen]\nlanes = ["default,mail:50", "reports:2"]\nimports = ["a.b", "c"]\n')
    assert find_all()["lanes"].value == ("default,mail:50", "reports:2")
    assert find_all()["imports"].value == ("a.b", "c")
    monkeypatch.setenv("BULLPEN_QUEUES", "x,y")
    assert (find_all()["queues"].value, find_all()["lanes"].value) == (("x", "y"), None)


def test_the_nearest_file_that_says_something_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "[tool.bullpen]\ngrace = 1\n")
    inner = folder / "package" / "inner"
    inner.mkdir(parents=True)
    write(inner, "[tool.other]\n")
    monkeypatch.chdir(inner)
    assert find_all()["grace"].value == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("concurency = 3", "'concurency' is not a setting; did you mean 'concurrency'?"),
        ("zzz = 3", "'zzz' is not a setting; the settings are app, url"),
        ("grace = 'long'", "grace must be a number from 0 to 86400, got 'long'"),
        ("log_level = 'loud'", "log_level must be one of debug, info, warning, error, got 'loud'"),
    ],
)
def test_a_slip_in_the_file_is_named(folder: Path, text: str, said: str) -> None:
    file = write(folder, f"[tool.bullpen]\n{text}\n")
    with pytest.raises(ConfigurationError, match=f"\\[tool.bullpen\\] in {file}: ") as raised:
        find_all()
    assert said in str(raised.value)


def test_tables_of_pools_are_no_settings(folder: Path) -> None:
    write(folder, '[tool.bullpen]\ndefault_pool = "a"\n[tool.bullpen.pools.a]\nmax_workers = 2\n')
    assert find_all()["app"].value is None


def test_a_slip_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BULLPEN_PROCESSES", "many")
    assert main(["config"]) == 2
    assert "the environment: BULLPEN_PROCESSES must be a number from 1 to 256, got 'many'" in capsys.readouterr().err


def test_config_shows_each_value_and_its_source_but_no_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(folder, '[tool.bullpen]\napp = "shop.jobs:queue"\n')
    monkeypatch.setenv("BULLPEN_URL", "postgresql://ada:s3cret@db/shop")
    assert main(["config"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["app"][1:3] == ["shop.jobs:queue", str(file)]
    assert lines["url"][1:3] == ["postgresql://ada:***@db/shop", "BULLPEN_URL"]
    assert lines["grace"][1:3] == ["25.0", "default"]
    for address in ("postgresql:/ada:s3cret@db/shop", "postgresql://db/shop?password=s3cret"):
        monkeypatch.setenv("BULLPEN_URL", address)
        assert main(["config"]) == 0
        assert "s3cret" not in capsys.readouterr().out
    monkeypatch.setenv("BULLPEN_APP", "redis://ada:s3cret@db/0")
    assert main(["config"]) == 0
    assert "s3cret" not in capsys.readouterr().out
    monkeypatch.delenv("BULLPEN_APP")
    assert main(["config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["app"] == {"value": "shop.jobs:queue", "source": str(file)}


@pytest.mark.parametrize("name", ["app", "concurrency", "queues", "lanes", "imports", "loop", "health", "metrics_host"])
@pytest.mark.parametrize("address", ["me:s3cret@host:1", "me:s3cret x@host:1", "redis://host/0?token=s3cret"])
def test_an_address_in_the_wrong_setting_shows_no_password(
    name: str, address: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, f'[tool.bullpen]\n{name} = "{address}"\n')
    for command in (["config"], ["config", "--json"]):
        main(command)
        shown = capsys.readouterr()
        assert "***" in shown.out + shown.err
        assert "s3cret" not in shown.out + shown.err


@pytest.mark.parametrize("address", ["redis://me:s3cret@host", "//me:s3cret", "redis%3A%2F%2Fme%3As3cret%40h"])
def test_an_address_as_the_name_of_a_setting_shows_no_password(
    address: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"BULLPEN_{address}", "1")
    assert main(["config"]) == 0
    assert "the variable BULLPEN_***" in (told := capsys.readouterr().err) or "redis://me:***@host" in told
    assert "s3cret" not in told
    for section in (f'[tool.bullpen]\n"{address}" = 1\n', f'[tool]\nbullpen = "{address}"\n'):
        write(folder, section)
        assert main(["config"]) == 2
        assert "s3cret" not in capsys.readouterr().err


def test_a_worker_repeats_no_password_of_a_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, '[tool.bullpen]\nqueues = "redis://me:s3cret@host,mail"\n')
    (folder / "shop_w.py").write_text(
        "from bullpen import TaskQueue\nqueue = TaskQueue('memory://')\nqueue.task(print)\n"
    )
    assert main(["worker", "shop_w:queue"]) == 2
    told = capsys.readouterr().err
    assert "queues must be a name" in told
    assert "s3cret" not in told


def test_of_store_and_app_the_stronger_source_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, f'[tool.bullpen]\nurl = "sqlite:///{folder}/file.db"\n')
    monkeypatch.setenv("BULLPEN_APP", "nowhere")
    assert main(["status"]) == 2
    assert "cannot use 'nowhere'" in capsys.readouterr().err
    monkeypatch.delenv("BULLPEN_APP")
    assert main(["status"]) == 1
    assert f"there is no file {folder}/file.db" in capsys.readouterr().err


@AS_ROOT
@pytest.mark.parametrize("spoil", [lambda file: os.chown(file, 12345, -1), lambda file: file.chmod(0o666)])
def test_a_file_that_others_can_write_is_read_only_by_name(
    folder: Path, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """It names code to import. A stray pyproject.toml in /tmp would run code of another user otherwise."""
    file = write(folder, '[tool.bullpen]\napp = "shop.jobs:queue"\n')
    spoil(file)
    for words in (["config"], ["worker"], ["status"], ["probe"], ["check"]):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert str(file) in told
        assert "give it with --config" in told
    with pytest.raises(ConfigurationError, match=r"Pools\.from_toml"):
        Pools.from_toml()
    assert find_all(config=str(file))["app"].value == "shop.jobs:queue"
    assert main(["config", "--config", str(file)]) == 0


@AS_ROOT
@pytest.mark.parametrize("text", ["[project]\n", "this is no TOML", "a = " + "[" * 5000, "#" * (2 << 20)])
def test_what_others_write_elsewhere_does_not_matter(folder: Path, text: str) -> None:
    os.chown(write(folder, text), 12345, -1)
    assert find_all()["app"].source == "default"


def test_a_named_file_has_to_have_settings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--config", str(write(folder, "[project]\n"))]) == 2
    assert "it has no [tool.bullpen]" in capsys.readouterr().err
    assert main(["config", "--config", "absent.toml"]) == 2
    assert "it cannot be read" in capsys.readouterr().err
