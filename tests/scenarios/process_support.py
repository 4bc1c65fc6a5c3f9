"""What worker processes call in these tests, and how to look at processes. Imports little, for every worker does."""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from bullpen import WorkerBroken
from bullpen.pools.runtimes.process import wire

PATIENCE = 60.0

START_METHODS = ("forkserver", "spawn")


def eventually(happened: Callable[[], object], seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, f"{happened!r} has not happened"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether this process runs; one that is a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def state_of(pid: int) -> str:
    """The letter that the kernel has for its state; T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def descendants_of(pid: int) -> list[int]:
    children = children_of(pid)
    return [*children, *(below for child in children for below in descendants_of(child))]


def children_of(pid: int) -> list[int]:
    """The processes that it has started, by whichever of its threads."""
    try:
        lists = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for children in lists for child in children.split()]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def identity(value: Any) -> Any:
    return value


def kind_of(value: Any) -> str:
    return type(value).__name__


def each_of(values: list[Any]) -> Iterator[Any]:
    yield from values


def pid() -> int:
    return os.getpid()


def note_pid(file: Path) -> None:
    """Write the id of this process, in one step. Several processes may write the same file."""
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(str(os.getpid()))
    draft.rename(file)


def read_pid(file: Path) -> int:
    eventually(file.exists)
    return int(file.read_text())


# What may go wrong, wherever it happens.


def fail() -> None:
    raise ValueError("on purpose")


def leave() -> None:
    sys.exit(3)


def crash() -> None:
    os._exit(7)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    ctypes.string_at(0)


def say_and_crash(text: str) -> None:
    sys.stderr.write(text + "\n")
    os._exit(5)


def say_much(count: int) -> None:
    sys.stderr.write("y" * count + "\n")


class FailsWhenPickled:
    def __init__(self, deed: Callable[[], None]) -> None:
        self.deed = deed

    def __reduce__(self) -> Any:
        self.deed()
        return identity, (None,)


class FailsWhenRead:
    """Can be pickled; whoever reads it does the deed."""

    def __init__(self, deed: Callable[[], None]) -> None:
        self.deed = deed

    def __reduce__(self) -> Any:
        return _do, (self.deed,)


def _do(deed: Callable[[], None]) -> None:
    deed()


def give_failing_result(deed: Callable[[], None], when: str) -> Any:
    return FailsWhenPickled(deed) if when == "pickled" else FailsWhenRead(deed)


class Mute(Exception):
    """Fails when somebody asks what it says."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def fail_without_words() -> None:
    raise Mute


class Detached:
    """Fails when somebody looks at it; it can be a key."""

    def __repr__(self) -> str:
        raise RuntimeError("not bound to a session")


class Outside:
    """Does not even say what it is; nor can it be pickled."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("working outside of a request")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of a request")

    def __call__(self) -> None:
        pass

    def __reduce__(self) -> str:
        fail()
        return ""


class Closed(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("it is closed")


UNTELLABLE: dict[str, Callable[[], Any]] = {
    "key": lambda: {Detached(): threading.Lock()},
    "items": lambda: Closed(lock=threading.Lock()),
    "class": Outside,
    "error": lambda: FailsWhenPickled(fail_without_words),
}


def give_untellable(kind: str) -> Any:
    """What cannot be pickled, nor asked why."""
    return UNTELLABLE[kind]() if kind in UNTELLABLE else kind


def lose_voice() -> None:
    """From now on nothing that this worker has to say can be sent."""
    from bullpen.pools.runtimes.process import child

    child.worker.send = fail  # type: ignore[assignment]


def call(deed: Callable[[], None]) -> None:
    deed()


def crash_once(mark: Path) -> str:
    if not mark.exists():
        mark.touch()
        crash()
    return "done"


def be_killed_at_start(folder: Path, which: set[int]) -> None:
    """An initializer during which a worker is killed from outside, if it is one of these by number."""
    (folder / f"start-{os.getpid()}").touch()
    if len(list(folder.glob("start-*"))) in which:
        kill_self()


def divide() -> None:
    try:
        raise OSError("first")
    except OSError:
        1 / 0  # noqa: B018


def fail_in_depth() -> None:
    try:
        divide()
    except ZeroDivisionError as division:
        error = KeyError("last")
        error.place = "shelf"  # type: ignore[attr-defined]
        raise error from division


class NeedsTwo(Exception):
    """Can be pickled, but not read: its arguments are not those of its `__init__`."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def raise_needs_two() -> None:
    raise NeedsTwo("one", "two")


def raise_unpicklable() -> None:
    raise Unpicklable


# Things that take long.


def sleep_noting(file: Path, seconds: float = 600.0) -> None:
    note_pid(file)
    time.sleep(seconds)


def hold_the_gil(file: Path) -> None:
    """Loop in C, which lets go of the interpreter for nobody and looks at no signal."""
    note_pid(file)
    deque(itertools.repeat(0), maxlen=0)


def refuse_to_stop(file: Path) -> None:
    note_pid(file)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass


def stop_with_a_note(begun: Path, ended: Path) -> None:
    note_pid(begun)
    try:
        time.sleep(600)
    finally:
        ended.touch()


def start_others(folder: Path) -> None:
    """Start a child, one in a session of its own, and a grandchild; then wait."""
    script = (
        f"import os, pathlib, time; pathlib.Path({str(folder)!r}, f'other-{{os.getpid()}}').touch(); time.sleep(600)"
    )
    subprocess.Popen([sys.executable, "-S", "-c", script])
    subprocess.Popen([sys.executable, "-S", "-c", script], start_new_session=True)
    nested = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {script!r}], start_new_session=True)"
    )
    subprocess.Popen([sys.executable, "-S", "-c", nested])
    eventually(lambda: len(list(folder.glob("other-*"))) == 3)
    note_pid(folder / "worker")
    time.sleep(600)


