"""What the stream of an arena lives on: a server alone, one behind a breakable network, one on a small disk, or a pair."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from emsworker.local import LocalDatabase as Server
from tests.support.clusters import Cluster, clustered
from tests.support.prepared import PreparedDatabase
from tests.support.replication import Replicated, replicating
from tests.support.routers import Router, routed
from tests.support.servers import fresh_database
from verification.chaos.network import Network

_DISK_BYTES = 800 << 20  # a new data folder takes up to half of it
_BLOCKS = (1 << 20, 1 << 12)


class CannotMount(Exception):
    """This machine does not let us have a disk of our own; the text says why, and what would help."""


class Disk:
    """A small file system of its own (tmpfs), which can be filled.

    Args:
        folder: where it is mounted; it is made.

    Raises:
        CannotMount: mounting takes root, or CAP_SYS_ADMIN in a container.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hog = folder / "somebody-else"
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=0700", "ems-chaos", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except OSError as error:
            raise CannotMount(f"mount cannot be run: {error}") from error
        if done.returncode:
            raise CannotMount(f"{done.stderr.strip()}; run as root, in a container with --cap-add SYS_ADMIN")

    def fill(self) -> None:
        """Leave no byte: somebody else's file takes what there is."""
        with self._hog.open("ab", buffering=0) as file:
            for block in _BLOCKS:
                try:
                    while True:
                        file.write(bytes(block))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    @property
    def free_bytes(self) -> int:
        """How much is left."""
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_bsize

    def free(self) -> None:
        """Remove the file."""
        self._hog.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it; what is on it is gone."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True, timeout=30)


@dataclass
class Site:
    """Where the stream of an arena lives.

    Args:
        server: what scenarios kill and start.
        url: of the database, as the harness reaches it; it is another after a failover.
        told: what workers and producers are told.
    """

    server: Server
    url: str
    told: str
    network: Network | None = None
    disk: Disk | None = None
    pair: Replicated | None = None
    cluster: Cluster | None = None
    router: Router | None = None

    @property
    def engine(self) -> str:
        """What the table calls it."""
        if self.router:
            return "router"
        return self.cluster.name if self.cluster else self.server.flavor


Open = Callable[[Server, Path], AbstractContextManager[Site]]


@contextmanager
def alone(server: Server, folder: Path) -> Iterator[Site]:
    """A database of its own on a server that others use as well."""
    server.start(120)
    with fresh_database(server) as url:
        yield Site(server, url, url)


@contextmanager
def networked(server: Server, folder: Path) -> Iterator[Site]:
    """The same, and a network between it and its clients."""
    server.start(120)
    with fresh_database(server) as url:
        network = Network(url)
        try:
            yield Site(server, url, network.url, network=network)
        finally:
            network.close()


@contextmanager
def on_a_small_disk(server: Server, folder: Path) -> Iterator[Site]:
    """A server of the same flavor whose data folder is a small file system; its log stays outside, to be read."""
    own = PreparedDatabase(folder / "server", server.flavor)
    own.start(120)
    own.stop(60)
    data, made = own.folder / "data", own.folder / "data.made"
    data.rename(made)
    disk = Disk(data)
    try:
        shutil.copytree(made, data, dirs_exist_ok=True)
        shutil.rmtree(made)
        own.start(120)
        yield Site(own, own.url, own.url, disk=disk)
    finally:
        own.kill()
        disk.close()


@contextmanager
def replicated(server: Server, folder: Path) -> Iterator[Site]:
    """A primary of the same flavor and its semi-synchronous replica; clients are told of both."""
    with replicating(server.flavor, folder / "pair") as pair:
        yield Site(pair.primary, pair.primary.url, pair.url, pair=pair)


@contextmanager
def group_replication(server: Server, folder: Path) -> Iterator[Site]:
    """Three members of a replication group of MySQL; clients are told of all."""
    with clustered("group-replication") as cluster:
        yield _of_cluster(cluster)


@contextmanager
def routed_group(server: Server, folder: Path) -> Iterator[Site]:
    """The same, behind MySQL Router: clients are told its address alone."""
    with clustered("group-replication") as cluster, routed(cluster, "round-robin") as router:
        site = _of_cluster(cluster)
        site.told, site.router = router.url, router
        yield site


@contextmanager
def galera(server: Server, folder: Path) -> Iterator[Site]:
    """Three nodes of a Galera cluster of MariaDB; clients are told of all."""
    with clustered("galera") as cluster:
        yield _of_cluster(cluster)


def _of_cluster(cluster: Cluster) -> Site:
    primary = cluster.primary()
    return Site(cluster.nodes[primary], cluster.url_of(primary), cluster.url, cluster=cluster)


def turn_to_replica(site: Site) -> None:
    """After a failover the harness looks at the former replica, too."""
    assert site.pair
    site.server, site.url = site.pair.replica, site.pair.replica_url


def database_of(url: str) -> str:
    """The database's name in a URL."""
    return re.sub(r".*/", "", url)
