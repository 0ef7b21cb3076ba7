"""The start of a broker: open its store and its catalog, and wait until both answer.

B1  A store or a catalog that does not answer delays the start of a broker, never ends it: it tries again,
    with the cause as the reason on the board. Meanwhile requests for shared topics are refused.
B2  A store or a catalog that answers and refuses, as without credentials, refuses the start: a retry would
    give the same answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.ipc.board import Slot
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import SystemDiskThread
from shared.runtime.log_setup import fields
from shared.runtime.retries import Retries
from shared.settings.catalog_url import chosen_catalog_url
from shared.settings.settings import Settings
from topicsd.broker.broker import Broker, BrokerPools, ReadLimits, start_pools
from topicsd.broker.catalog_of_store import adopt_store
from topicsd.broker.home.home import Home, HomeCommit
from topicsd.broker.home.homes import Homes
from topicsd.broker.home.links import THREADS, HomeLinks
from topicsd.broker.repeats import Repeats
from topicsd.broker.steps import Pool
from topicsd.broker.upkeep.scheduler import UpkeepLimits, UpkeepScheduler
from topicsd.broker.write.batcher import BatchLimits
from topicsd.catalog.catalog import CatalogExtraMissing, CatalogRefused
from topicsd.catalog.open_catalog import catalog_directory, has_catalog_clock
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
from topicsd.catalog.shared.metered_catalog import CatalogTotals, metered
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import SharedCatalog
from topicsd.disk.fs import RealFs
from topicsd.service.cluster.about import BrokerIdentity
from topicsd.store.metered import MeteredStore
from topicsd.store.object_store import StoreRefused
from topicsd.store.open_store import open_store
from topicsd.store.probe import probe_store
from topicsd.store.remote_objects import ExtraMissing
from topicsd.worker.spec import Spec

TRY_SECONDS: Final = 3.0
"""How long one try repeats its requests."""
PAUSE_SECONDS: Final = 0.5
REQUEST_SECONDS: Final = 10.0
"""How long a broker repeats one request to the store, and a catalog one request by itself."""
WAIT_CHECK_SECONDS: Final = 0.1

logger = logging.getLogger("topicsd.broker")


class BrokerRefused(Exception):
    """The store or the catalog of a broker refuses it."""


class OpenBroker(NamedTuple):
    """A broker, with what it uses."""

    broker: Broker
    pools: BrokerPools
    store: MeteredStore
    catalog: SharedCatalog
    catalog_totals: CatalogTotals
    limits: BatchLimits
    identity: BrokerIdentity
    retries: Callable[[], Retries]
    """Bounds how long one request to the store is repeated."""
    ending: threading.Event
    """Ends the repetitions of requests to the store and the catalog."""
    links: HomeLinks | None = None
    """To the brokers of other nodes."""

    def close(self) -> None:
        self.ending.set()
        self.broker.heads.close()
        if self.links is not None:
            self.links.close()
        self.pools.stop()
        self.catalog.close()
        self.store.close()


async def open_broker(
    spec: Spec, clock: Clock, slot: Slot, is_shutdown_requested: Callable[[], bool]
) -> OpenBroker | None:
    """Open a broker as soon as its store and its catalog answer; None when a shutdown is requested before.

    Raises BrokerRefused.
    """
    loop = asyncio.get_running_loop()
    ending = threading.Event()
    retries = partial(Retries, clock.monotonic, ending.wait)
    catalog_totals = CatalogTotals(clock.monotonic)
    while True:
        opening = loop.run_in_executor(None, _open, spec, clock, retries, catalog_totals)
        while not opening.done():
            await asyncio.wait((opening,), timeout=WAIT_CHECK_SECONDS)
            if is_shutdown_requested():
                ending.set()
                opening.cancel()
                return None
        try:
            store, catalog, secret = opening.result()
            break
        except (StoreRefused, CatalogRefused, ExtraMissing, CatalogExtraMissing) as error:
            raise BrokerRefused(str(error)) from error
        except OSError as error:
            reason = f"waits for the store and the catalog: {error}"
            if slot.reason != reason:
                logger.warning("broker: start delayed: %s", error, extra=fields(broker=spec.broker))
                slot.reason = reason
        await asyncio.sleep(PAUSE_SECONDS)
    limits = batch_limits(spec.settings)
    pools = start_pools(loop)
    request_retries = partial(retries, REQUEST_SECONDS)
    identity = _identity(spec, clock)
    reads = read_limits(spec.settings)
    broker = Broker(clock, loop, pools, store, catalog, request_retries, limits, reads, identity.roles)
    links = None if secret is None else _join_homes(broker, clock, loop, pools, catalog, identity, secret)
    return OpenBroker(
        broker, pools, store, catalog, catalog_totals, limits, identity, request_retries, ending, links
    )


def _join_homes(
    broker: Broker,
    clock: Clock,
    loop: asyncio.AbstractEventLoop,
    pools: BrokerPools,
    catalog: SharedCatalog,
    identity: BrokerIdentity,
    secret: bytes,
) -> HomeLinks:
    """Let a broker send commits to the homes of topics, and be one."""
    threads = [SystemDiskThread(loop, f"home-{number}") for number in range(THREADS)]
    links = HomeLinks(Pool(threads), clock.monotonic)
    # A catalog with a secret has a commit with a time.
    commit: HomeCommit = catalog.commit  # type: ignore[assignment]
    home = Home(clock, pools.commits, commit, secret)
    broker.committer.homes = Homes(
        clock, pools.lookups, catalog.nodes, identity.node, home, secret, links.ask
    )
    return links


def _open(
    spec: Spec, clock: Clock, retries: Callable[[float], Retries], totals: CatalogTotals
) -> tuple[MeteredStore, SharedCatalog, bytes | None]:
    """Open the store and the catalog, and make one request to each; on a thread.

    The last result is the secret of the cluster, if commits may be sent to homes.
    """
    settings = spec.settings
    with ExitStack() as opened:
        store = open_store(settings.store_url, RealFs())
        opened.callback(store.close)
        probe_store(store, retries(TRY_SECONDS))
        catalog = open_shared_catalog(
            chosen_catalog_url(settings.catalog_url, settings.store_url),
            catalog_directory(settings.store_url, spec.data_dir),
            retries(REQUEST_SECONDS),
            clock.now_ms,
            settings.store_url,
            settings.max_producers,
        )
        opened.callback(catalog.close)
        catalog.nodes()
        adopt_store(store, catalog, partial(retries, TRY_SECONDS))
        secret = None
        if settings.home_commits and isinstance(catalog, KeyValueSharedCatalog):
            secret = catalog.cluster_secret()
        opened.pop_all()
    return store, metered(catalog, totals), secret


def open_upkeep(spec: Spec, opened: OpenBroker, clock: Clock, repeats: Repeats) -> UpkeepScheduler | None:
    """Return the upkeep of shared topics, if it is a role of the brokers; the first one of a node does it."""
    settings, identity = spec.settings, opened.identity
    if "compact" not in identity.roles or identity.number:
        return None
    catalog_url = chosen_catalog_url(settings.catalog_url, settings.store_url)
    limits = UpkeepLimits(has_catalog_clock=has_catalog_clock(catalog_url))
    loop = asyncio.get_running_loop()
    # A process that was killed may still have claims, under a name of its own.
    name = f"{identity.broker_id}-{identity.started_ms}"
    return UpkeepScheduler(clock, loop, opened.store, opened.catalog, repeats, limits, name)


def batch_limits(settings: Settings) -> BatchLimits:
    return BatchLimits(
        batch_bytes=settings.batch_max_bytes,
        batch_seconds=settings.batch_max_delay_ms / 1000,
        urgent_batch_seconds=settings.batch_max_delay_low_ms / 1000,
        pending_bytes=settings.batch_queue_bytes,
        pending_seconds=settings.batch_queue_age_ms / 1000,
    )


def read_limits(settings: Settings) -> ReadLimits:
    return ReadLimits(
        tail_cache_bytes=settings.tail_cache_bytes,
        block_cache_bytes=settings.store_cache_bytes,
        laggard_cache_bytes=settings.store_cache_bytes,
    )


def _identity(spec: Spec, clock: Clock) -> BrokerIdentity:
    assert spec.broker is not None
    settings = spec.settings
    roles = tuple(settings.broker_roles.split(","))
    weight = float(settings.node_weight)
    return BrokerIdentity(spec.instance, spec.broker, spec.address, weight, roles, clock.now_ms())


def memory_spec(spec: Spec) -> Spec:
    """Return the parameters of the shard of a broker, which lies in memory and takes part in no catalog."""
    settings = msgspec.structs.replace(
        spec.settings,
        memory=True,
        default_durability="ephemeral",
        cold_dir="",
        store_url="",
        catalog_url="",
    )
    return msgspec.structs.replace(spec, settings=settings)
