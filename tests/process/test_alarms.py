"""An alarm outlives the beat that raised it."""

import json
import signal
import stat
import sys
from pathlib import Path

from emsworker.admin import Admin
from tests.process.stream import Stream
from tests.process.test_beat import _holder_pid
from tests.support.waiting import until
from tests.support.webhooks import receiver
from tests.support.worker import kill


def test_an_alarm_fires_and_is_resolved_once_though_the_leader_is_killed_between(
    stream: Stream, tmp_path: Path
) -> None:
    program, out = tmp_path / "page", tmp_path / "out"
    program.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')\n")
    program.chmod(stat.S_IRWXU)
    admin = Admin(stream.app)
    admin.create_topic("acts")
    admin.create_group("acts", "a")
    with receiver() as web, receiver(hangs=True) as hung:
        admin.alarms.create("hung", on="no_consumer", webhook=hung.url)
        admin.alarms.create("idle", on="no_consumer", for_s=0.3, webhook=web.url, command=f"{program} {out}")
        beats = {beat.pid: beat for beat in [stream.beat({"alarm_commands": program}) for _ in range(2)]}
        stream.send("acts", [{"n": n} for n in range(10)])
        until(lambda: len(web.got) == 1 and out.exists() and hung.got, 20, f"it fires; log:\n{stream.logs()}")
        left = "SELECT COUNT(*) FROM ems_alarm_event WHERE rule = 'idle'"
        until(lambda: stream.one(left) == 0, 10, "both deliveries are noted")
        leader = _holder_pid(stream)
        kill(leader, signal.SIGKILL)
        beats.pop(leader).wait()
        until(lambda: _holder_pid(stream) in beats, 10, "another leads")
        worker = stream.worker(topics=["acts"], groups=["a"], beat=False)
        stream.wait_ended(list(range(10)))
        until(lambda: len(web.got) == 2 and len(out.read_text().splitlines()) == 2, 20, f"log:\n{stream.logs()}")
        assert worker.stop() == 0
        assert web.events == [("idle", "firing"), ("idle", "resolved")]
        assert web.got[0]["id"] == web.got[1]["id"]
        assert [json.loads(line)["event"] for line in out.read_text().splitlines()] == ["firing", "resolved"]
        (last,) = beats.values()
        assert last.stop() == 0, "a delivery that hangs keeps no beat from ending"
