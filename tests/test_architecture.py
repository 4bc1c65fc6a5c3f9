"""Who may import whom. Every import counts: at the top, type-only, inside a function, relative, by literal name.

A module belongs to the layer with the longest matching name. A layer may always import itself; `*` stands for one
name, so that each adapter is a layer of its own and never sees a sibling. A module without a layer fails.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

ANY_STDLIB = frozenset(sys.stdlib_module_names)

# Enough to decide with. What is not here could start a thread, open a socket, read a clock or roll dice.
PURE_STDLIB = frozenset(
    "__future__ abc bisect collections contextlib dataclasses enum functools heapq inspect itertools "
    "math operator re types typing warnings weakref".split()
)
PURE_TASK_STDLIB = PURE_STDLIB | frozenset(
    "base64 binascii contextvars datetime decimal difflib hashlib hmac json pickle string struct traceback uuid zlib "
    "zoneinfo".split()
)


@dataclass(frozen=True)
class Layer:
    name: str
    may_import: str = ""
    third_party: str = ""
    stdlib: frozenset[str] = ANY_STDLIB
    pure: bool = False


GROUND = "errors escaping primitives telemetry"
TOLD = "pools.checks pools.instances pools.options pools.policies"
FACE = f"{TOLD} pools.dispatch pools.supervision pools.maps pools.streams pools.runtimes.port pools.runtimes.open"
PROCESS = "pools.runtimes.process"
MODEL = f"{GROUND} tasks.model"
SERVER = "tasks.storage.port tasks.storage.notifications tasks.storage.server"

LAYERS = [
    Layer("version"),
    Layer("escaping"),
    Layer("errors", "escaping"),
    Layer("primitives"),
    Layer("trusted_files"),
    Layer("telemetry", "escaping"),
    # Decisions: pure, and strangers to each other.
    Layer("pools.dispatch", GROUND, stdlib=PURE_STDLIB, pure=True),
    Layer("pools.dispatch.futures", f"{GROUND} pools.dispatch pools.runtimes.port"),
    Layer("tasks.model", GROUND, third_party="cronsim msgspec", stdlib=PURE_TASK_STDLIB, pure=True),
    # Wing 1: run this now. What a user holds, the options, the pool's own life, and where work runs.
    Layer("pools", f"{GROUND} {FACE} trusted_files"),
    Layer("pools.checks", GROUND),
    Layer("pools.instances", f"{GROUND} pools.dispatch pools.runtimes.port"),
    Layer("pools.policies", f"{GROUND} pools.dispatch pools.checks pools.instances"),
    Layer("pools.options", f"{GROUND} {TOLD} pools.dispatch pools.runtimes.port"),
    Layer("pools.supervision", f"{GROUND} {TOLD} pools.dispatch pools.supervision pools.runtimes.port"),
    Layer("pools.supervision.restarts", GROUND, stdlib=PURE_STDLIB, pure=True),
    Layer("pools.supervision.scaling", GROUND, stdlib=PURE_STDLIB, pure=True),
    Layer("pools.maps", f"{GROUND} {FACE} pools"),
    Layer("pools.streams", f"{GROUND} {FACE} pools"),
    Layer("pools.runtimes", "pools.runtimes.port"),
    Layer("pools.runtimes.port", f"{GROUND} pools.dispatch"),
    Layer("pools.runtimes.open", f"{GROUND} pools.runtimes"),
    Layer("pools.runtimes.*", f"{GROUND} pools.dispatch pools.runtimes.port"),
    Layer(PROCESS, f"{GROUND} pools.dispatch pools.runtimes.port {PROCESS}", third_party="cloudpickle"),
    Layer(
        "pools.runtimes.program",
        f"{GROUND} pools.dispatch pools.runtimes.port pools.runtimes.program {PROCESS}.calls {PROCESS}.items "
        f"{PROCESS}.forkserver_client {PROCESS}.output {PROCESS}.supervised {PROCESS}.io_thread {PROCESS}.wire",
        third_party="msgspec",
    ),
    # What worker processes import: the standard library, and what they tell of an error.
    Layer(f"{PROCESS}.arena"),
    Layer(f"{PROCESS}.wire", f"{PROCESS}.arena", third_party="cloudpickle"),
    Layer(f"{PROCESS}.failures", f"{PROCESS}.wire"),
    Layer(f"{PROCESS}.pickle_errors", f"errors {PROCESS}.failures"),
    Layer(f"{PROCESS}.calls", f"{PROCESS}.wire"),
    Layer(
        f"{PROCESS}.child",
        f"errors {PROCESS}.arena {PROCESS}.calls {PROCESS}.wire {PROCESS}.failures {PROCESS}.pickle_errors",
    ),
    Layer(f"{PROCESS}.orphans"),
    Layer(f"{PROCESS}.bootstrap", f"{PROCESS}.child"),
    Layer(f"{PROCESS}.forkserver", f"{PROCESS}.bootstrap {PROCESS}.child {PROCESS}.orphans {PROCESS}.wire"),
    # Wing 2: run this sometime. Where tasks live, who enqueues them, who runs them.
    Layer("tasks"),
    Layer("tasks.storage", "tasks.storage.port"),
    Layer("tasks.storage.port", MODEL, third_party="msgspec"),
    Layer("tasks.storage.open", f"{GROUND} tasks.storage"),
    Layer("tasks.storage.notifications", GROUND),
    Layer("tasks.storage.batcher", MODEL),
    Layer("tasks.storage.single_flight"),
    Layer("tasks.storage.server", f"{MODEL} {SERVER} tasks.storage.batcher tasks.storage.single_flight"),
    Layer("tasks.storage.rules", f"{MODEL} tasks.storage.port"),
    Layer("tasks.storage.*", f"{MODEL} tasks.storage.port tasks.storage.rules trusted_files", third_party="msgspec"),
    Layer("tasks.storage.schedules", f"{MODEL} tasks.storage.port"),
    Layer("tasks.storage.postgres", f"{MODEL} {SERVER}", third_party="asyncpg msgspec psycopg sqlalchemy"),
    Layer("tasks.storage.redis", f"{MODEL} {SERVER}", third_party="msgspec redis hiredis"),
    Layer(
        "tasks.client",
        f"{MODEL} tasks.storage.port tasks.storage.schedules tasks.storage.open tasks.storage.single_flight",
        third_party="msgspec",
    ),
    Layer(
        "tasks.worker",
        f"{MODEL} tasks.storage.port tasks.storage.schedules pools version",
        third_party="msgspec uvloop",
    ),
    # Interfaces of others, each with its framework.
    Layer("integrations"),
    Layer(
        "integrations.django",
        f"{MODEL} tasks.storage.port tasks.client",
        third_party="asgiref django django_tasks",
    ),
    Layer(
        "integrations.prometheus",
        f"{GROUND} pools tasks",
        third_party="prometheus_client",
    ),
    Layer(
        "integrations.prometheus_server",
        f"{GROUND} integrations.prometheus tasks",
        third_party="prometheus_client",
    ),
    Layer("integrations.otel", f"{MODEL} tasks.client", third_party="opentelemetry"),
    Layer("integrations.sentry", f"{MODEL} tasks.client", third_party="sentry_sdk"),
    # What brings both wings together.
    Layer("testing", f"{GROUND} pools tasks", third_party="hypothesis msgspec pytest sqlalchemy"),
    Layer("web", "ALL", third_party="jinja2 markupsafe msgspec starlette uvicorn"),
    Layer("cli", "ALL", third_party="msgspec"),
    Layer("cli.top", "ALL", third_party="rich textual"),
    Layer("__main__", "ALL"),
    Layer("", "ALL"),  # bullpen/__init__.py
]

# What the deciding layers leave to their callers: the time, the random numbers and the threads are arguments.
EFFECTS_IN_PRIMITIVES = {"SystemClock", "random", "start_loop", "start_thread", "system_clock"}
EFFECTFUL_CALLS = {"monotonic", "now", "perf_counter", "today", "urandom", "utcnow", "uuid1", "uuid4", "uuid7"}
EFFECTFUL_BUILTINS = {"__import__", "input", "open", "print"}


def test_every_module_keeps_to_its_layer() -> None:
    modules = read_modules(SOURCE)
    assert "bullpen.errors" in modules, "found no source; this test would pass on anything"
    known = frozenset(modules)
    problems = [problem for module in modules.values() for problem in find_problems(module, known)]
    assert not problems, "\n" + "\n".join(problems)


@dataclass(frozen=True)
class Module:
    name: str
    tree: ast.Module
    is_package: bool = False

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]


def read_modules(source: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, ast.parse(path.read_text(), str(path)), is_package)
    return modules


def find_problems(module: Module, known: frozenset[str]) -> Iterator[str]:
    home = find_layer(module.name)
    if home is None:
        yield f"{module.name}: no layer in tests/test_architecture.py; say there who it may import"
        return
    layer, _ = home
    for line, imported in find_imports(module, known):
        if find_layer(imported) != home and (reason := rejection(layer, imported)):
            yield f"{module.name}:{line}: imports {imported}: {reason}"
    for line, name in find_copied_primitives(module):
        yield f"{module.name}:{line}: copies primitives.{name}; read it through the module, for tests replace it"
    if layer.pure:
        for line, effect in find_effects(module):
            yield f"{module.name}:{line}: uses {effect}: {layer.name} decides; time, luck and threads are arguments"


def find_layer(module: str) -> tuple[Layer, str] | None:
    """The layer with the longest matching name, and what that name stands for here."""
    top, *parts = module.split(".")
    if top != "bullpen":
        return None
    best: tuple[tuple[int, int], Layer, str] | None = None
    for layer in LAYERS:
        pattern = layer.name.split(".") if layer.name else []
        if len(pattern) > len(parts) or (not pattern and parts):
            continue
        if any(expected not in ("*", part) for expected, part in zip(pattern, parts, strict=False)):
            continue
        rank = (len(pattern), -pattern.count("*"))
        if best is None or rank > best[0]:
            best = rank, layer, ".".join(["bullpen", *parts[: len(pattern)]])
    return best[1:] if best else None


def rejection(layer: Layer, imported: str) -> str | None:
    """Why this layer may not import that from outside itself, or None if it may."""
    top = imported.partition(".")[0]
    if top == "bullpen":
        allowed = ["bullpen"] if layer.may_import == "ALL" else [f"bullpen.{name}" for name in layer.may_import.split()]
        if any(imported == name or imported.startswith(f"{name}.") for name in allowed):
            return None
        return f"{layer.name} may import {layer.may_import or 'the standard library only'}"
    if top in ANY_STDLIB:
        return None if top in layer.stdlib else f"{layer.name} only decides; that module could act"
    return None if top in layer.third_party.split() else f"{layer.name} may not depend on that package"


def find_imports(module: Module, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=origin, names=names, level=level):
                base = absolute(module, origin or "", level)
                for alias in names:
                    child = f"{base}.{alias.name}"
                    yield node.lineno, child if child in known else base
            case ast.Call(func=func, args=[ast.Constant(value=str(target)), *_]) if called_name(func) in (
                "import_module",
                "__import__",
            ):
                level = len(target) - len(target.lstrip("."))
                yield node.lineno, absolute(module, target.lstrip("."), level)


def absolute(module: Module, name: str, level: int) -> str:
    if level == 0:
        return name
    package = module.package.split(".")
    base = package[: len(package) - (level - 1)]
    return ".".join([*base, name] if name else base)


def called_name(func: ast.expr) -> str:
    match func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def find_copied_primitives(module: Module) -> Iterator[tuple[int, str]]:
    """`from bullpen.primitives import worker_lock` would escape a replacement; classes and constants may be copied."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and absolute(module, node.module or "", node.level) == "bullpen.primitives":
            yield from ((node.lineno, alias.name) for alias in node.names if not alias.name[0].isupper())


