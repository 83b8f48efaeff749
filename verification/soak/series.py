"""A series of samples, and how much it may rise."""

from dataclasses import dataclass, field

from verification.soak.trend import Trend, judge

# By the first word of a series: the unit, and by how much it may rise, in that unit and as a share of its beginning.
KINDS: dict[str, tuple[str, float, float]] = {
    "rss": ("MiB", 8, 0.1),
    "files": ("open files", 5, 0.0),
    "threads": ("threads", 3, 0.0),
    "connections": ("connections", 5, 0.0),
    "rows": ("rows", 100, 0.3),
    "bytes": ("MiB", 16, 0.3),
    "history": ("transactions", 2000, 0.5),
    "claim": ("ms", 50, 0.5),
    "run": ("ms", 50, 0.5),
    "backlog": ("messages", 200, 0.5),
    "checker": ("sends and runs", 2000, 0.3),
}


@dataclass
class Series:
    """Samples of one figure.

    Attributes:
        name: its first word is a kind.
        judged: it has to be flat; the others are drawn only.
        who: of each sample, whose it is: a process that is replaced begins anew.
    """

    name: str
    judged: bool = True
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    who: list[object] = field(default_factory=list)

    @property
    def unit(self) -> str:
        """Of its values."""
        return KINDS[self.name.split()[0]][0]

    def add(self, at: float, value: float, who: object = None) -> None:
        """One more sample."""
        self.times.append(at)
        self.values.append(value)
        self.who.append(who)

    def trend(self, after: float) -> Trend:
        """Whether it is flat after the warm-up, over the longest time for which it was one and the same process's."""
        spans: dict[object, list[int]] = {}
        for place, at in enumerate(self.times):
            if at >= after:
                spans.setdefault(self.who[place], []).append(place)
        longest = max(spans.values(), key=len, default=[])
        _, tolerated, relative = KINDS[self.name.split()[0]]
        return judge([self.times[n] for n in longest], [self.values[n] for n in longest], tolerated, relative)
