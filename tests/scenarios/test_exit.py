"""The end of the process, in every state that a pool can be in. Each script runs in an interpreter of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from .support import PATIENCE, printed, run_script


def test_a_pool_that_was_never_used() -> None:
    assert printed("from bullpen import Pool; pool = Pool(4); print('end')") == "end\n"


@pytest.mark.parametrize(
    "options",
    ["", "min_workers=3", "max_queue=0", "recycling=RecyclePolicy(idle_timeout=None)", "max_queue=5, min_workers=1"],
)
def test_idle_workers(options: str) -> None:
    script = f"""
        from bullpen import Pool, RecyclePolicy
        pool = Pool(3, {options})
        print(pool.submit(abs, -1).result())
        """
    assert printed(script) == "1\n"


def test_running_requests_finish() -> None:
    script = """
        import threading, time
        from bullpen import Pool

        entered, main_ends = threading.Event(), threading.Event()

        def slow():
            entered.set()
            main_ends.wait()
            time.sleep(0.1)
            print("finished", flush=True)

        pool = Pool(1)
        pool.submit(slow)
        entered.wait()
        print("main ends", flush=True)
        main_ends.set()
        """
    assert printed(script) == "main ends\nfinished\n"


@pytest.mark.parametrize("options", ["", "max_queue=50"])
def test_waiting_requests_are_run(options: str) -> None:
    script = f"""
        import sys, time
        from bullpen import Pool

        pool = Pool(2, {options})
        pool.submit(time.sleep, 0.2)
        pool.submit(time.sleep, 0.2)
        for _ in range(20):
            pool.serve(sys.stdout.write, "ran\\n")
        """
    assert printed(script) == "ran\n" * 20


@pytest.mark.parametrize("used", [True, False])
def test_requests_that_wait_in_a_paused_pool_are_run_or_rejected_with_a_reason(used: bool) -> None:
    script = f"""
        import logging
        from bullpen import Pool

        logging.disable(logging.CRITICAL)
        pool = Pool(2)
        if {used}:
            pool.submit(int).result()
        pool.pause()
        future = pool.submit(abs, -1)
        future.add_done_callback(lambda future: print(future.exception() is None or type(future.exception()).__name__))
        """
    outcome = run_script(script)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out in ("True\n", "WorkerStartFailed\n", "PoolFailed\n", "PoolClosed\n")


def test_code_on_main_at_the_end_may_wait_for_waiting_requests_and_close_the_pool() -> None:
    script = """
        import sys
        from bullpen import Pool

        pool = Pool(1)
        pool.pause()
        futures = []
        pool.submit(lambda: print(futures[0].result(), futures[1].result(), futures[2].done()))
        pool.submit(pool.close)
        futures += [pool.submit(abs, -number) for number in range(3)]
        import atexit; atexit.register(lambda: print(pool.stats().completed, pool.stats().queued, pool.stats().state))
        """
    assert printed(script, within=5) == "0 1 False\n5 0 closed\n"


def test_code_on_main_at_the_end_may_wait_in_foreign_code_or_gets_an_error() -> None:
    script = """
        import concurrent.futures, logging
        from bullpen import NestedWait, Pool

        logging.disable(logging.CRITICAL)
        pool = Pool(1)
        pool.pause()

        def outer():
            try:
                print(len(concurrent.futures.wait(futures).done))
            except NestedWait:
                print("told")

        pool.submit(outer)
        futures = [pool.submit(abs, -number) for number in range(3)]
        """
    assert printed(script, within=5) in ("3\n", "told\n")


def test_code_on_main_at_the_end_may_wait_for_a_pool_that_was_paused() -> None:
    script = """
        from bullpen import Pool

        pools = [Pool(1) for _ in range(6)]
        for pool in pools:
            pool.submit(int).result()
            pool.pause()
        idle = Pool(1)
        idle.pause()
        futures = [pool.submit(abs, -number) for number, pool in enumerate(pools)]
        idle.submit(lambda: print(sum(future.result() for future in futures)))
        """
    assert printed(script, within=5) == "15\n"


def test_a_map_without_a_reader_is_run() -> None:
    script = """
        from bullpen import Pool
        ran = []
        pool = Pool(2)
        pool.map(ran.append, range(3000))
        import atexit; atexit.register(lambda: print(len(ran)))
        """
    assert printed(script) == "3000\n"


def test_results_can_still_be_read_in_an_atexit_handler() -> None:
    script = """
        import atexit
        from bullpen import Pool
        pool = Pool(1)
        future = pool.submit(abs, -5)
        atexit.register(lambda: print(future.result(), pool.stats().state))
        """
    assert printed(script) == "5 closed\n"


@pytest.mark.parametrize(
    "call", ["submit(int)", "serve(int)", "do(int)", "map(int, ['1'])", "using(timeout=1).do(int)"]
)
@pytest.mark.parametrize("made", ["before", "in the handler"])
def test_work_that_comes_in_an_atexit_handler_is_rejected_in_words(call: str, made: str) -> None:
    script = f"""
        import atexit
        from bullpen import Pool, PoolClosed

        pool = Pool(2, name="press")

        def late():
            late_pool = pool if {made == "before"} else Pool(2, name="press", min_workers=1)
            try:
                late_pool.{call}
            except PoolClosed as error:
                print(error)
            late_pool.close()

        atexit.register(late)
        """
    assert printed(script) == "pool 'press' takes no new work: the interpreter is shutting down\n"


def test_the_first_import_in_an_atexit_handler() -> None:
    script = """
        import atexit, threading

        def late():
            from bullpen import Pool, PoolClosed
            try:
                print(Pool(1).submit(int).result())
            except PoolClosed as error:
                print("closed")

        atexit.register(late)
        """
    assert printed(script) in ("0\n", "closed\n")


def test_a_thread_that_outlives_main_is_served_or_rejected_in_words() -> None:
    script = """
        import threading
        from bullpen import Pool, PoolClosed

        pool = Pool(2)
        main = threading.current_thread()

        def late():
            main.join()
            for _ in range(100):
                try:
                    assert pool.submit(abs, -1).result() == 1
                except PoolClosed as error:
                    assert "shutting down" in str(error)
                    print("rejected")
                    return
            print("served")

        threading.Thread(target=late).start()
        """
    assert printed(script) in ("rejected\n", "served\n")


@pytest.mark.parametrize("daemon", [None, True])
def test_a_thread_that_a_request_started_is_waited_for_unless_it_is_a_daemon(daemon: bool | None) -> None:
    script = f"""
        import threading, time
        from bullpen import Pool

        def outlive():
            time.sleep(0.2)
            print("done")

        pool = Pool(1)
        pool.submit(lambda: threading.Thread(target=outlive, daemon={daemon}).start()).result()
        """
    assert printed(script) == ("" if daemon else "done\n")


def test_a_request_that_submits_while_the_interpreter_ends_is_served_or_rejected_in_words() -> None:
    script = """
        import threading, time
        from bullpen import Pool, PoolClosed

        pool = Pool(1)
        entered = threading.Event()

        def again():
            entered.set()
            time.sleep(0.2)
            try:
                print(pool.submit(abs, -1).result())
            except PoolClosed:
                print("rejected")

        pool.submit(again)
        entered.wait()
        """
    assert printed(script) in ("rejected\n", "1\n")


def test_a_request_that_started_others_before_the_end_gets_their_results() -> None:
    script = """
        import threading, time
        from bullpen import Pool

        pool = Pool(1)
        entered = threading.Event()

        def outer():
            inner = [pool.submit(abs, -number) for number in range(10)]
            entered.set()
            time.sleep(0.2)
            print(sum(future.result() for future in inner))

        pool.submit(outer)
        entered.wait()
        """
    assert printed(script) == "45\n"


def test_a_request_that_waits_in_foreign_code_at_the_end_does_not_hang() -> None:
    script = """
        import concurrent.futures, logging, threading, time
        from bullpen import Pool

        logging.disable(logging.CRITICAL)
        pool = Pool(1)
        entered = threading.Event()

        def outer():
            inner = [pool.submit(abs, -number) for number in range(10)]
            entered.set()
            time.sleep(0.2)
            print(len(concurrent.futures.wait(inner, timeout=5).done))

        pool.submit(outer)
        entered.wait()
        """
    assert printed(script, within=10) == "10\n"


def test_a_pool_that_a_generator_holds_open() -> None:
    script = """
        from bullpen import Pool

        def results():
            with Pool(2) as pool:
                yield from pool.map(abs, range(5))

        kept = results()
        print(next(kept))
        """
    assert printed(script) == "0\n"


@pytest.mark.parametrize("daemon", [True, False])
def test_a_pool_that_another_thread_holds_open(daemon: bool) -> None:
    script = f"""
        import threading, time
        from bullpen import Pool

        ready = threading.Event()

        def hold():
            with Pool(2) as pool:
                pool.submit(time.sleep, 0.1)
                pool.submit(print, "ran", flush=True).result()
                ready.set()
                time.sleep(0.3)

        threading.Thread(target=hold, daemon={daemon}).start()
        ready.wait()
        """
    assert printed(script) == "ran\n"


def test_an_abandoned_thread_does_not_hold_up_the_exit() -> None:
    script = """
        import logging, threading, time
        from bullpen import CallPolicy, Pool, RestartPolicy, RunTimeout

        logging.disable(logging.CRITICAL)
        pool = Pool(1, calls=CallPolicy(run_timeout=0.05), restarts=RestartPolicy(max_abandoned=1))
        print(type(pool.submit(time.sleep, 3600).exception()).__name__)
        while not pool.stats().abandoned:
            time.sleep(0.01)
        print(pool.submit(abs, -1).result())
        """
    assert printed(script, within=10) == "RunTimeout\n1\n"


def test_a_thread_left_behind_by_close_does_not_hold_up_the_exit() -> None:
    script = """
        import logging, threading, time
        from bullpen import Pool

        logging.disable(logging.CRITICAL)
        pool = Pool(1)
        future = pool.submit(time.sleep, 3600)
        while not future.running():
            time.sleep(0.01)
        pool.close(grace=0.05)
        print(type(future.exception()).__name__)
        """
    assert printed(script, within=10) == "WorkerAbandoned\n"


@pytest.mark.parametrize(
    "wait", ["future.result()", "pool.do(go.wait, 20)", "list(pool.map(go.wait, [20]))", "pool.close()"]
)
def test_control_c_while_main_waits_ends_it_tidily(wait: str) -> None:
    source = f"""
        import sys, threading, time
        from bullpen import Pool, primitives

        def tell(main=threading.get_ident()):
            while sys._current_frames()[main].f_code is not primitives.SystemClock.wait.__code__:
                time.sleep(0.01)
            print("waiting", flush=True)

        go = threading.Event()
        with Pool(2) as pool:
            future = pool.submit(go.wait, 20)
            while not future.running():
                time.sleep(0.01)
            try:
                threading.Thread(target=tell, daemon=True).start()
                {wait}
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                go.set()
                raise
        """
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=PATIENCE)
        finally:
            child.kill()
    assert out == "interrupted\n"
    assert child.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_sys_exit_inside_a_request_ends_only_the_request() -> None:
    script = """
        import sys
        from bullpen import Pool

        with Pool(1) as pool:
            print(repr(pool.submit(sys.exit, 3).exception()))
            print(pool.submit(abs, -1).result())
        """
    assert printed(script) == "SystemExit(3)\n1\n"


def test_sys_exit_in_main_runs_waiting_requests_and_keeps_its_code() -> None:
    script = """
        import sys, time
        from bullpen import Pool
        pool = Pool(1)
        pool.submit(time.sleep, 0.1)
        pool.submit(print, "ran")
        sys.exit(7)
        """
    outcome = run_script(script)
    assert (outcome.code, outcome.out, outcome.err) == (7, "ran\n", "")


def test_an_exception_that_leaves_with_cancels_what_waits() -> None:
    script = """
        import time
        from bullpen import Pool

        with Pool(1) as pool:
            future = pool.submit(time.sleep, 0.1)
            while not future.running():
                pass
            for _ in range(5):
                pool.submit(print, "must not run")
            raise LookupError("out")
        """
    outcome = run_script(script)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.count("Traceback") == 1
    assert outcome.err.rstrip().endswith("LookupError: out")


def test_a_pool_made_and_left_to_the_collector_as_the_interpreter_ends() -> None:
    script = """
        from bullpen import Pool

        class Holder:
            def __init__(self):
                self.pool = Pool(2)
                self.me = self

        holder = Holder()
        holder.pool.submit(print, "ran")
        del holder
        """
    assert printed(script) == "ran\n"


def test_close_inside_a_request() -> None:
    script = """
        from bullpen import Pool
        pool = Pool(2)
        print(pool.submit(pool.close).result())
        pool.close()
        print(pool.stats().state)
        """
    assert printed(script) == "None\nclosed\n"


def test_close_while_closing() -> None:
    script = """
        import threading, time
        from bullpen import Pool

        with Pool(2) as pool:
            pool.submit(time.sleep, 0.1)
            with pool:
                pool.submit(time.sleep, 0.1)
            closers = [threading.Thread(target=pool.close) for _ in range(5)]
            for closer in closers:
                closer.start()
            pool.shutdown(wait=False)
            pool.shutdown(cancel_futures=True)
            pool.close(grace=0)
            for closer in closers:
                closer.join()
        print(pool.stats().state, pool.stats().workers)
        """
    assert printed(script) == "closed 0\n"


def test_close_in_a_callback_and_in_an_observer() -> None:
    script = """
        import logging
        from bullpen import Kind, Pool

        def observe(event):
            if event.kind is Kind.REQUEST_DONE:
                pool.close()

        pool = Pool(2, observer=observe)
        future = pool.submit(abs, -1)
        future.add_done_callback(lambda _: pool.close())
        print(future.result())
        pool.close()
        print(pool.stats().state)
        """
    assert printed(script) == "1\nclosed\n"


FORK = """
    import os, sys
    from bullpen import CallPolicy, Pool, PoolClosed, RestartPolicy

    pool = Pool(2, name="press", {options})
    pool.submit(int).result()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        for call in (pool.submit, pool.serve, pool.do, pool.map):
            try:
                call(int)
            except PoolClosed as error:
                assert "forked" in str(error) and "make a new pool after the fork" in str(error), error
            else:
                raise AssertionError("the pool of the parent took work")
        pool.close()
        assert str(pool.stats().state) == "closed" and pool.workers() == []
        with Pool(2) as own:
            print("child", own.do(abs, -2))
        {leave}
    _, status = os.waitpid(child, 0)
    print("parent", os.waitstatus_to_exitcode(status), pool.do(abs, -3))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    "options", ["", "max_queue=3", "calls=CallPolicy(run_timeout=30), restarts=RestartPolicy(max_abandoned=1)"]
)
@pytest.mark.parametrize(("leave", "code"), [("sys.exit(4)", 4), ("sys.stdout.flush(); os._exit(5)", 5)])
def test_a_forked_child_is_told_to_make_its_own_pool_and_exits_cleanly(options: str, leave: str, code: int) -> None:
    source = textwrap.dedent(FORK).format(options=options, leave=leave)
    ignore = "import warnings; warnings.filterwarnings('ignore', message='.*fork', category=DeprecationWarning)\n"
    assert printed(ignore + source) == f"child 2\nparent {code} 3\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_the_pool_is_busy_exits_cleanly() -> None:
    source = """
        import os, sys, threading, time, warnings
        from bullpen import Pool, PoolClosed

        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        over = threading.Event()

        def feed():
            while not over.is_set():
                pool.submit(int)

        with Pool(4, max_queue=100, when_full="block") as pool:
            feeder = threading.Thread(target=feed)
            feeder.start()
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    try:
                        pool.submit(int)
                    except PoolClosed:
                        pool.close()
                        del pool
                        sys.exit(0)
                    sys.exit(1)
                assert os.waitpid(child, 0)[1] == 0
            over.set()
            feeder.join()
        print("parent ends")
        """
    assert printed(source) == "parent ends\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "options",
    [
        "",
        "max_queue=100",
        "calls=CallPolicy(scheduler='least_loaded')",
        "calls=CallPolicy(queue_timeout=60, run_timeout=60)",
    ],
)
def test_a_forked_child_waits_for_no_lock_of_the_pool(options: str) -> None:
    """Every lock that the pool has is held by another thread of the parent when it forks."""
    script = f"""
        import _thread, faulthandler, gc, os, signal, sys, threading, types, warnings
        from bullpen import CallPolicy, Pool, PoolClosed

        warnings.simplefilter("ignore")  # Python 3.12 warns of every fork with threads
        signal.alarm(10)
        locks = (_thread.LockType, type(_thread.RLock()))

        foreign = (type, types.ModuleType, types.FunctionType, types.FrameType, threading.Thread)

        def hold_all(pool):
            seen, todo = set(), [pool._engine]
            while todo:
                each = todo.pop()
                if id(each) in seen or isinstance(each, foreign):
                    continue
                seen.add(id(each))
                if isinstance(each, locks):
                    if each.acquire(False):
                        held.append(each)
                else:
                    todo += gc.get_referents(each)

        def tries(call):
            try:
                call()
            except (PoolClosed, KeyError):
                pass

        pool = Pool(2, {options})
        pool.using(session="s").submit(int).result()
        reader = pool.map(abs, range(5000))
        begun = pool.map(abs, range(5000))
        next(begun)
        pool.pause()
        waiting = pool.using(session="s").submit(int)
        held, holding, over = [], threading.Event(), threading.Event()

        def hold():
            hold_all(pool)
            holding.set()
            over.wait()
            for lock in held:
                lock.release()

        threading.Thread(target=hold).start()
        holding.wait()
        assert len(held) > 10, held
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            faulthandler.dump_traceback_later(2)
            for call in (
                pool.stats, pool.workers, pool.sessions, pool.explain, lambda: repr(pool), pool.pause, pool.resume,
                lambda: pool.submit(int), lambda: pool.serve(int), lambda: pool.do(int), lambda: pool.map(int, "1"),
                lambda: pool.using(session="s").submit(int), lambda: pool.using(timeout=1).submit(int),
                lambda: pool.end_session("s"), lambda: pool.resize(3), lambda: pool.wait_ready(1),
                begun.close, pool.close,
            ):
                tries(call)
            del reader, begun
            with Pool(1) as own:
                assert own.do(abs, -1) == 1
            del pool
            gc.collect()
            os._exit(0)
        code = os.waitpid(child, 0)[1]
        over.set()
        pool.close()
        print("child", code)
        """
    assert printed(script) == "child 0\n"


