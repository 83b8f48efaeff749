"""What can be measured, by name, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import stage
from bench.lines import LINES, Line
from bench.peers import compare
from bench.peers.systems import PEERS, System
from bench.studies import cheap, finding, flat, loaded, scale
from bench.studies.finding import Study

_PEERS = {peer.line: peer for peer in PEERS}
STUDIES = (*flat.STUDIES, *cheap.STUDIES, *scale.STUDIES, *loaded.STUDIES)
_STUDIES = {study.name: study for study in STUDIES}
_GROUPS = ("lines", "peers", "flat", "cheap", "scale", "loaded")
NAMES = (*_GROUPS, *(line.name for line in LINES), *_PEERS, *_STUDIES)


@dataclass(frozen=True)
class Sizes:
    """How much is measured of each kind."""

    lines: stage.Size
    peers: compare.PeersSize
    studies: finding.StudySize


SIZES = {
    "quick": Sizes(stage.QUICK, compare.QUICK, finding.QUICK),
    "default": Sizes(stage.DEFAULT, compare.DEFAULT, finding.DEFAULT),
    "full": Sizes(stage.FULL, compare.FULL, finding.FULL),
}


@dataclass(frozen=True)
class Suite:
    """What was asked for."""

    lines: list[Line]
    peers: list[System]
    studies: list[Study]


def chosen(names: Sequence[str]) -> Suite:
    """The lines that these names mean; everything, if there are none.

    Args:
        names: of lines, or of groups of them.
    """
    wanted = set(names or _GROUPS)

    def has(group: str, name: str) -> bool:
        return group in wanted or name in wanted

    return Suite(
        [line for line in LINES if has("lines", line.name)],
        [peer for name, peer in _PEERS.items() if has("peers", name)],
        [study for name, study in _STUDIES.items() if has(name.partition("/")[0], name)],
    )
