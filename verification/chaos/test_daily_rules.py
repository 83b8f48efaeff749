"""Each fault that is planted in what was seen of schedules, tags and cancels is found; nothing in what is sound."""

from collections.abc import Callable

import pytest

from emsworker.chaos import HandlerRun
from verification.chaos.daily_rules import Change, Firing, strays, wrong_effects, wrong_slots

CHANGES = [
    Change(1.0, 1, 9.8, 10.3),
    Change(1.0, 2, 14.4, 14.6),  # other arguments
    Change(None, 2, 18.5, 18.7),  # a pause
    Change(0.5, 3, 21.1, 21.2),
    Change(None, 3, 23.2, 23.3),  # a deletion
]
SOUND = [
    *(Firing(slot, slot + 0.1, 1) for slot in range(11, 15)),
    Firing(15, 15.1, 2),
    Firing(16, 17.9, 2),  # by the next beat
    Firing(17, 17.9, 2),
    Firing(18, 18.1, 2),
    *(Firing(21 + slot / 2, 21.1 + slot / 2, 3) for slot in range(1, 5)),
]

PLANTED: list[tuple[Callable[[list[Firing]], object], str]] = [
    (lambda seen: seen.append(Firing(12, 12.2, 1)), "slot 12.0 was fired 2 times"),
    (lambda seen: seen.remove(Firing(12, 12.1, 1)), "slot 12.0 was not fired"),
    (lambda seen: seen.remove(Firing(15, 15.1, 2)), "slot 15.0 was not fired"),
    (lambda seen: seen.append(Firing(23.5, 23.5, 3)), "slot 23.5 was fired at 23.500"),
    (lambda seen: seen.append(Firing(24, 40.0, 3)), "no state had it so"),
    (lambda seen: seen.append(Firing(19, 19.1, 2)), "slot 19.0 was fired at 19.100"),
    (lambda seen: seen.append(Firing(18.5, 18.6, 2)), "no state had it so"),
    (lambda seen: seen.append(Firing(25, 24.0, 3)), "no state had it so"),
    (lambda seen: seen.append(Firing(20, 21.3, 3)), "slot 20.0 was fired at 21.300"),  # it passed in the pause
    (lambda seen: seen.append(Firing(23, 23.4, 3)), "no state had it so"),
    (lambda seen: seen.__setitem__(4, Firing(15, 15.1, 1)), "at 15.100 with 1"),
]


def test_sound_slots_have_no_finding() -> None:
    assert list(wrong_slots("s", CHANGES, SOUND)) == []
    assert list(wrong_slots("s", CHANGES[:1], [Firing(10, 10.2, 1), *SOUND[:4]])) == [], "not confirmed, and it held"


@pytest.mark.parametrize(("plant", "text"), PLANTED)
def test_each_planted_slot_is_found(plant: Callable[[list[Firing]], object], text: str) -> None:
    seen = list(SOUND)
    plant(seen)
    assert any(text in one for one in wrong_slots("s", CHANGES, seen)), list(wrong_slots("s", CHANGES, seen))


def _run(began: float, group: str = "g", pid: int = 1) -> HandlerRun:
    return HandlerRun("u", "t", 0, 1, group, pid, began)


def test_a_run_without_its_tag_is_found() -> None:
    needs = {"any": frozenset[str](), "gpu": frozenset({"gpu"}), "both": frozenset({"gpu", "eu"})}
    tags = {1: frozenset[str](), 2: frozenset({"gpu"}), 3: frozenset({"gpu", "eu"})}
    sound = [_run(1, "any", 1), _run(1, "any", 3), _run(1, "gpu", 2), _run(1, "gpu", 3), _run(1, "both", 3)]
    assert list(strays(sound, needs, tags)) == []
    for group, pid, lacks in (("gpu", 1, "gpu"), ("both", 2, "eu"), ("both", 1, "eu, gpu")):
        (found,) = strays([*sound, _run(1, group, pid)], needs, tags)
        assert found.endswith(f"process {pid}, which has no {lacks}")


def test_an_effect_of_a_cancelled_call_is_found() -> None:
    answers = {"a": "done", "b": "cancelled"}
    assert list(wrong_effects(answers, {"a": 1})) == []
    for effects in ({}, {"a": 2}, {"a": 1, "b": 1}):
        assert len(list(wrong_effects(answers, effects))) == 1
