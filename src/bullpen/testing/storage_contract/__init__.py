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

Nothing in it knows a store. All tests run by the store's own clock: what has to lie in the future is an hour away, and
what has to come is waited for, so that no test depends on how fast the machine is. A store that is not `durable`, or
has no address for other processes, is spared the tests that would need it.

base.py       what the tests share
adding.py     an added task is stored unchanged, once
unique.py     which task holds a unique key, for how long, and what happens to duplicates
claiming.py   which worker gets which tasks, in which order
settling.py   what becomes of tasks: every move, and every write that comes too late
leases.py     leases, rescue, progress
links.py      tasks that wait for others, and tasks that come with the success of another
limits.py     paused queues, limits
moving.py     tasks that come from another store, or go to one
people.py     get, list, counts, cancel, retry, delete
schedules.py  what becomes of schedules that are paused or changed
upkeep.py     expiry, retention, worker records
waiting.py    wake-ups
together.py   several threads, several processes, and what survives them
child.py      the other process
"""

from bullpen.testing.storage_contract.adding import AddingTests
from bullpen.testing.storage_contract.claiming import ClaimingTests
from bullpen.testing.storage_contract.leases import LeaseTests
from bullpen.testing.storage_contract.limits import LimitTests
from bullpen.testing.storage_contract.links import LinkTests
from bullpen.testing.storage_contract.moving import MovingTests
from bullpen.testing.storage_contract.people import PeopleTests
from bullpen.testing.storage_contract.schedules import ScheduleTests
from bullpen.testing.storage_contract.settling import SettlingTests
from bullpen.testing.storage_contract.together import TogetherTests
from bullpen.testing.storage_contract.unique import UniqueTests
from bullpen.testing.storage_contract.upkeep import UpkeepTests
from bullpen.testing.storage_contract.waiting import WaitingTests

__all__ = ["StorageContract"]


class StorageContract(
    AddingTests,
    UniqueTests,
    ClaimingTests,
    SettlingTests,
    LeaseTests,
    LimitTests,
    MovingTests,
    LinkTests,
    PeopleTests,
    ScheduleTests,
    UpkeepTests,
    WaitingTests,
    TogetherTests,
):
    """Override `make_storage`, and `address` if other processes can open the store; inherit the tests."""
