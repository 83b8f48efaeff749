"""The servers of a URL: when an earlier one is gone back to."""

from types import SimpleNamespace
from typing import Any

import pytest

from emsworker.core.url import DatabaseUrl
from emsworker.store.engine import nodes
from emsworker.store.engine.nodes import SeveralServers, nodes_of
from emsworker.store.engine.standing import ServerRole


@pytest.mark.parametrize(("view", "goes_back"), [("3", False), ("4", True)])
def test_a_node_is_gone_back_to_only_in_the_view_of_the_one_in_use(
    monkeypatch: pytest.MonkeyPatch, view: str, goes_back: bool
) -> None:
    """One that was frozen says for some seconds that it is in the primary component, and a commit hangs there."""
    several = nodes_of(DatabaseUrl.parse("mysql://ems@one,two,three/ems"))
    assert isinstance(several, SeveralServers)
    several._first = 1  # the one in use
    in_use: Any = SimpleNamespace(may_change=True, next_look=0.0, number=1)
    monkeypatch.setattr(nodes, "standing_now", lambda _: ServerRole("galera", many=True, view="4"))
    monkeypatch.setattr(
        several, "_ask", lambda number: ServerRole("galera", many=True, view=view if number == 0 else "")
    )
    assert several.still_serves(in_use) is not goes_back
