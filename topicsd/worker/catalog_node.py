"""This worker's shard as a part of a node with a catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from shared.runtime.clock import Clock
from shared.runtime.retries import Retries
from shared.settings.catalog_url import chosen_catalog_url
from topicsd.catalog.open_catalog import catalog_directory, open_catalog
from topicsd.engine.ownership.catalog_work import Node
from topicsd.worker.spec import Spec

REQUEST_SECONDS: Final = 10.0
"""How long a catalog repeats one request by itself."""


def catalog_node(spec: Spec, clock: Clock, owns_id: Callable[[int], bool]) -> Node | None:
    """Return the node of this shard, or None without a catalog; nothing is opened yet."""
    settings = spec.settings
    url = chosen_catalog_url(settings.catalog_url, settings.store_url)
    if not url or settings.memory:
        return None
    retries = Retries(clock.monotonic, threading.Event().wait, REQUEST_SECONDS)
    directory = catalog_directory(settings.store_url, spec.data_dir)
    return Node(
        spec.instance,
        partial(open_catalog, url, directory, retries),
        owns_id,
    )
