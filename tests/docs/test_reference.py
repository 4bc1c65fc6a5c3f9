"""The reference pages name everything there is."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterable
from typing import Any, get_args

import bullpen.testing
from bullpen import (
    AsyncExplanation,
    AsyncPool,
    AsyncPoolStats,
    AsyncPoolView,
    AsyncWorkerPool,
    CallProgress,
    Cause,
    CurrentTask,
    Explanation,
    Job,
    Kind,
    Lane,
    Percentiles,
    Pool,
    PoolFuture,
    Pools,
    PoolStats,
    PoolView,
    ProcessRuntime,
    ProgramRuntime,
    Progress,
    Reason,
    RunningRequest,
    ScheduleInfo,
    Schedules,
    SessionInfo,
    TaskError,
    TaskFunction,
    TaskInfo,
    TaskQueue,
    TelemetryEvent,
    Why,
    WorkerInfo,
    WorkerPool,
    errors,
)
from bullpen.cli.command import ExitCode
from bullpen.cli.settings import SETTINGS
from bullpen.integrations.prometheus import METRICS
from bullpen.pools.async_options import AsyncPoolKeywords
from bullpen.pools.dispatch.request import TimeLimits
from bullpen.pools.options import CallOptions, PoolKeywords, PoolOptions
from bullpen.pools.policies import GROUPS, SCHEDULERS
from bullpen.pools.runtimes.port import CAPABILITIES
from bullpen.pools.runtimes.program import messages
from bullpen.tasks.client.why import CauseKind
from bullpen.tasks.model.options import CALL_NAMES, FUNCTION_NAMES, SHARED_NAMES
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.docs import command_line, metrics
from tests.docs.markdown import ROOT


def missing_from(page: str, names: Iterable[str]) -> list[str]:
    """Which of `names` the page does not mention in code font, blocks of code apart."""
    text = (ROOT / "docs" / "reference" / page).read_text()
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    code = " ".join(re.findall(r"`([^`]+)`", text))
    return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code)]


def public_methods(cls: type[Any]) -> list[str]:
    """Those that the class itself has, or changes."""
    return [name for name, value in vars(cls).items() if not name.startswith("_") and callable(value)]


def field_names(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def test_every_option_of_a_pool_has_a_row_with_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "pool.md").read_text()
    signature = inspect.signature(Pool).parameters
    defaults = {name: one.default for name, one in signature.items() if one.kind is not one.VAR_KEYWORD}
    usual = {field.name: field.default for field in dataclasses.fields(PoolOptions)}
    defaults |= {name: usual.get(name) for name in PoolKeywords.__annotations__}
    for group, kind in GROUPS.items():
        defaults |= {f"{group}.{field.name}": field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    assert len(defaults) > 40
    for name, default in defaults.items():
        row = re.search(rf"^\| `{re.escape(name)}` \| (.*?) \|", page, re.MULTILINE)
        assert row is not None, f"no row for the option {name}"
        if default not in (None, dataclasses.MISSING):
            shown = f'"{default}"' if isinstance(default, str) else repr(default)
            assert shown in row[1], f"the default of {name} is {shown}, the page says: {row[1]}"


def test_every_method_of_a_pool_is_described() -> None:
    assert missing_from("pool.md", public_methods(Pool)) == []


def test_every_method_of_pools_is_described() -> None:
    assert missing_from("pools.md", [*public_methods(Pools), "from_config", "from_toml", "default_pool"]) == []


def test_every_parameter_of_a_method_is_described() -> None:
    for method in (Pool.close, Pool.shutdown, Pool.map, Pool.wait_ready, Pool.resize, Pool.cancel, Pool.can):
        names = [name for name in inspect.signature(method).parameters if name != "self"]
        assert missing_from("pool.md", names) == []


def test_every_option_of_using_is_described() -> None:
    limits = inspect.signature(TimeLimits).parameters
    assert missing_from("pool.md", [*limits, *CallOptions.NAMES]) == []


def test_everything_of_an_async_pool_is_described() -> None:
    page = "async-pool.md"
    options = [*AsyncPoolKeywords.__annotations__, *(name for kind in GROUPS.values() for name in field_names(kind))]
    assert missing_from(page, ["max_workers", *options]) == []
    assert missing_from(page, public_methods(AsyncPool)) == []
    for method in (AsyncPool.close, AsyncPool.map, AsyncPool.wait_ready, AsyncPool.resize, AsyncPool.can):
        assert missing_from(page, [name for name in inspect.signature(method).parameters if name != "self"]) == []
    assert missing_from(page, [name for name in CallOptions.NAMES if name != "context"]) == []
    assert missing_from(page, field_names(AsyncExplanation)) == []
    sums = [name for name, value in vars(AsyncPoolStats).items() if isinstance(value, property)]
    assert len(sums) > 10
    assert missing_from(page, [*field_names(AsyncPoolStats), *sums]) == []
    assert set(public_methods(AsyncPoolView)) >= {"submit", "serve", "do", "map", "stream", "using"}


def test_everything_of_a_program_runtime_is_described() -> None:
    assert missing_from("pool.md", [*inspect.signature(ProgramRuntime).parameters, *field_names(CallProgress)]) == []
    page = (ROOT / "docs" / "reference" / "program-protocol.md").read_text()
    for message in get_args(messages.AnyMessage):
        row = re.search(rf"^\| `{message.__struct_config__.tag}` \|(.*)", page, re.MULTILINE)
        assert row is not None, message
        assert [name for name in message.__struct_fields__ if f"`{name}`" not in row[1]] == [], message
    assert missing_from("pool.md", inspect.signature(ProcessRuntime).parameters) == []


def test_views_futures_schedulers_and_capabilities_are_described() -> None:
    futures = ["result", "exception", "cancel", "cancelled", "running", "done", "add_done_callback"]
    assert set(futures) <= set(dir(PoolFuture))
    views = ["submit", "serve", "do", "map", "using"]
    assert set(views) <= set(public_methods(PoolView))
    assert missing_from("pool.md", [*views, *futures, *SCHEDULERS, *CAPABILITIES]) == []


def test_every_error_is_described_with_its_fields() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]
    assert len(classes) > 10
    assert missing_from("errors.md", [cls.__name__ for cls in classes]) == []
    for cls in classes:
        fields = re.findall(r"self\.(\w+) =", inspect.getsource(cls))
        assert missing_from("errors.md", fields) == [], cls


def test_the_tree_of_errors_is_the_one_in_the_code() -> None:
    assert errors.__doc__ is not None
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    branch = re.compile(r"^\s*([│├└─ ]*)(\w+(?: \(\w+\))?)", re.MULTILINE)
    in_code = [branch.search(line) for line in errors.__doc__.splitlines() if re.search(r"[├└]", line)]
    on_page = [branch.search(line) for line in page.splitlines() if re.search(r"[├└]", line)]
    assert [found[2] for found in in_code if found] == [found[2] for found in on_page if found]


def test_every_kind_of_event_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text()
    for kind in Kind:
        assert f"| `{kind.name}` | `{kind.value}` |" in page
    assert missing_from("events.md", field_names(TelemetryEvent)) == []


def test_every_option_of_a_task_has_a_row_that_says_where() -> None:
    page = (ROOT / "docs" / "reference" / "tasks.md").read_text()
    places = {"queue": SHARED_NAMES, "function": FUNCTION_NAMES, "call": CALL_NAMES}
    for name in SHARED_NAMES | FUNCTION_NAMES | CALL_NAMES:
        row = re.search(rf"^\| `{name}` \| .*? \| ([a-z, ]+) \|", page, re.MULTILINE)
        assert row is not None, f"no row for the option {name}"
        assert row[1] == ", ".join(place for place, names in places.items() if name in names), name


def test_every_method_of_a_queue_a_function_a_job_and_a_task_is_described() -> None:
    for cls in (TaskQueue, TaskFunction, Schedules, Job, CurrentTask):
        properties = [name for name, value in vars(cls).items() if isinstance(value, property)]
        assert missing_from("tasks.md", [*public_methods(cls), *properties]) == [], cls
    for struct in (TaskInfo, ScheduleInfo, TaskError, Progress, Why, Cause):
        assert missing_from("tasks.md", struct.__struct_fields__) == [], struct
    assert missing_from("tasks.md", get_args(CauseKind)) == []
    assert missing_from("tasks.md", ["max_payload", "max_result", "new_ids"]) == []


def test_every_option_of_a_worker_has_a_row_with_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "workers.md").read_text()
    for name, parameter in inspect.signature(AsyncWorkerPool).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue  # names that are rejected
        row = re.search(rf"^\| `{name}` \| (.*?) ?\|", page, re.MULTILINE)
        assert row is not None, f"no row for the option {name}"
        if parameter.default is not inspect.Parameter.empty:
            assert str(parameter.default) in row[1], name


def test_every_method_of_a_worker_is_described() -> None:
    for cls in (AsyncWorkerPool, WorkerPool):
        properties = [name for name, value in vars(cls).items() if isinstance(value, property)]
        assert missing_from("workers.md", [*public_methods(cls), *set(properties) - {"name"}]) == [], cls
    assert missing_from("workers.md", field_names(Lane)) == []


def test_every_metric_is_described_as_it_is() -> None:
    page = metrics.PAGE.read_text()
    assert metrics.drawn(page) == page, "run: python -m tests.docs.metrics"
    assert not missing_from("metrics.md", METRICS)


def test_the_command_line_is_described_as_it_is() -> None:
    page = command_line.PAGE.read_text()
    assert command_line.drawn(page) == page, "run: python -m tests.docs.command_line"
    for name in SETTINGS:
        assert f"| `{name}` | `BULLPEN_{name.upper()}`" in page, name
    for code in ExitCode:
        assert f"| {code} |" in page or f"{code} after" in page, code


def test_every_statistic_is_described() -> None:
    names = [*field_names(PoolStats), *field_names(Percentiles), *field_names(WorkerInfo), *field_names(SessionInfo)]
    assert missing_from("stats.md", names) == []


def test_every_explanation_is_described() -> None:
    reasons = [reason.value for reason in Reason]
    assert missing_from("explain.md", [*field_names(Explanation), *field_names(RunningRequest), *reasons]) == []


def test_the_testing_tools_are_described() -> None:
    names = [*public_methods(ManualClock), *public_methods(ScriptedRuntime)]
    called_by_the_pool = {"start", "cancel", "kill", "join"}
    assert missing_from("testing.md", set(names) - called_by_the_pool) == []


def test_the_public_names_are_somewhere_in_the_reference() -> None:
    pages = (
        "pool.md",
        "async-pool.md",
        "pools.md",
        "errors.md",
        "stats.md",
        "events.md",
        "explain.md",
        "tasks.md",
        "workers.md",
    )
    for name in bullpen.__all__:
        if name != "__version__":
            assert any(not missing_from(page, [name]) for page in pages), name


def test_a_missing_name_is_found() -> None:
    class Colour(enum.Enum):
        NO_SUCH_COLOUR = 1

    assert missing_from("pool.md", [colour.name for colour in Colour]) == ["NO_SUCH_COLOUR"]
