"""An agent whose model calls are steps: a crash or a retry pays for no token twice. A person approves the booking.

The model is a fake that counts its calls; put the client of a real one in its place. Every answer of the model, and
every result of a tool, is kept before the agent goes on. So the second attempt replays the conversation from the store
and continues where the first one failed.
"""

from typing import Any

from bullpen import TaskQueue, WorkerPool, current_task

queue = TaskQueue("sqlite:///jobs.db", max_retries=3, backoff=0.05)

Message = dict[str, str]
calls: list[str] = []  # what was paid for

PLAN = {  # what the fake model answers, by the last message
    "plan a trip to Lisbon": "tool:search flights to Lisbon",
    "3 flights, from 90 EUR": "tool:book flight 2",
    "booked: flight 2": "your flight to Lisbon is booked",
}


def ask_model(conversation: list[Message]) -> str:
    """One paid call."""
    last = conversation[-1]["text"]
    calls.append(f"model: {last}")
    return PLAN[last]


def run_tool(call: str) -> str:
    calls.append(f"tool: {call}")
    if call.startswith("search"):
        return "3 flights, from 90 EUR"
    if current_task().failures == 0:
        raise ConnectionError("the airline does not answer")
    return f"booked: {call.removeprefix('book ')}"


@queue.task(name="agent")
def agent(goal: str) -> str:
    task = current_task()
    conversation: list[Message] = [{"by": "user", "text": goal}]
    while True:
        answer = task.step(ask_model, conversation)
        if not answer.startswith("tool:"):
            return answer
        call = answer.removeprefix("tool:")
        if call.startswith("book"):
            decision: Any = task.wait_event("approved", own=True, timeout=86_400)
            if decision is None:
                return "nobody approved the booking"
        result = task.step(run_tool, call)
        conversation = [*conversation, {"by": "model", "text": answer}, {"by": "tool", "text": result}]


def main() -> None:
    with queue:
        job = agent.enqueue("plan a trip to Lisbon")
        job.emit("approved", {"by": "ada"})
        with WorkerPool(queue, concurrency=4):
            print(job.result(timeout=20))
        for call in calls:
            print(call)
        info = job.info()
        print(f"{info.attempt} attempts, {len(info.steps)} kept steps")


if __name__ == "__main__":
    main()

# prints:
# your flight to Lisbon is booked
# model: plan a trip to Lisbon
# tool: search flights to Lisbon
# model: 3 flights, from 90 EUR
# tool: book flight 2
# tool: book flight 2
# model: booked: flight 2
# 3 attempts, 6 kept steps
