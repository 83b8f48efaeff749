"""What holds of tags and cancels, judged from what was seen; shares no code with the system."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from emsworker.chaos import HandlerRun


def strays(
    runs: Sequence[HandlerRun], needs: Mapping[str, frozenset[str]], tags: Mapping[int, frozenset[str]]
) -> Iterator[str]:
    """Find runs by processes whose worker lacks a tag that their group requires.

    Args:
        needs: the tags that groups require; tags: those of processes.
    """
    for run in runs:
        if missing := needs.get(run.group, frozenset()) - tags[run.pid]:
            yield f"{run.uid} was run for group {run.group} by process {run.pid}, which has no {', '.join(sorted(missing))}"


def wrong_effects(answers: Mapping[str, str], effects: Mapping[str, int]) -> Iterator[str]:
    """Find cancelled calls with an effect, and others without it.

    Args:
        answers: the final state of each call, by its id; effects: how often the effect of each is there.
    """
    wanted: dict[str, int] = defaultdict(lambda: 1, cancelled=0)
    for uid, state in answers.items():
        if effects.get(uid, 0) != wanted[state]:
            yield f"{uid} is {state}, and its effect is there {effects.get(uid, 0)} times"
