"""Durable tasks in one program: a sign-up that mails, retries, and reports its progress.

In production the worker is a process of its own, `bullpen worker signup_tasks.py`; here it runs beside, so that the
example is one file. The tasks are in jobs.db in the current folder, and would survive this program.
"""

from bullpen import Backoff, TaskFailed, TaskQueue, WorkerPool, current_task

queue = TaskQueue("sqlite:///jobs.db")


@queue.task(max_retries=3, backoff=Backoff(base=0.05))
def send_welcome(to: str) -> str:
    """The mail server answers at the third try."""
    task = current_task()
    if task.failures < 2:
        raise ConnectionError("the mail server is busy")
    return f"welcome, {to} (attempt {task.attempt})"


@queue.task
async def import_contacts(contacts: list[str]) -> int:
    for number, _ in enumerate(contacts, 1):
        current_task().progress(number, len(contacts), "contacts")
    return len(contacts)


@queue.task
def charge(customer: str) -> None:
    raise ValueError(f"{customer} has no card")


def main() -> None:
    with queue:
        welcome = send_welcome.enqueue("ada")
        contacts = import_contacts.using(priority=5).enqueue(["grace", "edsger", "barbara"])
        payment = charge.enqueue("ada")
        print(welcome.why())

        with WorkerPool(queue, concurrency=4):
            print(contacts.result(timeout=20), "contacts")
            print(welcome.result(timeout=20))
            try:
                payment.result(timeout=20)
            except TaskFailed as error:
                print(f"{error.type}: {error.message}")

        errors = welcome.info().errors
        print(f"{len(errors)} failed attempts: {errors[0].message}")


if __name__ == "__main__":
    main()

# prints:
# signup_tasks.send_welcome is pending: no worker serves the queue 'default'; no worker is running
# 3 contacts
# welcome, ada (attempt 3)
# ValueError: ada has no card
# 2 failed attempts: the mail server is busy
