"""The keys of a catalog in etcd, through the messages of aetcd on a blocking gRPC channel.

The version of a key is its modification revision, which is one number for the whole store. A write is a
transaction with one comparison. Requests have a deadline and are not repeated here, so that the caller sees
each failure. A lease is granted for each write that asks for one; it ends by the clock of the server. gRPC
does not survive a fork: open it in processes that never fork (R8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from topicsd.catalog.catalog import CatalogExtraMissing, CatalogRefused, CatalogUnavailable
from topicsd.catalog.engines.etcd_watch import EtcdWatch
from topicsd.catalog.engines.key_value import OnChange, VersionedKey

EXTRA: Final = "topicsd[etcd]"
PORT: Final = 2379
REQUEST_SECONDS: Final = 5.0
_REFUSALS: Final = ("INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED")


class EtcdKeys:
    def __init__(self, url: str) -> None:
        try:
            import grpc
            from aetcd import rpc
        except ImportError:
            raise CatalogExtraMissing(f"etcd: needs a client library; install {EXTRA}") from None
        parts = urlsplit(url)
        address = f"{parts.hostname}:{parts.port or PORT}"
        self.url = f"etcd://{address}"
        self._error: type[Exception] = grpc.RpcError
        self._rpc: Any = rpc
        # A channel waits up to two minutes before it connects again, longer than any verb is repeated.
        options = [("grpc.max_reconnect_backoff_ms", 1000)]
        self._channel: Any = grpc.insecure_channel(address, options=options)
        self._stub: Any = rpc.KVStub(self._channel)
        self._leases: Any = rpc.LeaseStub(self._channel)

    def _request(self, method: Callable[..., Any], message: Any) -> Any:
        try:
            return method(message, timeout=REQUEST_SECONDS)
        except self._error as error:
            call: Any = error
            kind = CatalogRefused if call.code().name in _REFUSALS else CatalogUnavailable
            raise kind(f"{self.url}: {call.details() or call.code().name}") from None

    def get(self, key: str, partition: str | None = None) -> VersionedKey | None:
        answer = self._request(self._stub.Range, self._rpc.RangeRequest(key=key.encode()))
        return _entry(answer.kvs[0]) if answer.kvs else None

    def range(self, first: str, end: str, limit: int, partition: str | None = None) -> list[VersionedKey]:
        message = self._rpc.RangeRequest(key=first.encode(), range_end=end.encode(), limit=limit)
        return [_entry(one) for one in self._request(self._stub.Range, message).kvs]

    def put_if(
        self,
        key: str,
        value: bytes,
        version: int | None,
        partition: str | None = None,
        lease_ms: int | None = None,
    ) -> bool:
        lease = 0
        if lease_ms is not None:
            grant = self._rpc.LeaseGrantRequest(TTL=-(-lease_ms // 1000))
            lease = self._request(self._leases.LeaseGrant, grant).ID
        put = self._rpc.RequestOp(
            request_put=self._rpc.PutRequest(key=key.encode(), value=value, lease=lease)
        )
        # A key that does not exist has revision 0.
        return self._write_if(key, put, version or 0)

    def delete_if(self, key: str, version: int, partition: str | None = None) -> bool:
        delete = self._rpc.DeleteRangeRequest(key=key.encode())
        return self._write_if(key, self._rpc.RequestOp(request_delete_range=delete), version)

    def _write_if(self, key: str, operation: Any, version: int) -> bool:
        compare = self._rpc.Compare(
            key=key.encode(),
            target=self._rpc.Compare.MOD,
            result=self._rpc.Compare.EQUAL,
            mod_revision=version,
        )
        message = self._rpc.TxnRequest(compare=[compare], success=[operation])
        return bool(self._request(self._stub.Txn, message).succeeded)

    def watch(self, on_change: OnChange) -> EtcdWatch:
        return EtcdWatch(self._rpc, self._channel, self._error, on_change)

    def close(self) -> None:
        self._channel.close()


def _entry(pair: Any) -> VersionedKey:
    return VersionedKey(pair.key.decode(), bytes(pair.value), pair.mod_revision)
