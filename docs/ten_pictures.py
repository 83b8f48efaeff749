"""``python -m docs.ten_pictures``: draws docs/img/ten-*.svg, the pictures of "EMS in ten pictures".

Each is a few boxes, cells and arrows on a grid, so that all look alike and a test can compare them with this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "img"
_STYLE = """
.box { fill: #eef3fa; stroke: #2f6fb0 } .db { fill: #fdf3e7; stroke: #c97a2b }
.bad { fill: #fbeceb; stroke: #b8433f } .good { fill: #eaf5ee; stroke: #3a9459 }
.plain { fill: #ffffff; stroke: #8a94a3 } .soft { fill: none; stroke: #8a94a3; stroke-dasharray: 4 3 }
text { fill: #1d2733 } .small { font-size: 12px; fill: #4b5a6b } .title { font-weight: 600 }
path { stroke: #5b6b7d; fill: none; marker-end: url(#tip) }
marker path { fill: #5b6b7d; stroke: none; marker-end: none }
@media (prefers-color-scheme: dark) {
.box { fill: #1d2a3a; stroke: #6ea3da } .db { fill: #33281b; stroke: #dba15f }
.bad { fill: #3a2224; stroke: #df7f7b } .good { fill: #1c3226; stroke: #6dc28d }
.plain { fill: #20262e; stroke: #7d8a99 }
text { fill: #e6ebf1 } .small { fill: #a9b6c5 } path { stroke: #9aa8b8 } marker path { fill: #9aa8b8 } }
"""
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z"/></marker></defs>'
)
_LINE = 18  # pixels from one line of text to the next
_CELL = 40


class Picture:
    """Boxes, cells and arrows.

    Args:
        said: what it shows, for those who cannot see it.
        height: pixels; all are 760 wide.
    """

    def __init__(self, said: str, height: int) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img" '
            f'aria-label="{escape(said)}" font-family="system-ui, sans-serif" font-size="14">'
        )
        self._parts = [f"<style>{_STYLE}</style>", _TIP]

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """A line of text; ``y`` is its base line."""
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def box(
        self, x: float, y: float, width: float, title: str, *lines: str, kind: str = "box", high: float = 0
    ) -> None:
        """A box with a title and small lines, as high as these need, or as ``high`` pixels."""
        height = high or 14 + _LINE * (len(lines) + 1)
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        self.text(x + 12, y + 22, title, "title")
        for number, line in enumerate(lines, 1):
            self.text(x + 12, y + 22 + _LINE * number, line, "small")

    def cells(self, x: float, y: float, texts: Sequence[str], kinds: str | Sequence[str] = "plain") -> None:
        """A row of cells, as of offsets; a kind for all or one for each."""
        each = [kinds] * len(texts) if isinstance(kinds, str) else kinds
        for number, (text, kind) in enumerate(zip(texts, each, strict=True)):
            left = x + _CELL * number
            self._parts.append(f'<rect class="{kind}" x="{left:g}" y="{y:g}" width="{_CELL}" height="30"/>')
            self.text(left + _CELL / 2, y + 20, text, anchor="middle")

    def arrow(self, path: str, text: str = "", x: float = 0, y: float = 0) -> None:
        """An arrow along an SVG path, with a small text somewhere."""
        self._parts.append(f'<path d="{path}"/>')
        if text:
            self.text(x, y, text, "small", "middle")

    def svg(self) -> str:
        """The file's text."""
        return "\n".join((self._head, *self._parts, "</svg>\n"))


def message() -> Picture:
    """A topic, its partitions and offsets."""
    one = Picture("A topic has partitions; each message is a row with the next offset of its partition", 190)
    one.box(10, 30, 170, "app.send(...)", "topic orders", "key customer-3")
    one.box(300, 10, 450, "topic orders", kind="db", high=168)
    for number, (cells, y) in enumerate(((["1", "2", "3", "4", "5", "6"], 44), (["1", "2", "3", "4"], 86))):
        one.text(312, y + 20, f"partition {number}", "small")
        one.cells(400, y, cells, ["plain"] * (len(cells) - 1) + ["good" if number == 0 else "plain"])
    one.text(312, 148, "partition 2", "small")
    one.cells(400, 128, ["1", "2", "3", "4", "5"])
    one.arrow("M180 60H296", "INSERT, COMMIT", 238, 52)
    one.text(12, 130, "the key chooses the partition,", "small")
    one.text(12, 148, "and the partition gives the offset", "small")
    return one


def sent() -> Picture:
    """A send within the transaction of the application."""
    one = Picture("An order and its message are written by one transaction: both are there, or neither", 170)
    one.box(10, 20, 200, "Your transaction", "INSERT INTO orders ...", "app.send(..., transaction=)", "COMMIT")
    one.box(330, 10, 190, "your table", "order 7", kind="db")
    one.box(330, 84, 190, "the stream", "message for order 7", kind="db")
    one.box(600, 46, 150, "Both, or neither", "no message for an", "order that is not", kind="good")
    one.arrow("M210 44C270 44 270 34 326 34")
    one.arrow("M210 70C270 70 270 108 326 108")
    one.arrow("M520 34C560 34 560 70 596 70")
    one.arrow("M520 108C560 108 560 96 596 96")
    return one


def claimed() -> Picture:
    """Workers claim ranges of offsets."""
    one = Picture("A group has a cursor; each worker claims the next range of offsets in one statement", 230)
    one.text(10, 30, "partition 0", "small")
    one.cells(90, 10, [str(n) for n in range(1, 16)], ["plain"] * 3 + ["good"] * 4 + ["box"] * 4 + ["plain"] * 4)
    one.arrow("M530 90V46", "cursor of the group", 530, 106)
    one.box(170, 80, 200, "worker A", "claim 1: offsets 4 to 7", "acks them with its next claim", kind="good")
    one.box(250, 160, 200, "worker B", "claim 2: offsets 8 to 11", kind="box")
    one.arrow("M270 80V46")
    one.arrow("M410 160V46")
    one.text(600, 140, "one row for a claim,", "small")
    one.text(600, 158, "however many messages", "small")
    one.text(600, 176, "it holds", "small")
    return one


def read_twice() -> Picture:
    """Several groups read one topic."""
    one = Picture("Each group has its own cursor over the same messages, and can be set back to read them again", 200)
    one.text(10, 90, "topic orders", "small")
    one.cells(100, 70, [str(n) for n in range(1, 15)])
    one.box(60, 10, 150, "group ledger", kind="good")
    one.box(420, 10, 150, "group billing")
    one.box(200, 150, 210, "group reports, set back", kind="box")
    one.arrow("M210 30H380V66")
    one.arrow("M570 30H620V66")
    one.arrow("M200 168H120V104", "replay", 160, 140)
    one.text(430, 150, "messages stay after they are handled:", "small")
    one.text(430, 168, "a new group reads all that retention keeps", "small")
    return one


def once() -> Picture:
    """Effect and acknowledgement are one commit."""
    one = Picture(
        "A transactional handler's rows and its acknowledgement are one commit, which a fenced worker cannot make", 176
    )
    one.box(10, 20, 200, "Handler", "INSERT INTO ledger ...", "returns")
    one.box(280, 20, 200, "One commit", "the row in ledger", "the ack, if the lease holds", kind="good")
    one.box(550, 20, 200, "Booked once", "whatever is killed when", kind="db")
    one.arrow("M210 50H276")
    one.arrow("M480 50H546")
    one.box(280, 112, 200, "Lease lost", "all of it is rolled back", kind="bad")
    one.arrow("M110 88V136H276", "killed, paused or too late", 190, 128)
    return one


def recovered() -> Picture:
    """A worker dies and another one goes on."""
    one = Picture(
        "A killed worker's lease runs out, the beat gives its claim back, and another worker runs the rest", 150
    )
    one.box(10, 20, 150, "worker A", "claims 4 to 7", "acks 4, is killed", kind="bad")
    one.box(210, 20, 150, "lease", "not renewed", "ends after 15 s", kind="soft")
    one.box(410, 20, 150, "ems beat", "moves 5, 6 and 7", "to the retries")
    one.box(610, 20, 140, "worker B", "runs 5, 6, 7", kind="good")
    for x in (160, 360, 560):
        one.arrow(f"M{x} 50H{x + 46}")
    one.text(
        10,
        124,
        "Each client renews its lease every 5 seconds. What a late worker still writes is refused: it is fenced.",
        "small",
    )
    return one


def retried() -> Picture:
    """The ladder of a failing message."""
    one = Picture(
        "A message that fails waits on a ladder of delays, alone, and becomes a dead letter after its attempts", 190
    )
    one.cells(10, 20, ["4", "5", "6", "7"], ["good", "bad", "good", "good"])
    one.text(10, 74, "its neighbours are done,", "small")
    one.text(10, 92, "and the cursor goes on", "small")
    for number, delay in enumerate(("1 s", "10 s", "1 min")):
        x = 240 + 110 * number
        one.box(x, 110 - 40 * number, 80, delay, kind="soft", high=34)
    one.arrow("M70 50C70 127 130 127 236 127", "fails", 130, 146)
    one.arrow("M320 127C335 127 335 87 346 87")
    one.arrow("M430 87C445 87 445 47 456 47")
    one.box(590, 20, 160, "dead letter", "error, body, stack;", "retry it after a fix", kind="bad")
    one.arrow("M540 47H586")
    return one


def ordered() -> Picture:
    """Order by key."""
    one = Picture("Messages of one key run one after the other, those of different keys side by side", 180)
    one.cells(10, 20, ["a1", "b1", "a2", "c1", "b2", "a3"], ["good", "box", "good", "db", "box", "good"])
    for number, (name, cells, kind) in enumerate(
        (("key a", ["a1", "a2", "a3"], "good"), ("key b", ["b1", "b2"], "box"), ("key c", ["c1"], "db"))
    ):
        y = 20 + 50 * number
        one.text(400, y + 20, name, "small")
        one.cells(450, y, cells, kind)
        one.arrow(f"M250 35C320 35 320 {y + 15} 390 {y + 15}")
    one.text(10, 130, "also when a1 fails and is retried:", "small")
    one.text(10, 148, "a2 and a3 wait, b and c do not", "small")
    return one


def flow() -> Picture:
    """A flow of many steps."""
    one = Picture(
        "A flow runs a step, calls tasks side by side, joins them once, and goes on after a crash where it was", 210
    )
    one.box(10, 70, 130, "charge card", "checkpoint", kind="good")
    for number in range(3):
        y = 10 + 66 * number
        one.box(230, y, 130, f"label {number + 1}", "a task of its own", kind="box" if number == 2 else "good")
        one.arrow(f"M140 94C185 94 185 {y + 24} 226 {y + 24}")
        one.arrow(f"M360 {y + 24}C405 {y + 24} 405 94 446 94")
    one.box(450, 70, 120, "join", "happens once", kind="soft")
    one.box(630, 70, 120, "hand over")
    one.arrow("M570 94H626")
    one.text(450, 170, "after a crash, finished steps return", "small")
    one.text(450, 188, "their checkpoint and do not run again", "small")
    return one


def servers() -> Picture:
    """A stream over several servers."""
    one = Picture("Each topic lives on one of several servers, and moves to another one while senders send", 190)
    topics = (("orders", "mail"), ("clicks",), ("parcels", "stock"))
    for number, names in enumerate(topics):
        x = 10 + 255 * number
        one.box(x, 20, 230, f"server {number + 1}", kind="db", high=96)
        for place, name in enumerate(names):
            one.box(x + 12 + 105 * place, 56, 98, name, kind="plain", high=34)
    one.box(265, 140, 230, "ems topics move mail east", kind="soft", high=34)
    one.arrow("M166 94C166 150 200 157 261 157")
    one.arrow("M440 140V78")
    one.text(520, 150, "senders and workers follow,", "small")
    one.text(520, 168, "and no message is lost or doubled", "small")
    return one


PICTURES: dict[str, Callable[[], Picture]] = {
    one.__name__.replace("_", "-"): one
    for one in (message, sent, claimed, read_twice, once, recovered, retried, ordered, flow, servers)
}


def drawn() -> dict[Path, str]:
    """Each file with its text."""
    return {FOLDER / f"ten-{name}.svg": draw().svg() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    for file, text in drawn().items():
        file.write_text(text, encoding="utf-8")
