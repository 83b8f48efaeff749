"""Each fault that is planted in what was seen of tags and cancels is found; nothing in what is sound."""

from emsworker.chaos import HandlerRun
from verification.chaos.daily_rules import strays, wrong_effects


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