def find_effects(module: Module) -> Iterator[tuple[int, str]]:
    aliases = primitives_aliases(module)
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in aliases:
                if name in EFFECTS_IN_PRIMITIVES:
                    yield node.lineno, f"primitives.{name}"
            case ast.Attribute(value=ast.Attribute(attr="primitives"), attr=name):
                if name in EFFECTS_IN_PRIMITIVES:
                    yield node.lineno, f"primitives.{name}"
            case ast.ImportFrom(names=names) if absolute(module, node.module or "", node.level) == "bullpen.primitives":
                for alias in names:
                    if alias.name in EFFECTS_IN_PRIMITIVES:
                        yield node.lineno, f"primitives.{alias.name}"
            case ast.Call(func=ast.Attribute(attr=name)) if name in EFFECTFUL_CALLS:
                yield node.lineno, f".{name}()"
            case ast.Call(func=ast.Name(id=name)) if name in EFFECTFUL_CALLS | EFFECTFUL_BUILTINS:
                yield node.lineno, f"{name}()"


def primitives_aliases(module: Module) -> set[str]:
    names = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {a.asname or a.name for a in node.names if a.name.rpartition(".")[2] == "primitives"}
    return names


# The test, tested: each of these sources breaks one rule.

KNOWN = frozenset(
    """
    bullpen bullpen.errors bullpen.primitives bullpen.pools.dispatch bullpen.pools.dispatch.ready_queue
    bullpen.tasks.model bullpen.tasks.model.task
    bullpen.pools bullpen.pools.pool bullpen.pools.runtimes bullpen.pools.runtimes.port bullpen.pools.runtimes.thread
    bullpen.pools.runtimes.process bullpen.pools.runtimes.process.child bullpen.tasks.storage.redis bullpen.cli.main
    """.split()
)

