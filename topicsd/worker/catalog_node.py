"""This worker's shard as a part of a node with a catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.runtime.clock import Clock
from shared.runtime.retries import Retries
from shared.settings.catalog_url import chosen_catalog_url
from topicsd.catalog.catalog import Catalog
from topicsd.catalog.open_catalog import catalog_directory, open_catalog
from topicsd.engine.ownership.catalog_work import Node, RetryWait
from topicsd.worker.spec import Spec

REQUEST_SECONDS: Final = 10.0
"""How long a catalog repeats one request by itself."""


def catalog_node(spec: Spec, clock: Clock, owns_id: Callable[[int], bool]) -> Node | None:
    """Return the node of this shard, or None without a catalog; nothing is opened yet."""
    settings = spec.settings
    url = chosen_catalog_url(settings.catalog_url, settings.store_url)
    if not url or settings.memory:
        return None
    directory = catalog_directory(settings.store_url, spec.data_dir)

    def open_with(wait: RetryWait) -> Catalog:
        return open_catalog(url, directory, Retries(clock.monotonic, wait, REQUEST_SECONDS))

    return Node(spec.instance, open_with, owns_id)
