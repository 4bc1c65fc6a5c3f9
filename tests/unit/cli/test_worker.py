from __future__ import annotations

import logging

import pytest

from bullpen import InvalidOption, TaskQueue
from bullpen.cli.main import main, make_parser
from bullpen.cli.worker_process import serve

queue = TaskQueue("memory://")


@queue.task(queue="mail")
def send() -> None: ...


def parsed(*words: str) -> serve.Settings:
    return serve.Settings.of(make_parser().parse_args(["worker", "app", *words]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-c 0", "--concurrency: must be a number from 1"),
        ("--grace -1", "--grace: must be a number from 0"),
        ("--processes none", "--processes: must be a number from 1"),
        ("--queues a,,b", "--queues: must be names separated by commas"),
        ("--lane a:1 --queues a", "not allowed with argument"),
        ("--reload --processes 2", "not allowed with argument"),
        ("--log-level loud", "--log-level: invalid choice: 'loud'"),
        ("--concurency 5", "'--concurency 5' is not understood: did you mean --concurrency?"),
    ],
)
def test_wrong_options_are_rejected_by_name(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "app", *words.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lane", "a:1 b"], "lanes must be written as"),
        (["--lane", "a", "--lane", "a:2"], "'a' is in two"),
        (["--lane", "a@nowhere"], "lanes with one of the runtimes .*thread"),
        (["--queues", "a b"], "queues must be a name"),
    ],
)
def test_wrong_lanes_are_rejected(words: list[str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        serve.lanes_of(parsed(*words), queue)


@pytest.mark.parametrize(
    ("words", "lanes"),
    [
        ([], "default,mail:10@thread"),
        (["-c", "3"], "default,mail:3@thread"),
        (["--queues", "mail", "-c", "3"], "mail:3@thread"),
        (["--queues", "mail", "--queues", "sms-*,push-*", "-c", "3"], "mail,sms-*,push-*:3@thread"),
        (["--lane", "mail:2", "--lane", "default", "-c", "7"], "mail:2@thread default:7@thread"),
    ],
)
def test_lanes_of_a_worker(words: list[str], lanes: str) -> None:
    assert " ".join(map(str, serve.lanes_of(parsed(*words), queue))) == lanes


def test_a_queue_that_no_function_is_of_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        serve.lanes_of(parsed("--queues", "mial"), queue)
    assert "no registered function uses the queue 'mial'; the registered functions use default, mail" in caplog.text