BREACHES = {
    "a top-level import": ("pools.dispatch.x", "import bullpen.pools.pool"),
    "a from-import": ("pools.dispatch.x", "from bullpen.pools import pool"),
    "a type-only import": (
        "pools.dispatch.x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bullpen.pools.pool import Pool",
    ),
    "an import in a function": ("pools.dispatch.x", "def f():\n    import bullpen.tasks.model.task"),
    "a relative import": ("pools.dispatch.x", "from ..pool import Pool"),
    "a relative import of a package": ("pools.dispatch.x", "from .. import pool"),
    "an import by name": ("pools.x", "import importlib\nimportlib.import_module('bullpen.pools.runtimes.thread')"),
    "a relative import by name": (
        "pools.x",
        "import importlib\nimportlib.import_module('..tasks.model.task', __package__)",
    ),
    "the front door": ("pools.dispatch.x", "from bullpen import Pool"),
    "tasks in dispatch": ("pools.dispatch.x", "import bullpen.tasks.model.task"),
    "dispatch in tasks": ("tasks.model.x", "import bullpen.pools.dispatch.ready_queue"),
    "a sibling adapter": ("pools.runtimes.thread", "from bullpen.pools.runtimes import process"),
    "a sibling adapter's part": ("pools.runtimes.thread", "import bullpen.pools.runtimes.process.child"),
    "an adapter in a pool": ("pools.x", "from bullpen.pools.runtimes.thread import ThreadRuntime"),
    "an adapter in the adapters' package": ("pools.runtimes", "import bullpen.pools.runtimes.thread"),
    "an adapter in its port": ("pools.runtimes.port", "from . import thread"),
    "the app's side in a worker process": ("pools.runtimes.process.child", "import bullpen.pools.runtimes.process"),
    "dispatch in a worker process": ("pools.runtimes.process.wire", "import bullpen.pools.dispatch.ready_queue"),
    "the pool in a runtime": ("pools.runtimes.process.child", "from ...pool import Pool"),
    "anything of ours in errors": ("errors", "from bullpen import primitives"),
    "the command line in testing": ("testing.x", "import bullpen.cli.main"),
    "a thread in dispatch": ("pools.dispatch.x", "import threading"),
    "a hidden thread in dispatch": ("pools.dispatch.x", "from concurrent import futures"),
    "a clock in dispatch": ("pools.dispatch.x", "def f():\n    from time import monotonic"),
    "dice in dispatch": ("pools.dispatch.x", "import random"),
    "a socket in tasks": ("tasks.model.x", "import socket"),
    "the wall clock in tasks": ("tasks.model.x", "from datetime import datetime\ndatetime.now(None)"),
    "dice in tasks": ("tasks.model.x", "from uuid import uuid4\nuuid4()"),
    "the clock of primitives": (
        "pools.dispatch.x",
        "from bullpen import primitives\nprimitives.system_clock.wait(None, 1)",
    ),
    "the dice of primitives": ("pools.dispatch.x", "import bullpen.primitives as p\np.random.uniform(0, 1)"),
    "the threads of primitives": (
        "pools.dispatch.x",
        "import bullpen.primitives\nbullpen.primitives.start_thread(f, 'x')",
    ),
    "a clock handed in but read": ("pools.dispatch.x", "def f(clock):\n    return clock.monotonic()"),
    "a file": ("pools.dispatch.x", "open('x')"),
    "a copied primitive": ("pools.x", "from bullpen.primitives import worker_lock"),
    "a package in dispatch": ("pools.dispatch.x", "import msgspec"),
    "another adapter's package": ("tasks.storage.redis", "import asyncpg"),
    "a module without a layer": ("helpers", ""),
    "a package without a layer": ("helpers.strings", "import re"),
}