def start_one(folder: Path) -> None:
    """Start a child of this worker, and wait."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    draft = folder / "draft"
    draft.write_text(str(child.pid))
    draft.rename(folder / "other")
    time.sleep(600)


def complain(text: str) -> None:
    print(text, file=sys.stderr)


# What pools do.


class Counter:
    """An instance that a worker keeps."""

    capacity = 3

    def __init__(self) -> None:
        self._total = 0
        self._folder = os.environ.get("COUNTER_FOLDER")

    def warm_up(self) -> None:
        self._note("warm")

    def close(self) -> None:
        self._note("closed")

    def _note(self, what: str) -> None:
        if self._folder is not None:
            Path(self._folder, f"{what}-{os.getpid()}").touch()

    def add(self, number: int) -> int:
        self._total += number
        return self._total

    def where(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        fail()

    def count(self, limit: int) -> Iterator[int]:
        yield from range(limit)

    def meet(self, folder: Path, count: int) -> int:
        """The thread that this runs on, once `count` calls are here at once."""
        (folder / f"here-{threading.get_ident()}").touch()
        eventually(lambda: len(list(folder.glob("here-*"))) >= count)
        return threading.get_ident()


class Odd:
    capacity = "several"

    def method(self) -> None:
        pass


def wrap_in_list(call: Callable[[], Any]) -> list[Any]:
    return [call()]


def wait_for(file: Path) -> int:
    eventually(file.exists)
    return os.getpid()


def spin(file: Path) -> None:
    note_pid(file)
    while True:
        time.sleep(0.001)


def say_broken() -> None:
    raise WorkerBroken("no more memory")


def invert(number: float) -> float:
    return 1 / number


def count_up(limit: int) -> Iterator[int]:
    yield from range(limit)


async def count_up_async(limit: int) -> AsyncIterator[int]:
    for number in range(limit):
        yield number


def count_noting(folder: Path) -> Iterator[int]:
    """Count without end, with a note of how far it has come."""
    try:
        for number in itertools.count():
            (folder / "count").write_text(str(number))
            yield number
    finally:
        (folder / "closed").touch()


def count_until_told(folder: Path) -> Iterator[int]:
    """Count without end: to one when its reader has `left`, on when the worker was told to look at what has come."""
    look: Any = signal.getsignal(wire.NUDGE)

    def look_and_note(*args: Any) -> None:
        look(*args)
        (folder / "told").touch()

    signal.signal(wire.NUDGE, look_and_note)
    for number in count_noting(folder):
        yield number
        eventually((folder / "told" if number else folder / "left").exists)


def count_of(folder: Path) -> int:
    """How far `count_noting` comes before it waits."""
    before = None
    while (now := (folder / "count").read_text()) != before:
        before = now
        time.sleep(0.1)
    return int(before or 0)


def count_then_fail(limit: int) -> Iterator[int]:
    yield from range(limit)
    fail()


def count_and_die(limit: int) -> Iterator[int]:
    yield from range(limit)
    os.kill(os.getpid(), signal.SIGKILL)


def count_and_crash(mark: str, after: int) -> Iterator[int]:
    for number in range(3):
        if number == after and not Path(mark).exists():
            Path(mark).touch()
            time.sleep(0.3)  # what was sent before has come
            os._exit(1)
        yield number


def yield_a_lock() -> Iterator[Any]:
    yield 1
    yield threading.Lock()


class Buffers:
    """Something that pickle sends as buffers of their own."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Buffers, ([pickle.PickleBuffer(part) for part in self.parts],)


