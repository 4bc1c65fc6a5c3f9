"""The contract of every store, as one suite of pytest tests.

The author of a store subclasses it:

    class TestMyStorage(StorageContract):
        @pytest.fixture(autouse=True)
        def _place(self, tmp_path):
            self.path = tmp_path / "jobs.db"

        def make_storage(self):
            return MyStorage(self.path)

        def address(self):
            return f"my:///{self.path}"

The suite depends on no particular store. All tests use the store's own clock: a time in the future is an hour away, and
the tests wait for events, so no test depends on the speed of the machine. Tests that need a `durable` store, or an
address for other processes, are skipped for other stores.

base.py       what the tests share
adding.py     an added task is stored unchanged, once
unique.py     which task holds a unique key, for how long, and what happens to duplicates
claiming.py   which worker gets which tasks, in which order
settling.py   every settlement, and every write that comes too late
steps.py      kept steps: fenced, brought along by the next claim, and of one run
events.py     events, and tasks that wait for them
leases.py     leases, rescue, progress
links.py      tasks that wait for others, and tasks that come with the success of another
limits.py     paused queues, limits
moving.py     tasks that come from another store, or go to one
batches.py    counting and changing all tasks that match a filter
people.py     get, list, counts, cancel, retry, delete
history.py    counts of minutes and hours
schedules.py  schedules that are paused or changed
unreadable.py rows that another program, or a newer version, has written
upkeep.py     expiry, retention, worker records
waiting.py    wake-ups
together.py   several threads, several processes, and tasks that survive them
child.py      the other process
"""

from bullpen.testing.storage_contract.adding import AddingTests
from bullpen.testing.storage_contract.batches import BatchTests
from bullpen.testing.storage_contract.claiming import ClaimingTests
from bullpen.testing.storage_contract.events import EventTests
from bullpen.testing.storage_contract.history import HistoryTests
from bullpen.testing.storage_contract.leases import LeaseTests
from bullpen.testing.storage_contract.limits import LimitTests
from bullpen.testing.storage_contract.links import LinkTests
from bullpen.testing.storage_contract.moving import MovingTests
from bullpen.testing.storage_contract.people import PeopleTests
from bullpen.testing.storage_contract.schedules import ScheduleTests
from bullpen.testing.storage_contract.settling import SettlingTests
from bullpen.testing.storage_contract.steps import StepTests
from bullpen.testing.storage_contract.together import TogetherTests
from bullpen.testing.storage_contract.unique import UniqueTests
from bullpen.testing.storage_contract.unreadable import UnreadableTests
from bullpen.testing.storage_contract.upkeep import UpkeepTests
from bullpen.testing.storage_contract.waiting import WaitingTests

__all__ = ["StorageContract"]


class StorageContract(
    AddingTests,
    UniqueTests,
    ClaimingTests,
    SettlingTests,
    StepTests,
    EventTests,
    LeaseTests,
    LimitTests,
    MovingTests,
    LinkTests,
    PeopleTests,
    BatchTests,
    ScheduleTests,
    UnreadableTests,
    UpkeepTests,
    HistoryTests,
    WaitingTests,
    TogetherTests,
):
    """Override `make_storage`, and `address` if other processes can open the store; inherit the tests."""