@pytest.mark.parametrize("count", [1, 3])
def test_threads_that_cannot_be_started_are_told_in_words(count: int) -> None:
    """As when the interpreter ends, from Python 3.12 on, or the system has no more threads."""
    script = f"""
        import logging
        from bullpen import Pool, PoolClosed, PoolFailed, WorkerStartFailed, primitives

        logging.disable(logging.CRITICAL)
        start_thread = primitives.start_thread

        def reject(*_):
            raise RuntimeError("can't start new thread")

        primitives.start_thread = reject
        pool = Pool(2)
        for _ in range({count}):
            try:
                print(type(pool.submit(int).exception()).__name__)
            except PoolFailed:
                print("PoolFailed")
        pool.close()
        """
    assert printed(script, within=10) == "PoolFailed\n" * count


def test_an_interrupt_while_a_worker_starts_leaves_the_pool_usable() -> None:
    script = """
        import logging, threading, time
        from bullpen import Pool, RecyclePolicy, primitives

        logging.disable(logging.CRITICAL)
        start_thread = primitives.start_thread
        go = threading.Event()

        def interrupt(*_):
            primitives.start_thread = start_thread
            raise KeyboardInterrupt

        with Pool(2, recycling=RecyclePolicy(idle_timeout=None)) as pool:
            running = pool.submit(go.wait)
            while not running.running():
                time.sleep(0.01)
            primitives.start_thread = interrupt
            try:
                pool.submit(int)
            except KeyboardInterrupt:
                print("interrupted")
            print(pool.submit(abs, -1).result(), running.done())
            go.set()
        """
    assert printed(script, within=5) == "interrupted\n1 False\n"


