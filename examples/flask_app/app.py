"""Flask, or any WSGI app: also under gunicorn with --preload, for each process opens its own connections."""

import os

from flask import Flask, abort, jsonify

from bullpen import TaskNotFound, TaskQueue, TaskStatus

queue = TaskQueue(os.environ.get("BULLPEN_URL", "sqlite:///jobs.db"))
app = Flask(__name__)


@queue.task(max_retries=3, timeout=30)
def send_email(to: str) -> str:
    return f"sent to {to} by process {os.getpid()}"


@app.post("/mail/<to>")
def enqueue(to: str):
    job = send_email.enqueue(to)  # on disk when this returns
    return jsonify(id=job.id, pid=os.getpid()), 202


@app.get("/tasks/<task_id>")
def look(task_id: str):
    try:
        info = queue.get(task_id)
    except TaskNotFound:
        abort(404)
    result = queue.job(task_id).result(0) if info.status is TaskStatus.SUCCESS else None
    return jsonify(status=str(info.status), result=result, attempts=info.attempt)
