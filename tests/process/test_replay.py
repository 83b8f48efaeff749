"""A replay into a group whose workers are busy: through real processes."""

from collections import Counter

from emsworker.admin import Admin, Selection
from tests.process.stream import Stream


def test_a_replay_beside_live_workers_runs_each_chosen_message_once_more(one_stream: Stream) -> None:
    stream, count = one_stream, 600
    stream.worker(topics=["acts"], groups=["a", "b"], threads=1)
    stream.send("acts", [{"n": n} for n in range(count)], tag="old")
    stream.wait_settled()
    admin = Admin(stream.app)
    replays = [Selection(start="101", end="400"), Selection(where="body.n >= 450 and body.n < 500 and tag = 'old'")]
    stream.send("acts", [{"n": n} for n in range(count, 2 * count)], tag="new")
    for selection in replays:
        found = admin.replay("acts", "a", selection).run()
        assert sum(one.again for one in found) == sum(one.chosen for one in found) > 0
    stream.send("acts", [{"n": n} for n in range(2 * count, 3 * count)], tag="new")
    stream.wait_settled(40)
    again = [*range(100, 400), *range(450, 500)]
    ran = Counter(stream.record.numbers(group="a"))
    assert ran == Counter([*range(3 * count), *again])
    assert Counter(stream.record.numbers(group="b")) == Counter(range(3 * count))
    for chosen in (range(100, 400), range(450, 500)):
        order = [one["n"] for one in stream.record.events("end", group="a") if one["n"] in chosen]
        assert order == [*chosen, *chosen], "a single thread runs them in the order of their offsets"


def test_what_is_new_does_not_wait_for_a_long_replay(one_stream: Stream) -> None:
    stream, count = one_stream, 200
    Admin(stream.app).create_topic("acts")
    stream.worker(topics=["acts"], groups=["a"], threads=1)
    stream.send("acts", [{"n": n, "do": "sleep", "s": 0.005} for n in range(count)])
    stream.wait_settled()
    Admin(stream.app).replay("acts", "a", Selection(start="1", end=str(count))).run()
    stream.send("acts", [{"n": count}])
    stream.wait_ended([count])
    left = count - (len(stream.record.numbers()) - count - 1)
    stream.wait_settled()
    assert left > count / 4, "it came in between"