def test_an_interrupt_in_the_moment_after_a_thread_has_started_is_not_lost() -> None:
    script = """
        import functools, threading
        from bullpen import Pool, RecyclePolicy

        wait = threading.Event.wait
        go = threading.Event()

        def interrupt(event, timeout=None):
            threading.Event.wait = wait
            wait(event, timeout)
            raise KeyboardInterrupt

        with Pool(1, recycling=RecyclePolicy(idle_timeout=None)) as pool:
            threading.Event.wait = interrupt
            try:
                pool.do(functools.partial(wait, go, 20))
            except KeyboardInterrupt:
                print("interrupted")
            go.set()
            print(pool.do(abs, -1))
        """
    assert printed(script, within=15) == "interrupted\n1\n"


def test_an_interrupt_while_main_begins_to_wait_leaves_no_lock_held() -> None:
    script = """
        import threading
        from bullpen import Pool, PoolFuture

        go = threading.Event()
        make_audience = PoolFuture._has_waiters

        def interrupt(self):
            PoolFuture._has_waiters = make_audience
            raise KeyboardInterrupt

        with Pool(1) as pool:
            future = pool.submit(go.wait, 20)
            PoolFuture._has_waiters = interrupt
            try:
                future.result()
            except KeyboardInterrupt:
                print("interrupted")
            go.set()
            print(future.result())
        """
    assert printed(script, within=4) == "interrupted\nTrue\n"


