"""The layers: what each folder of the project may import from other folders.

A folder may import itself and the folders listed here: the modules of a folder, or with a
slash at the end everything below it. The longest path that fits a module decides.
"""

from __future__ import annotations

from typing import Final

_ENGINE: Final = "topicsd/engine topicsd/segment topicsd/store topicsd/log shared/"
_OFFLINE: Final = "topicsd/engine/ topicsd/segment topicsd/store topicsd/log topicsd/disk shared/"
_BROKER: Final = (
    "topicsd/catalog topicsd/catalog/shared topicsd/store topicsd/segment topicsd/log topicsd/disk shared/"
)

LAYERS: Final = {
    # -- shared: no process, no topic
    "shared/text": "shared/contract",
    "shared/contract": "shared/text",
    "shared/http": "shared/contract shared/runtime shared/text",
    "shared/runtime": "shared/contract shared/text",
    "shared/settings": "shared/contract shared/http shared/runtime shared/text",
    "shared/ipc": "shared/contract shared/runtime",
    # -- router: never a record
    "router/accept": "router/supervision shared/",
    "router/resharding": "shared/",
    "router/control": "router/accept router/resharding shared/",
    "router/supervision": "router/accept router/control router/resharding shared/",
    # -- topicsd: disk, log, segment, engine, stream, service, http, worker; each may import what is before it
    "topicsd/disk": "shared/",
    "topicsd/log": "topicsd/disk shared/",
    "topicsd/store": "topicsd/disk shared/",
    "topicsd/segment": "topicsd/log topicsd/disk topicsd/store",
    "topicsd/catalog": "topicsd/catalog/engines topicsd/disk shared/",
    "topicsd/catalog/engines": "topicsd/catalog topicsd/disk shared/",
    "topicsd/catalog/shared": "topicsd/catalog topicsd/catalog/engines shared/",
    "topicsd/broker": f"topicsd/broker/ {_BROKER}",
    "topicsd/broker/home": f"topicsd/broker {_BROKER}",
    "topicsd/broker/write": f"topicsd/broker topicsd/broker/home {_BROKER}",
    "topicsd/broker/read": f"topicsd/broker {_BROKER}",
    "topicsd/broker/upkeep": f"topicsd/broker {_BROKER}",
    "topicsd/engine": "topicsd/engine/ topicsd/segment topicsd/store topicsd/log topicsd/disk shared/",
    "topicsd/engine/ownership": (
        "topicsd/engine/ topicsd/catalog topicsd/store topicsd/segment topicsd/log topicsd/disk shared/"
    ),
    "topicsd/engine/records": "topicsd/engine topicsd/segment shared/contract",
    "topicsd/engine/wakeups": "topicsd/log shared/",
    "topicsd/engine/retention": f"{_ENGINE} topicsd/engine/records topicsd/engine/queue",
    "topicsd/engine/read": f"{_ENGINE} topicsd/engine/records topicsd/engine/retention topicsd/engine/routes",
    "topicsd/engine/queue": (
        f"{_ENGINE} topicsd/engine/records topicsd/engine/retention topicsd/engine/read"
        " topicsd/engine/wakeups topicsd/engine/queue/order"
    ),
    "topicsd/engine/queue/order": "topicsd/engine/queue",
    "topicsd/engine/schema": "topicsd/engine shared/",
    "topicsd/engine/bundle": "topicsd/engine/ topicsd/segment topicsd/log topicsd/disk shared/",
    "topicsd/engine/write": (
        f"{_ENGINE} topicsd/engine/ownership topicsd/engine/records topicsd/engine/retention"
        " topicsd/engine/queue topicsd/engine/schema"
    ),
    "topicsd/engine/schedules": (
        f"{_ENGINE} topicsd/engine/queue topicsd/engine/retention topicsd/engine/transfer"
        " topicsd/engine/write"
    ),
    "topicsd/engine/transfer": (
        f"{_ENGINE} topicsd/engine/queue topicsd/engine/read topicsd/engine/retention"
    ),
    "topicsd/engine/routes": (
        f"{_ENGINE} topicsd/engine/records topicsd/engine/retention topicsd/engine/read topicsd/engine/write"
        " topicsd/disk"
    ),
    "topicsd/engine/upkeep": f"{_ENGINE} topicsd/engine/records topicsd/engine/retention",
    "topicsd/engine/checkpoint": f"{_ENGINE} topicsd/engine/ topicsd/disk",
    "topicsd/stream": "topicsd/stream/shared topicsd/stream/webhooks topicsd/engine/ topicsd/log shared/",
    "topicsd/stream/webhooks": "topicsd/stream topicsd/engine/ shared/",
    "topicsd/stream/tail": "topicsd/stream topicsd/engine/ shared/",
    "topicsd/stream/shared": (
        "topicsd/stream topicsd/stream/tail topicsd/broker topicsd/broker/read topicsd/catalog/shared"
        " topicsd/engine/ topicsd/log shared/"
    ),
    "topicsd/service": (
        "topicsd/service/ topicsd/stream/ topicsd/engine/ topicsd/broker topicsd/catalog topicsd/log shared/"
    ),
    "topicsd/service/shared": (
        "topicsd/service topicsd/service/input topicsd/service/records topicsd/service/shards "
        "topicsd/stream/ topicsd/engine/ topicsd/broker/ topicsd/catalog/shared topicsd/log shared/"
    ),
    "topicsd/service/cluster": (
        "topicsd/service topicsd/broker topicsd/broker/home topicsd/broker/upkeep topicsd/broker/write"
        " topicsd/catalog/shared"
        " topicsd/store shared/"
    ),
    "topicsd/service/access": "topicsd/service topicsd/service/input topicsd/engine/ shared/",
    "topicsd/service/input": "topicsd/engine/ shared/",
    "topicsd/service/queues": "topicsd/service/ topicsd/stream/ topicsd/engine/ topicsd/log shared/",
    "topicsd/service/records": "topicsd/service/ topicsd/stream/ topicsd/engine/ shared/",
    "topicsd/service/shards": "topicsd/service topicsd/stream/ topicsd/engine/ shared/",
    "topicsd/service/watch": (
        "topicsd/service/ topicsd/stream/ topicsd/broker topicsd/engine/ topicsd/log shared/"
    ),
    "topicsd/http/http1": "topicsd/service topicsd/service/records topicsd/stream shared/",
    "topicsd/http/http2": "topicsd/http/http1 topicsd/service topicsd/service/records topicsd/stream shared/",
    "topicsd/http/websocket": ("topicsd/http/http1 topicsd/service/ topicsd/stream/ topicsd/engine shared/"),
    "topicsd/worker": (
        "topicsd/http/ topicsd/service/ topicsd/broker/ topicsd/engine/ topicsd/catalog "
        "topicsd/catalog/shared topicsd/store topicsd/log topicsd/disk shared/"
    ),
    # -- tools: a directory that another process may own
    "topicsd/offline": f"{_OFFLINE} topicsd/catalog topicsd/offline/check",
    "topicsd/offline/report": f"{_OFFLINE} topicsd/offline",
    "topicsd/offline/check": f"{_OFFLINE} topicsd/offline topicsd/offline/report",
    "topicsd/offline/repair": f"{_OFFLINE} topicsd/offline topicsd/offline/check",
    "topicsd/offline/reshard": f"{_OFFLINE} topicsd/offline",
    "topicsd/cli": (
        f"{_OFFLINE} topicsd/offline/ topicsd/catalog topicsd/cli/backup topicsd/cli/compactor"
        " topicsd/cli/store topicsd/cli/server"
    ),
    "topicsd/cli/compactor": (
        "topicsd/broker topicsd/broker/upkeep topicsd/catalog topicsd/catalog/shared topicsd/store "
        "topicsd/disk topicsd/cli topicsd/offline shared/"
    ),
    "topicsd/cli/store": (
        f"{_OFFLINE} topicsd/broker topicsd/broker/upkeep topicsd/catalog topicsd/cli topicsd/cli/compactor "
        "topicsd/offline"
    ),
    # Over HTTP, without a data directory.
    "topicsd/backup": f"{_OFFLINE} topicsd/offline topicsd/store",
    "topicsd/cli/backup": f"{_OFFLINE} topicsd/offline topicsd/store topicsd/backup topicsd/cli",
    "topicsd/cli/server": "topicsd/cli topicsd/offline shared/contract shared/runtime shared/settings",
    # The one place from which the worker's side starts the supervisor.
    "topicsd/cli/serve.py": "router/ topicsd/cli topicsd/offline topicsd/disk topicsd/engine shared/",
    "topicsd": "topicsd/cli",
    # -- spark: reads files like the offline tools, or a server
    "spark": "spark/ shared/",
    "spark/chart": "topicsd/offline spark/jobs",
    "spark/examples": "spark spark/optimizer",
    "spark/view": (
        f"{_OFFLINE} spark spark/source topicsd/offline/ topicsd/catalog topicsd/catalog/shared "
        "topicsd/broker topicsd/backup"
    ),
    "spark/optimizer": "spark spark/source spark/task spark/view topicsd/segment",
    "spark/source": f"{_OFFLINE} spark spark/optimizer spark/sink spark/task spark/view topicsd/offline",
    "spark/task": (
        f"{_OFFLINE} spark spark/optimizer spark/source spark/view topicsd/offline topicsd/offline/check"
        " topicsd/catalog topicsd/catalog/shared topicsd/broker"
    ),
    "spark/sink": "spark spark/source spark/task spark/view topicsd/engine shared/",
    "spark/jobs": "spark spark/chart spark/source spark/view topicsd/offline topicsd/engine/ shared/",
    # -- loadtest
    "loadtest": "loadtest/ spark/ topicsd/ shared/",
    "loadtest/bench": "loadtest/ceilings loadtest/clients spark/chart",
    "loadtest/ceilings": "loadtest/engine topicsd/engine",
    "loadtest/clients": "loadtest/bench loadtest/ceilings loadtest/engine shared/",
    "loadtest/cluster": "loadtest/cluster/ loadtest/bench loadtest/clients shared/ topicsd/",
    "loadtest/cluster/figures": (
        "loadtest/cluster/ loadtest/bench loadtest/ceilings loadtest/store shared/ topicsd/"
    ),
    "loadtest/cluster/hammer": "loadtest/cluster loadtest/cluster/stack topicsd/broker",
    "loadtest/cluster/stack": "loadtest/cluster loadtest/bench loadtest/clients",
    "loadtest/engine": "topicsd/ shared/",
    "loadtest/store": "loadtest/bench loadtest/clients loadtest/engine topicsd/ shared/",
}

FILES_MIN: Final = 3
FILES_MAX: Final = 15
# Folders exempt from the size rule: entry points, and programs for users to copy.
ANY_SIZE: Final = ("topicsd", "router", "shared", "topicsd/http", "loadtest", "spark/examples", "tests")
