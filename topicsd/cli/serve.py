"""`topicsd serve`: the start of a server, from its settings to running the supervisor.

The data directory is locked before it is read: two servers that start at once would both create a layout. The
lock is a descriptor of this process that children do not inherit, so the kernel releases it when this process
ends for any reason. The workers of a supervisor that died hold the locks of their shards until they have
drained, and the workers of the next server wait for those locks.

A server that other machines can reach without a key is usually a mistake. It is refused unless the setting
`allow_insecure_no_auth` asks for it.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from shared.contract.api_keys import parse_keys
from shared.http.cors import Origins
from shared.ipc.key_file import KeyStorage
from shared.runtime.log_setup import fields, set_up_logging
from shared.runtime.program_version import program_version
from shared.settings.settings import DECLARED, Settings
from shared.settings.sources import Resolved
from topicsd.cli.command import Command
from topicsd.cli.data_directory import lock_data_dir, lock_node_of, open_data_layout
from topicsd.cli.outside_paths import refuse_outside_paths
from topicsd.cli.setting_flags import add_setting_flags, config_path, resolved_settings
from topicsd.disk.access import denial_of
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.key_file import key_file_problem, read_keys, write_keys
from topicsd.disk.layout import INSTANCE_BYTES, LAYOUT_FORMAT, Layout
from topicsd.disk.placement_file import placement_path
from topicsd.disk.shard_dirs import ShardDirectories
from topicsd.engine.shard import new_shard_count
from topicsd.offline.command_error import CommandError

ROLE: Final = "supervisor"

logger = logging.getLogger("topicsd.serve")


def run(args: argparse.Namespace) -> int:
    resolved = resolved_settings(args, os.environ)
    settings = resolved.settings
    reload_settings = settings_loader(args, os.environ)
    # Children do not inherit the secrets: the settings hold their digests, which is all that they need.
    for field in DECLARED:
        if field.setting.is_secret:
            os.environ.pop(field.variable, None)
    set_up_logging(settings.log, ROLE)
    # Imported here, so that the other commands do not pay for loading the supervisor.
    from router.supervision import systemd

    try:
        listen_sockets = systemd.take_listen_sockets(os.environ)
    except systemd.ListenError as error:
        raise CommandError(str(error)) from None
    fs = RealFs()
    refuse_open_access(settings, listen_sockets, has_named_keys(fs, settings))
    refuse_outside_paths(fs, resolved)
    if settings.memory:
        refuse_interpreter(sys.executable)
        layout = new_layout(settings)
        namespace = secrets.token_hex(INSTANCE_BYTES)
        return _serve(resolved, layout, namespace, listen_sockets, reload_settings, KeyStorage())
    lock = lock_data_dir(fs, settings.data_dir)
    node_lock: DirLock | None = None
    try:
        layout = open_data_layout(fs, settings, resolved.sources)
        node_lock = lock_node_of(fs, settings, layout.instance)
        refuse_interpreter(sys.executable)
        # Again: a server that ended only now may have changed them.
        storage = key_storage(fs, settings.data_dir)
        refuse_open_access(settings, listen_sockets, has_keys=bool(storage.keys))
        return _serve(resolved, layout, lock.identity, listen_sockets, reload_settings, storage)
    finally:
        if node_lock is not None:
            node_lock.release()
        lock.release()


def _serve(
    resolved: Resolved,
    layout: Layout,
    namespace: str,
    listen_sockets: list[socket.socket],
    reload_settings: Callable[[], Resolved | str],
    storage: KeyStorage,
) -> int:
    from router.supervision import supervisor, systemd

    refuse_interpreter(sys.executable)
    log_start(resolved, layout, listen_sockets, len(storage.keys))
    return supervisor.run(
        resolved.settings,
        layout.shards,
        layout.instance,
        namespace,
        listen_sockets,
        *_placement_arguments(resolved.settings),
        systemd.open_notify(os.environ),
        load_settings=reload_settings,
        keys=storage,
    )


def has_named_keys(fs: Fs, settings: Settings) -> bool:
    """Return whether there are named keys, as far as the data directory can be read.

    Why it cannot be read is said when it is opened.
    """
    try:
        return not settings.memory and bool(key_storage(fs, settings.data_dir).keys)
    except (NotADirectoryError, PermissionError):
        return False


def key_storage(fs: Fs, data_dir: str) -> KeyStorage:
    """Return the named keys of the data directory and how they are replaced."""
    data_dir = os.path.abspath(data_dir)
    problem = key_file_problem(fs, data_dir)
    if problem:
        raise CommandError(problem)
    return KeyStorage(read_keys(fs, data_dir), partial(write_keys, fs, data_dir))


def _placement_arguments(settings: Settings) -> tuple[str, ShardDirectories | None]:
    """Return the path of the placement file and the directories of the shards."""
    if settings.memory:
        return "", None
    data_dir = os.path.abspath(settings.data_dir)
    return placement_path(data_dir), ShardDirectories(RealFs(), data_dir)


def new_layout(settings: Settings) -> Layout:
    """Return the layout of a server that has no data directory."""
    return Layout(
        format=LAYOUT_FORMAT,
        shards=new_shard_count(settings.shards),
        instance=secrets.token_hex(INSTANCE_BYTES),
    )


def settings_loader(args: argparse.Namespace, environ: Mapping[str, str]) -> Callable[[], Resolved | str]:
    """Return a function that reads the same settings again, or returns a sentence on failure.

    Only the configuration file can have changed. The function keeps a copy of the environment in which keys
    are replaced by their digests.
    """
    environment = dict(environ)
    for field in DECLARED:
        if field.setting.is_secret and field.setting.normalise and field.variable in environment:
            environment[field.variable] = field.setting.normalise(environment[field.variable])

    def load() -> Resolved | str:
        if config_path(args, environment) is None:
            return "no configuration file to reload; name one with --config or TOPICS_CONFIG"
        try:
            return resolved_settings(args, environment)
        except (CommandError, OSError) as error:
            return str(error)

    return load


def refuse_interpreter(path: str) -> None:
    """Raise CommandError when no worker can be started: this process may run as another user."""
    if not os.access(path, os.X_OK):
        why = denial_of(os.path.realpath(path)) if os.path.lexists(path) else "it is missing"
        raise CommandError(
            f"cannot start workers: {path or 'the Python interpreter'} cannot be executed: {why}; "
            "install Python and topicsd where this user may execute them"
        )


def refuse_open_access(
    settings: Settings, listen_sockets: list[socket.socket], has_keys: bool = False
) -> None:
    """Raise CommandError when other machines have access without a key and no setting allows it.

    `has_keys` says that there are named keys.
    """
    if has_keys or settings.api_keys or settings.allow_insecure_no_auth:
        return
    if Origins(settings.cors_origins).is_any:
        raise CommandError(
            "TOPICS_CORS_ORIGINS is *, and TOPICS_API_KEYS is not set: every web page that is open near "
            "the server could read, write and delete everything; name the origins, set "
            "TOPICS_API_KEYS, or allow this with TOPICS_ALLOW_INSECURE_NO_AUTH=1"
        )
    for host in addresses(settings, listen_sockets):
        if not is_loopback(host):
            raise CommandError(
                f"{host} can be reached from other machines, and TOPICS_API_KEYS is not set: every client "
                "could read, write and delete everything; set TOPICS_API_KEYS, or allow this with "
                "TOPICS_ALLOW_INSECURE_NO_AUTH=1"
            )


def addresses(settings: Settings, listen_sockets: list[socket.socket]) -> list[str]:
    """Return the hosts on which the server listens: of the passed sockets, else the setting."""
    return [one.getsockname()[0] for one in listen_sockets] or [settings.host]


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, or a name of which all addresses are."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"cannot resolve host {host}: {cause}") from None
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in resolved)


def log_start(
    resolved: Resolved, layout: Layout, listen_sockets: list[socket.socket], named_keys: int = 0
) -> None:
    settings = resolved.settings
    keys = len(parse_keys(settings.api_keys)) + named_keys
    from router.accept.listening import address_text, addresses_of

    address = addresses_of(listen_sockets) or address_text(settings.host, settings.port)
    logger.info(
        "topicsd %s starts",
        program_version(),
        extra=fields(
            data_dir="(in memory)" if settings.memory else os.path.abspath(settings.data_dir),
            shards=layout.shards,
            address=address,
            passed_sockets=len(listen_sockets),
            keys=keys,
        ),
    )
    for variable in resolved.ignored_variables:
        logger.debug("%s: ignored: set by Kubernetes for a Service", variable)
    for sentence in resolved.advice:
        logger.warning("%s", sentence)
    if not keys:
        logger.warning(
            "authentication: off: every client that reaches this address can read, write and delete "
            "everything; set TOPICS_API_KEYS"
        )


COMMAND = Command(
    name="serve",
    summary="run the server",
    description="Run the server until SIGTERM or SIGINT; a missing data directory is created.",
    example="  topicsd serve\n  topicsd serve --port 0 --port-file port.txt --data-dir ./topics-data",
    add_arguments=add_setting_flags,
    run=run,
    exit_codes="exit codes: 0 stopped on request, 1 the server failed, 2 invalid arguments or settings",
)
