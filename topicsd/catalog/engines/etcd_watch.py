"""The changes of keys in etcd, by one stream of the server for all of them.

The stream is opened again after a failure; each key is then reported once, since a change may have been
missed. Requests are written by a thread of gRPC, which asks `_requests` for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from queue import SimpleQueue
from typing import Any, Final

from topicsd.catalog.engines.key_value import ChangedKey, OnChange

PAUSE_SECONDS: Final = 1.0
STREAM: Final = "/etcdserverpb.Watch/Watch"


class EtcdWatch:
    def __init__(self, rpc: Any, channel: Any, error: type[Exception], on_change: OnChange) -> None:
        self._rpc = rpc
        self._open: Any = channel.stream_stream(
            STREAM,
            request_serializer=rpc.WatchRequest.SerializeToString,
            response_deserializer=rpc.WatchResponse.FromString,
        )
        self._error = error
        self._on_change = on_change
        self._keys: frozenset[str] = frozenset()
        self._is_closed = threading.Event()
        self._changes: SimpleQueue[bool] = SimpleQueue()
        """True when other keys are to be followed, False at the end of the stream."""
        self._call: Any = None
        threading.Thread(target=self._run, name="etcd-watch", daemon=True).start()

    def follow(self, keys: Collection[str]) -> None:
        self._keys = frozenset(keys)
        self._changes.put(True)

    def close(self) -> None:
        self._is_closed.set()
        self._changes.put(False)
        if self._call is not None:
            self._call.cancel()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            keys_by_id: dict[int, str] = {}
            changes = self._changes = SimpleQueue()
            try:
                self._call = self._open(self._requests(changes, keys_by_id))
                for response in self._call:
                    if self._is_closed.is_set() or (response.canceled and response.watch_id in keys_by_id):
                        break
                    self._report(response, keys_by_id)
            except self._error:
                pass
            changes.put(False)
            self._is_closed.wait(PAUSE_SECONDS)

    def _requests(self, changes: SimpleQueue[bool], keys_by_id: dict[int, str]) -> Iterator[Any]:
        """Yield the requests of one stream; `keys_by_id` are the keys that it watches."""
        rpc = self._rpc
        ids: dict[str, int] = {}
        last_id = 0
        while not self._is_closed.is_set():
            keys = self._keys
            for key in sorted(keys - ids.keys()):
                last_id += 1
                ids[key], keys_by_id[last_id] = last_id, key
                create = rpc.WatchCreateRequest(key=key.encode(), watch_id=last_id)
                yield rpc.WatchRequest(create_request=create)
            for key in sorted(ids.keys() - keys):
                watch_id = ids.pop(key)
                del keys_by_id[watch_id]
                yield rpc.WatchRequest(cancel_request=rpc.WatchCancelRequest(watch_id=watch_id))
            if not changes.get():
                return

    def _report(self, response: Any, keys_by_id: dict[int, str]) -> None:
        # A thread of gRPC may end a watch meanwhile.
        if response.created and (key := keys_by_id.get(response.watch_id)) is not None:
            self._on_change([ChangedKey(key)])
        if response.events:
            # A deleted key has no value.
            self._on_change(
                [ChangedKey(one.kv.key.decode(), bytes(one.kv.value) or None) for one in response.events]
            )
