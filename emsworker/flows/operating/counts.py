"""The flows of a stream in numbers, for ``ems check`` and Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from emsworker.extending.administration import Finding, Severity
from emsworker.extending.database import Session, Statements, server_now
from emsworker.extending.settings import Settings
from emsworker.extending.values import Rule, counted, format_duration
from emsworker.flows.operating.admin import OPEN, FlowCount, FlowFilter, count_flows
from emsworker.flows.rows import FAILED, READY, WAITING

T = TypeVar("T")
_SQL = Statements(__name__)
_MOST = 100_000
_LATE_S = 300.0
_ASKED = FlowFilter(states=(*OPEN, FAILED))


def checks() -> Sequence[Callable[[Session, Settings], Iterator[Finding]]]:
    """Return the checks of ``ems check``."""
    return (check_flows,)


def metrics() -> Sequence[Callable[[Session], Iterator[Any]]]:
    """Return the metrics of the stream."""
    return (count_for_metrics,)


def check_flows(session: Session, settings: Settings) -> Iterator[Finding]:
    """Yield what is known of the flows: how many there are, and those that need somebody."""
    counts = count_flows(session, _ASKED, _MOST)
    states = _sums((one.state, one.count) for one in counts)
    text = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none that has not ended"
    yield Finding(Severity.OK, "flows", text)
    if undone := sum(one.count for one in counts if one.state == FAILED and one.undone):
        over = "was undone: it is over" if undone == 1 else "were undone: they are over"
        yield Finding(Severity.OK, "flows", f"{counted(undone, 'flow')} failed and {over}")
    if failed := states[FAILED] - undone:
        fix = "`ems flows list --state failed` lists them, `ems flows retry` runs them on"
        yield Finding(Severity.WARNING, "flows", f"{counted(failed, 'flow')} failed", fix)
    unknown = _sums((f"{one.name}, {one.waits}", one.count) for one in counts if _lacks_version(one))
    for what, count in sorted(unknown.items()):
        fix = "no worker that runs now knows the version; start one with its code"
        yield Finding(Severity.WARNING, "flows", f"{counted(count, 'flow')} of {what}", fix)
    now = server_now(session)
    for name in sorted({one.name for one in counts if one.state == READY}):
        late_s = (now - min(one.oldest for one in counts if one.state == READY and one.name == name)).total_seconds()
        if late_s > _LATE_S:
            fix = "a worker of its group must run that has this function: `ems groups list`, `ems clients`"
            value = f"{name} is ready to run since {format_duration(late_s // 60 * 60)}"
            yield Finding(Severity.WARNING, "flows", value, fix)


def name_open(session: Session) -> Iterator[str]:
    """Yield a line about the flows that have not ended: they end on the server on which they began."""
    names = _sums((one.name, one.count) for one in count_flows(session, FlowFilter(states=OPEN), _MOST))
    if names:
        text = ", ".join(f"{name} ({count})" for name, count in sorted(names.items()))
        yield f"flows have not ended: {text}; let them, or cancel them with `ems flows cancel`"


def count_for_metrics(session: Session) -> Iterator[Any]:
    """Yield the flows that have not ended, and those that have failed, as metric families."""
    counts, now = count_flows(session, _ASKED, _MOST), server_now(session)
    numbers = _sums(((one.name, one.state), one.count) for one in counts)
    oldest = {
        key: max((now - one.oldest).total_seconds() for one in counts if (one.name, one.state) == key)
        for key in numbers
    }
    reasons = _sums(((one.name, _reason(one)), one.count) for one in counts if one.state == WAITING)
    yield _family("ems_flows", "Flows that have not ended, or have failed", "state", numbers)
    yield _family(
        "ems_flows_oldest_seconds",
        "Time since the flow changed that has been in its state for longest",
        "state",
        oldest,
    )
    yield _family("ems_flows_waiting", "Flows that wait, by what they wait for", "reason", reasons)


def measure_age(session: Session, rules: Sequence[Rule]) -> dict[str, dict[tuple[str, str], float]]:
    """Return the age of the oldest flow of each function that has not ended, for each rule of alarms."""
    ages = {(topic, name): float(age_s) for topic, name, age_s in session.rows(_SQL.list_ages, {"limit": _MOST})}
    return {rule.name: {place: age_s for place, age_s in ages.items() if rule.covers(*place)} for rule in rules}


def _family(name: str, text: str, label: str, values: Mapping[tuple[str, str], float]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=("name", label))
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _sums(pairs: Iterator[tuple[T, int]]) -> Counter[T]:
    total: Counter[T] = Counter()
    for key, count in pairs:
        total[key] += count
    return total


def _lacks_version(one: FlowCount) -> bool:
    return one.state == WAITING and (one.waits or "").startswith("a worker with version")


def _reason(one: FlowCount) -> str:
    """Return the kind of what a flow waits for: a name of a signal may be one of very many."""
    return "version" if _lacks_version(one) else (one.waits or "unknown").partition(" ")[0].rstrip(",")
