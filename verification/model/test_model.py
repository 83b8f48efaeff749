"""The model keeps every promise in every interleaving, and breaks one as soon as a fault is planted in it."""

import os
import time
from functools import cache

import pytest

from verification.model.explorer import Found, explore
from verification.model.properties import SETTLES, STATE, STEP
from verification.model.state import Config, Order

_LONG = bool(os.environ.get("EMS_TEST_LONG"))

SHORT = {
    "stream": Config(messages=3, faults=1, failures=1),
    "given back": Config(messages=2, faults=1, failures=1, give_back=True),
    "one after another": Config(messages=2, clients=1, faults=4),
    "holes": Config(messages=3, clients=1, published=False, faults=1),
    "counter rewound": Config(messages=2, clients=1, published=False, retention=True, rewinds=1),
    "retention": Config(messages=2, retention=True, faults=1, failures=1, max_attempts=1, requeues=1),
    "partition in order": Config(messages=3, order=Order.PARTITION, faults=1, failures=2),
    "key in order": Config(messages=3, order=Order.KEY, keys="aba", batch=3, faults=1, failures=1),
}
LONG = {
    "stream": Config(messages=3, faults=2, failures=2),
    "given back": Config(messages=3, faults=2, failures=1, give_back=True),
    "one after another": Config(messages=3, clients=1, faults=6, failures=1),
    "holes": Config(messages=4, clients=2, published=False, faults=1),
    "counter rewound": Config(messages=3, clients=1, published=False, retention=True, rewinds=1, faults=1),
    "retention": Config(messages=3, retention=True, faults=1, failures=2, requeues=1),
    "partition in order": Config(messages=3, order=Order.PARTITION, faults=2, failures=2, give_back=True),
    "key in order": Config(messages=4, order=Order.KEY, keys="abaa", batch=3, faults=1, failures=2),
}

MUTANTS = [
    ("fence dropped", "stream", "exactly one place"),
    ("fence dropped", "one after another", "effect exactly once"),
    ("effects apart", "stream", "effect exactly once"),
    ("acknowledged first", "stream", "nothing lost"),
    ("failures written later", "stream", "nothing lost"),
    ("cursor not locked", "stream", "exactly one place"),
    ("cursor moved first", "stream", "exactly one place"),
    ("rest given back later", "given back", "exactly one place"),
    ("lease trusted too long", "stream", "only the owner begins"),
    ("lease not looked at", "stream", "only the owner begins"),
    ("rest forgotten", "stream", "exactly one place"),
    ("recovered from an old look", "stream", "exactly one place"),
    ("retries kept claimed", "stream", "claimed retry has its claim"),
    ("first of the rest charged", "stream", "only the suspect is charged"),
    ("hole skipped", "holes", "cursor never passes unresolved"),
    ("hole never closed", "holes", SETTLES),
    ("tombstone overwritten", "holes", "nothing lost"),
    ("log start offset not checked", "counter rewound", "nothing lost"),
    ("log start offset above cursor", "retention", "log start offset never above needed"),
    ("log start offset above claims", "retention", "log start offset never above needed"),
    ("log start offset above retries", "retention", "log start offset never above needed"),
    ("second life not spared", "retention", "body kept while needed"),
    ("dead letter kept", "retention", "exactly one place"),
    ("owner not looked at", "partition in order", "one owner in ordered groups"),
    ("retry passed", "partition in order", "in order"),
    ("failure passed", "partition in order", "in order"),
    ("waiting claim passed", "partition in order", "in order"),
    ("key not blocked", "key in order", "in order"),
    ("blocked key not told", "key in order", "in order"),
    ("every one of the key promoted", "key in order", "in order"),
    ("next of the key forgotten", "key in order", SETTLES),
]


ACTIONS = {
    *(
        "take_range",
        "adopt",
        "take_retries",
        "begin",
        "unname",
        "end",
        "skip_blocked",
        "flush",
        "flush_open",
        "give_back",
        "share",
    ),
    *("die", "doubt", "renew", "leave", "deregister", "expire", "register", "recover"),
    *("allocate", "insert", "producer_dies", "rewind", "close_hole"),
    *("raise_log_start", "delete_below", "delete_restored", "requeue"),
}


@cache
def explored(name: str) -> Found:
    return explore((LONG if _LONG else SHORT)[name], 5_000_000)


@pytest.mark.parametrize("name", SHORT)
def test_every_interleaving_keeps_every_promise(name: str) -> None:
    began = time.monotonic()
    found = explored(name)
    print(f"{name}: {found} in {time.monotonic() - began:.1f} s")
    assert found.broken is None, found
    assert found.states > 200


@pytest.mark.parametrize(("mutant", "name", "broken"), MUTANTS)
def test_a_planted_fault_is_found(mutant: str, name: str, broken: str) -> None:
    found = explore(SHORT[name]._replace(mutant=mutant))
    print(f"{mutant}: {found.states} states, {found}")
    assert found.broken == broken, found


def test_every_action_takes_part() -> None:
    assert {action for name in SHORT for action in explored(name).actions} == ACTIONS


def test_every_property_catches_something() -> None:
    assert {broken for _, _, broken in MUTANTS} == {*STATE, *STEP, SETTLES}
