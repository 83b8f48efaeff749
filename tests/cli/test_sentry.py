"""The recipe of docs/how-to/sentry.md in the processes of a worker, against a stand-in of Sentry's server."""

from dataclasses import replace

from tests.docs.snippets import ROOT, blocks
from tests.support.commands import Ems, wait_for
from tests.support.sentry import ingest
from tests.support.waiting import never

TASKS = """
    import asyncio
    import logging
    import os
    import signal

    from emsworker import Ems
    from tracker import Sentry

    app = Ems("work", middleware=[Sentry()], beat_s=0.2, ladder="100ms")
    log = logging.getLogger("work")

    @app.task(name="fails", max_attempts=2)
    def fails():
        raise ValueError("no")

    @app.task(name="says")
    async def says(text):
        await asyncio.sleep(0.05)
        log.error("odd %s", text)

    @app.task(name="kills", max_attempts=1)
    def kills():
        os.kill(os.getpid(), signal.SIGKILL)
"""


def sent(ems: Ems, task: str, body: str = "[]") -> str:
    """The id of a call that is sent now."""
    receipt: dict[str, str] = ems.ok("send", "default", body, "--task", task, "--json").json
    return receipt["id"]


def test_events_name_their_tasks_and_none_is_lost_at_a_stop(ems: Ems) -> None:
    page = ROOT / "docs" / "how-to" / "sentry.md"
    (recipe,) = (block for block in blocks(page) if block.title.endswith("tracker.py"))
    ems.write("tracker.py", recipe.text)
    ems.write("work.py", TASKS)
    with ingest() as sentry:
        ems = replace(ems, environ={**ems.environ, "SENTRY_DSN": sentry.dsn})
        with ems.running("worker", "-A", "work", "-p", "2", "-t", "1") as worker:
            worker.wait_ready()
            ids = {f"odd {n}": sent(ems, "says", f"[{n}]") for n in (1, 2)}
            failed = sent(ems, "fails")
            wait_for(lambda: len(sentry.of("says")) == 2 and sentry.of("fails"), worker.tell)
            killer = sent(ems, "kills")
            wait_for(lambda: sentry.of("kills"), worker.tell)
            said = {event["logentry"]["formatted"]: event["tags"]["message_id"] for event in sentry.of("says")}
            assert said == ids, "each coroutine has its own"
            (dead,), (lost,) = sentry.of("fails"), sentry.of("kills")
            assert dead["tags"]["message_id"] == failed and dead["contexts"]["message"]["attempt"] == 2
            (error,) = dead["exception"]["values"]
            assert (error["type"], error["value"]) == ("ValueError", "no")
            assert error["stacktrace"]["frames"][-1]["function"] == "fails"
            assert lost["tags"]["message_id"] == killer, "another process tells of it"
            assert lost["exception"]["values"][-1]["type"] == "WorkerLost"

            sentry.answering.clear()
            asked = sentry.asked
            sent(ems, "says", '["last"]')
            wait_for(lambda: sentry.asked > asked, worker.tell)
            worker.process.terminate()
            never(lambda: worker.process.poll(), 0.5, "it waits for its events")
            assert worker.process.poll() is None
            sentry.answering.set()
            assert worker.process.wait(30) == 0
            assert [event["logentry"]["formatted"] for event in sentry.of("says")][2:] == ["odd last"]
