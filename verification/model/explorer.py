"""Every interleaving: a breadth-first search over all states that the model can reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verification.model import keeping, running, taking
from verification.model.properties import SETTLES, Label, broken, settled
from verification.model.state import Config, State
from verification.model.taking import Step


@dataclass(frozen=True)
class Found:
    """What an exploration has found.

    Attributes:
        states, steps: how many there are.
        actions: which kinds of steps there are.
        broken: the property that does not hold, or ``None``; trace: the shortest way there.
    """

    states: int
    steps: int
    actions: frozenset[object] = frozenset()
    broken: str | None = None
    trace: tuple[Label, ...] = ()

    def __str__(self) -> str:
        if self.broken is None:
            return f"{self.states} states, {self.steps} steps"
        return f"broken: {self.broken}\n  " + "\n  ".join(" ".join(map(str, label)) for label in self.trace)


def next_steps(cfg: Config, s: State) -> Iterator[Step]:
    """Everything that can happen in a state."""
    for k in range(len(s.clients)):
        yield from taking.choices(cfg, s, k)
        yield from running.choices(cfg, s, k)
    yield from keeping.choices(cfg, s)


def canonical(s: State) -> State:
    """One of the states that differ in names only: clients are sorted, tokens counted from 1."""
    keys = [
        (c.life, c.lease, c.hold or (), c.last, [claim[:3] for claim in s.claims if claim.owner == k])
        for k, c in enumerate(s.clients)
    ]
    if len(keys) == 2 and keys[1] < keys[0]:
        claims = tuple(sorted(c._replace(owner=1 - c.owner) if c.owner >= 0 else c for c in s.claims))
        look = s.look._replace(owner=1 - s.look.owner) if s.look and s.look.owner >= 0 else s.look
        s = s._replace(clients=s.clients[::-1], claims=claims, look=look)
    tokens = [claim.token for claim in s.claims if claim.token]
    tokens += [client.hold.token for client in s.clients if client.hold]
    names = {0: 0} | {token: name for name, token in enumerate(dict.fromkeys(tokens), 1)}
    if all(token == name for token, name in names.items()):
        return s
    return s._replace(
        claims=tuple(claim._replace(token=names[claim.token]) for claim in s.claims),
        retries=tuple(retry._replace(token=names.setdefault(retry.token, len(names))) for retry in s.retries),
        clients=tuple(c._replace(hold=c.hold._replace(token=names[c.hold.token])) if c.hold else c for c in s.clients),
        look=s.look._replace(token=names.setdefault(s.look.token, len(names))) if s.look else None,
    )


def explore(cfg: Config, limit: int = 1_000_000) -> Found:
    """Visit every state; stops at the first that breaks a property.

    Raises:
        RuntimeError: there are more than ``limit`` states.
    """
    start = canonical(cfg.start())
    numbers, states = {start: 0}, [start]
    came: list[tuple[int, Label]] = [(0, ())]
    before: list[list[int]] = [[]]
    actions: set[object] = set()
    steps = at = 0
    while at < len(states):
        for label, after in next_steps(cfg, states[at]):
            steps += 1
            actions.add(label[0])
            if name := broken(cfg, label, after):
                return Found(len(states), steps, frozenset(actions), name, (*_way(came, at), label))
            after = canonical(after)
            number = numbers.setdefault(after, len(states))
            if number == len(states):
                if number >= limit:
                    raise RuntimeError(f"more than {limit} states; make the model smaller")
                states.append(after)
                came.append((at, label))
                before.append([])
            before[number].append(at)
        at += 1
    stuck = _stuck(cfg, states, before)
    if stuck is not None:
        return Found(len(states), steps, frozenset(actions), SETTLES, _way(came, stuck))
    return Found(len(states), steps, frozenset(actions))


def _way(came: list[tuple[int, Label]], at: int) -> tuple[Label, ...]:
    way = []
    while at:
        at, label = came[at]
        way.append(label)
    return tuple(reversed(way))


def _stuck(cfg: Config, states: list[State], before: list[list[int]]) -> int | None:
    """The first state from which there is no way to one where nothing is left to be done."""
    todo = [number for number, state in enumerate(states) if settled(cfg, state)]
    good = set(todo)
    while todo:
        for number in before[todo.pop()]:
            if number not in good:
                good.add(number)
                todo.append(number)
    return next((number for number in range(len(states)) if number not in good), None)