KEEPS = {
    "dispatch decides": (
        "pools.dispatch.x",
        "import heapq\nfrom collections.abc import Callable\nfrom bullpen import errors, primitives\n"
        "from bullpen.pools.dispatch.ready_queue import ReadyQueue\nfrom bullpen.primitives import Lock\n"
        "primitives.worker_lock()",
    ),
    "an adapter and its port": ("pools.runtimes.process", "import threading\nfrom bullpen.pools.runtimes import port"),
    "an adapter and its own parts": ("pools.runtimes.process", "from bullpen.pools.runtimes.process import child"),
    "the pool and the port": ("pools.x", "import time\nfrom bullpen.pools.runtimes.port import Runtime"),
    "a driver in its adapter": ("tasks.storage.redis", "def f():\n    import redis.asyncio"),
    "the command line": ("cli.main", "from bullpen import Pool\nimport bullpen.pools.runtimes.thread"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_found(breach: str) -> None:
    assert problems_of(*BREACHES[breach])


@pytest.mark.parametrize("case", KEEPS)
def test_allowed_code_is_not_reported(case: str) -> None:
    assert problems_of(*KEEPS[case]) == []


def test_a_relative_import_in_a_package_starts_at_the_package() -> None:
    source = "from .ready_queue import ReadyQueue\nfrom ...tasks.model import task"
    package = Module("bullpen.pools.dispatch", ast.parse(source), is_package=True)
    assert [name for _, name in find_imports(package, KNOWN)] == [
        "bullpen.pools.dispatch.ready_queue",
        "bullpen.tasks.model.task",
    ]


def problems_of(module: str, source: str) -> list[str]:
    return list(find_problems(Module(f"bullpen.{module}", ast.parse(source)), KNOWN))
