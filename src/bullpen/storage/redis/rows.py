"""A task as a hash, and back. A field that is not there has its usual value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bullpen.tasks.retry import Backoff
from bullpen.tasks.task import Progress, Settlement, Task, TaskError, TaskStatus

Words = list[str | bytes]
_USUAL = Task(id="", func_path="", payload=b"")

_statuses = {status.value.encode(): status for status in TaskStatus}
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_progress = msgspec.json.Decoder(Progress).decode
_decode_error = msgspec.json.Decoder(TaskError).decode


def new_words(task: Task) -> Words:
    """What `ADD` wants to know of a task."""
    fields: Words = ["func_path", _bytes(task.func_path), "payload", task.payload]

    def add(name: str, value: object, usual: object) -> None:
        if value != usual:
            fields.extend((name, _word(value)))

    add("codec", task.codec, _USUAL.codec)
    add("interval", task.interval, None)
    add("max_retries", task.max_retries, 0)
    add("backoff_base", task.backoff.base, _USUAL.backoff.base)
    add("backoff_limit", task.backoff.max_delay, _USUAL.backoff.max_delay)
    add("timeout", task.timeout, None)
    add("expires", task.expires, None)
    add("at_most_once", task.at_most_once, False)
    add("on_failure", task.on_failure, _USUAL.on_failure)
    add("result_ttl", task.result_ttl, None)
    add("unique_key", task.unique_key, None)
    add("concurrency_key", task.concurrency_key, None)
    if task.headers:
        fields.extend(("headers", msgspec.json.encode(task.headers)))
    return [
        task.id,
        str(task.priority),
        _word(task.eta) if task.eta > 0 else "",
        _bytes(task.unique_key or ""),
        "0" if task.unique_key is None else "1",
        str(len(fields) // 2),
        *fields,
    ]


def settlement_words(settlement: Settlement, lease_until: float | None) -> Words:
    """What `EXCHANGE` wants to know of a settlement, after its tag and queue."""
    return [
        settlement.id,
        str(settlement.attempt),
        settlement.status.value,
        "" if settlement.delay is None else _word(settlement.delay),
        str(settlement.failures),
        str(settlement.crashes),
        str(settlement.runs),
        "0" if settlement.result is None else "1",
        settlement.result or b"",
        _bytes(settlement.result_dropped),
        b"" if settlement.error is None else msgspec.json.encode(settlement.error),
        "" if lease_until is None else _word(lease_until),
    ]


def changed_words(before: Task, after: Task) -> Words:
    """What `CHANGE` wants to know: what it was, an error that is new, and what it is now."""
    words: Words = [before.id, before.status.value, str(before.attempt), _word(before.eta)]
    is_new = after.errors[-1:] != before.errors[-1:] or len(after.errors) > len(before.errors)
    words.append(msgspec.json.encode(after.errors[-1]) if after.errors and is_new else b"")
    for name in ("status", "eta", "expires", "failures", "crashes", "worker", "cancel_requested", "finished_at"):
        value = getattr(after, name)
        words.extend((name, "-" if value is None or value is False else b"+" + _bytes(_word(value))))
    return words


def task_of(queue: str, task_id: str, words: Sequence[bytes], errors: Sequence[bytes]) -> Task:
    row = dict(zip(words[::2], words[1::2], strict=True))
    return Task(
        id=task_id,
        func_path=row[b"func_path"].decode(),
        payload=row[b"payload"],
        codec=_text(row, b"codec") or _USUAL.codec,
        queue=queue,
        priority=int(row[b"priority"]),
        status=_statuses[row[b"status"]],
        eta=float(row[b"eta"]),
        interval=_number(row, b"interval"),
        max_retries=int(row.get(b"max_retries", 0)),
        backoff=Backoff(
            float(row.get(b"backoff_base", _USUAL.backoff.base)),
            float(row.get(b"backoff_limit", _USUAL.backoff.max_delay)),
        ),
        timeout=_number(row, b"timeout"),
        expires=_number(row, b"expires"),
        at_most_once=b"at_most_once" in row,
        on_failure="continue" if row.get(b"on_failure") == b"continue" else "fail",
        result_ttl=_number(row, b"result_ttl"),
        unique_key=_text(row, b"unique_key"),
        concurrency_key=_text(row, b"concurrency_key"),
        headers=_decode_headers(row[b"headers"]) if b"headers" in row else {},
        attempt=int(row.get(b"attempt", 0)),
        failures=int(row.get(b"failures", 0)),
        crashes=int(row.get(b"crashes", 0)),
        runs=int(row.get(b"runs", 0)),
        worker=_text(row, b"worker"),
        claim_id=_text(row, b"claim_id"),
        lease_until=_number(row, b"lease_until"),
        cancel_requested=b"cancel_requested" in row,
        progress=_decode_progress(row[b"progress"]) if b"progress" in row else None,
        result=row.get(b"result"),
        result_dropped=_text(row, b"result_dropped") or "",
        errors=tuple(map(_decode_error, errors)),
        created_at=float(row[b"created_at"]),
        started_at=_number(row, b"started_at"),
        finished_at=_number(row, b"finished_at"),
    )


def _word(value: object) -> str | bytes:
    if value is True:
        return "1"
    return repr(value) if isinstance(value, int | float) else _bytes(str(value))


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _text(row: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = row.get(name)
    return None if value is None else value.decode()


def _number(row: Mapping[bytes, bytes], name: bytes) -> float | None:
    value = row.get(name)
    return None if value is None else float(value)