def give_blocks(size: int) -> Iterator[bytes]:
    while True:
        yield bytes(size)


def say_and_return(say: Callable[[Any], object], value: Any) -> Any:
    say(value)
    return value


_blocks: list[Buffers] = []


def keep_block(block: Buffers) -> None:
    _blocks.append(block)


def kept_blocks() -> list[int]:
    """The byte that each of them consists of; -1 if it is not one."""
    found = [set(bytes(block.parts[0][::1000])) for block in _blocks]
    return [values.pop() if len(values) == 1 else -1 for values in found]


def give_block(number: int, size: int) -> Buffers:
    return Buffers([bytearray([number]) * size])


_forked: dict[int, tuple[int, int]] = {}  # pipes to processes that were forked here, and from them


def fork_with_block(block: Buffers, written: int | None) -> int:
    """Fork a process that keeps `block`, or writes into it first; its number."""
    (asked, ask), (answered, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        if written is not None:
            block.parts[0][:] = bytes([written]) * len(block.parts[0])
        os.read(asked, 1)
        os.write(answer, bytes(sorted(set(bytes(block.parts[0][::1000])))))
        os._exit(0)
    for end in (asked, answer):
        os.close(end)
    _forked[child] = ask, answered
    return child


def ask_forked(child: int) -> set[int]:
    """Which bytes are in the block that it has. It ends then."""
    ask, answered = _forked.pop(child)
    os.write(ask, b"?")
    try:
        return set(os.read(answered, 256))
    finally:
        os.waitpid(child, 0)
        for end in (ask, answered):
            os.close(end)


def write_in_fork(block: Buffers) -> set[int]:
    """Which bytes are in `block` after a forked child has written into it."""
    ask_forked(fork_with_block(block, 255))
    return set(bytes(block.parts[0][::1000]))


def yield_blocks(count: int, size: int) -> Iterator[Buffers]:
    for number in range(count):
        yield Buffers([bytearray([number]) * size])


def has_imported(name: str) -> bool:
    return name in sys.modules


def sign_in(folder: Path) -> None:
    """Leave the number of this process where others find it."""
    (folder / str(os.getpid())).touch()


def square_slowly(number: int) -> int:
    time.sleep(number % 5 / 1000)
    return number**2


def sleep_and_count(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def lock_or_number(number: int) -> Any:
    return number or threading.Lock()


def touch(file: Path) -> None:
    file.touch()


def append(file: Path, number: int) -> int:
    """Note in one go that this has run."""
    with file.open("ab", buffering=0) as out:
        out.write(f"{number}\n".encode())
    return number


def append_positive(file: Path, number: int) -> int:
    """As `append`, but for negative numbers."""
    if number < 0:
        raise ValueError(number)
    return append(file, number)


def append_sized(file: Path, item: Any) -> int:
    """As `append`; of buffers, how large they are."""
    return append(file, sum(map(len, item.parts)) if isinstance(item, Buffers) else item)


def append_and_give(file: Path, number: int, unreadable: int) -> Any:
    """As `append`; but what one of them gives back cannot be read."""
    append(file, number)
    return FailsWhenRead(fail) if number == unreadable else number


def append_or_stop(folder: Path, number: int, stops: tuple[int, ...]) -> int:
    """As `append`; but some wait until they may go on."""
    append(folder / "runs", number)
    if number in stops:
        (folder / f"stopped-{number}").touch()
        eventually((folder / f"go-{number}").exists)
    return number


def fork_and_leave(how: str) -> int:
    """Fork a child that leaves this function too; the exit code of the child."""
    child = os.fork()
    if not child:
        if how == "raises":
            fail()
        elif how == "exits":
            leave()
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_and_yield() -> Iterator[int]:
    """Fork a child that yields an item of this stream too; the exit code of the child."""
    child = os.fork()
    yield os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else -1


def fork_at(item: int, place: int, how: str, ran: str) -> int:
    """Note that an item runs. At one place fork a child that leaves this function too; the exit code of the child."""
    note(ran)
    return fork_and_leave(how) if item == place else 0


def note(ran: str) -> None:
    with open(ran, "a") as file:
        file.write("x")


class ForksWhenUnpickled:
    """Forks a child that leaves its own unpickling too."""

    def __setstate__(self, state: Any) -> None:
        fork_and_leave("returns")

    def __getstate__(self) -> str:
        return "state"


def note_with(_: ForksWhenUnpickled, ran: str) -> None:
    note(ran)


class ForksAtStart:
    """An instance whose constructor forks a child, which leaves it too. It notes when that and `warm_up` begin."""

    def __init__(self, ran: str) -> None:
        note(ran)
        fork_and_leave("returns")
        self._ran = ran

    def warm_up(self) -> None:
        note(self._ran)

    def hello(self) -> str:
        return "hello"


def fork_at_start() -> None:
    """An initializer that forks a child, which becomes a worker too if nothing ends it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)


def send_raw(data: bytes, then: str = "wait") -> None:
    """Write bytes to the channel of this worker that its code would not, and wait, return or crash."""
    from bullpen.pools.runtimes.process import child

    child.worker._channel.sendall(data)
    if then == "wait":
        time.sleep(600)
    elif then == "crash":
        crash()


def close_descriptors(then: str) -> None:
    """Close all descriptors but the standard streams, as daemons do, and go on."""
    os.closerange(3, 1000)
    keep = [socket.socketpair() for _ in range(20)]  # one of them has the number of the channel now
    if then == "wait":
        time.sleep(600)
    others.append(keep)


others: list[Any] = []  # that a worker keeps


def descriptors_of_a_program() -> list[str]:
    """The descriptors that a program gets which is started without closing them."""
    reads, writes = os.pipe()
    pid = os.posix_spawn(
        "/bin/ls", ["ls", "-l", "/proc/self/fd"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writes, 1)]
    )
    os.close(writes)
    os.waitpid(pid, 0)
    with open(reads) as file:
        return [line.split(" -> ")[1] for line in file.read().splitlines() if " -> " in line]


def be_interrupted_while_sending() -> Iterator[list[Any]]:
    """A stream of large items; a signal handler raises while one of them is being sent."""

    def interrupt(_: int, frame: Any) -> None:
        if frame.f_code.co_name == "send_all":
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise TimeoutError

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    while True:
        yield [pickle.PickleBuffer(bytearray(100_000)) for _ in range(200)]


def fork_and_tell(tell: Any) -> int:
    """Report from a forked child; the exit code of the child."""
    child = os.fork()
    if not child:
        try:
            tell("from the child")
        except RuntimeError:
            os._exit(5)
        os._exit(6)
    tell("from the worker")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def leave_the_group_and_stay(file: Path) -> None:
    """Leave the process group of this worker, and ignore all cancels."""
    os.setpgid(0, os.getpgid(os.getppid()))
    note_pid(file)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass


def be_killed_at_the_next_thread(file: Path) -> None:
    """Run until this worker starts a thread for another request, and is killed by that."""
    threading.Thread.start = lambda self: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    note_pid(file)
    time.sleep(600)


# Errors that raise when they are looked at.


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class BrokenWithoutText(WorkerBroken):
    __str__ = __repr__ = NoText.__str__


class NoFields(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise ValueError

    __context__ = __suppress_context__ = __cause__  # type: ignore[assignment]


class NoAttributes(Exception):
    def __getattribute__(self, _: str) -> Any:
        raise ValueError

    def __setattr__(self, *_: Any) -> None:
        raise ValueError


class Nameless(type):
    def __getattribute__(cls, _: str) -> Any:
        raise ValueError


class NoName(Exception, metaclass=Nameless):
    pass


class NoLength(Exception):
    """False, as an empty list of errors is."""

    def __len__(self) -> int:
        return 0


class NoTruth(Exception):
    def __bool__(self) -> bool:
        raise ValueError


def fail_with(name: str) -> None:
    raise globals()[name]("reason")
