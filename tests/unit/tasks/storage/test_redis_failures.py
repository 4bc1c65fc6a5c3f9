"""What Redis says, as errors of ours."""

from __future__ import annotations

import pytest
from redis import exceptions

from bullpen.errors import StorageBusy, StorageError, StorageFull, StorageReadOnly, StorageUnavailable
from bullpen.tasks.storage.redis.failures import translated_errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ConnectionError("Connection closed by server."), StorageUnavailable),
        (exceptions.ClusterDownError("The cluster is down"), StorageUnavailable),
        (exceptions.MasterDownError("RedisConnection with MASTER is down"), StorageUnavailable),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), StorageReadOnly),
        (exceptions.TryAgainError("Multiple keys request during rehashing of slot"), StorageBusy),
        (exceptions.OutOfMemoryError("command not allowed"), StorageFull),
        (exceptions.ResponseError("unknown command"), StorageError),
    ],
)
def test_what_a_server_says_becomes_the_error_that_it_means(error: Exception, kind: type[StorageError]) -> None:
    with pytest.raises(StorageError) as raised, translated_errors("here"):
        raise error
    assert type(raised.value) is kind