def test_a_map_that_was_interrupted_while_it_was_made_goes_quietly() -> None:
    assert printed("from bullpen.pools.maps.iterator import MapIterator; MapIterator.__new__(MapIterator)") == ""


def test_threads_that_cannot_be_started_any_more_leave_the_others_working() -> None:
    script = """
        import logging, threading
        from bullpen import Pool, RecyclePolicy, primitives

        logging.disable(logging.CRITICAL)

        def reject(*_):
            raise RuntimeError("can't start new thread")

        go = threading.Event()
        pool = Pool(2, recycling=RecyclePolicy(idle_timeout=None))
        running = pool.submit(go.wait)
        while not running.running():
            pass
        primitives.start_thread = reject
        futures = [pool.submit(abs, -number) for number in range(5)]
        go.set()
        print([future.result() for future in futures])
        pool.close()
        """
    assert printed(script, within=10) == "[0, 1, 2, 3, 4]\n"


def test_a_tombstone_in_the_backlog_does_not_make_failing_starts_endless() -> None:
    script = """
        import logging, time
        from bullpen import Pool, RecyclePolicy, primitives

        logging.disable(logging.CRITICAL)

        def reject(*_):
            raise RuntimeError("can't start new thread")

        pool = Pool(2, recycling=RecyclePolicy(idle_timeout=0.05))
        pool.submit(int).result()
        while pool.stats().workers:
            time.sleep(0.01)
        primitives.start_thread = reject
        pool.pause()
        pool.submit(int).cancel()
        future = pool.submit(int)
        pool.resume()
        print(type(future.exception(5)).__name__)
        pool.close()
        """
    assert printed(script, within=10) == "WorkerStartFailed\n"
