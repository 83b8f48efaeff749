"""Bodies that are small and costly to decode, looked at by pages over HTTP and by commands; and pages that take long."""

import json
import os
import pickle
import re
import subprocess
import sys
import threading
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emsworker.core.preview import TEXT_BYTES, PreviewDecoder
from emsworker.web import site
from tests.support.commands import environment
from tests.support.machine import machine_s
from tests.support.streams import Stream
from tests.web.conftest import Visiting

_YAML = {"content-type": "application/x-yaml"}
_ZLIB = {"compression": "application/x-gzip"}
_LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 60)}]\n" for n in range(1, 13)
)
_DEEP = ",".join(["[" * 300 + "]" * 300] * 1000)
BOMBS: dict[str, tuple[bytes, dict[str, str], str]] = {
    "yaml": (_LAUGHS.encode(), _YAML, "a body of YAML is not decoded"),
    "packed yaml": (zlib.compress(_LAUGHS.encode()), _YAML | _ZLIB, "a body of YAML is not decoded"),
    "zlib": (zlib.compress(b"[" + b"{}," * 13_000_000 + b"0]"), _ZLIB, "the limit of what is shown"),
    "objects": (b"[" + b"{}," * 340_000 + b"0]", {}, "more than 100000 objects"),
    "large": (b'["' + b"x" * (3 << 20) + b'"]', {}, "has more than 1048576 bytes"),
    "300 deep": (f"[{_DEEP}]".encode(), {}, "more than 100000 objects"),
    "less of it": (f"[{_DEEP[: 601 * 300 - 1]}]".encode(), {}, ""),
    "900 deep": (b"[" * 900 + b"]" * 900, {}, "nested more than 400 deep"),
    "pickle": (pickle.dumps({"now": 1}), {"content-type": "application/x-python-serialize"}, "a body of pickle"),
    "bytes as keys": (b"\x81\xc4\x01a\x01", {"content-type": "application/x-msgpack"}, ""),
    "half a pair": (b'{"x": "\\ud800"}', {"also": "\ud800"}, ""),
    "long headers": (b"{}", {"x": "y" * 70_000}, "the headers have more than 65536 bytes"),
}
_MOST_S, _MOST_KB = 2.0, 100 << 10


@pytest.fixture(scope="module")
def bombed(stream: Stream) -> Stream:
    """A stream with each bomb as a message of its topic ``bombs``, and as a dead letter of its group ``g``."""
    topic = stream.topic("bombs")
    group = stream.group(topic, "g")
    app = stream.app()
    for raw, headers, _ in [(b'{"n": 1}', {}, ""), *BOMBS.values()]:
        sent = app.send("bombs", b"?")
        stream.rows(
            "UPDATE ems_message SET body = %s, headers = %s, size = %s WHERE topic_id = %s AND `offset` = %s",
            raw, json.dumps(headers).encode(), len(raw), topic.id, sent.offset,
        )  # fmt: skip
    stream.rows(
        "INSERT INTO ems_dead (group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, attempts, "
        "task, error_type, reason, error) SELECT %s, `partition`, `offset`, uid, headers, body, born_at, producer_id, NOW(6), 1, "
        "'', 'E', 'bad', 'E: bad' FROM ems_message WHERE topic_id = %s AND kind = 'message'",
        group.id, topic.id,
    )  # fmt: skip
    return stream


@pytest.fixture(scope="module")
def site_of(bombed: Stream) -> Iterator[tuple[str, int]]:
    """Address and process of a dashboard of its own."""
    command = [sys.executable, "-u", "-m", "emsworker", "web", "--port", "0", "--access", "reader"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment({"EMS_URL": bombed.url}), text=True
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+/", process.stdout.readline())
        assert address is not None
        yield address[0].rstrip("/"), process.pid
    finally:
        process.terminate()
        process.wait(30)


def _get(url: str) -> tuple[float, str]:
    began = machine_s()
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return machine_s() - began, text


def _peak_kb(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def test_pages_show_what_is_costly_to_decode_at_once_and_in_little_memory(site_of: tuple[str, int]) -> None:
    url, pid = site_of
    _get(f"{url}/trace?id=bombs/0/1"), _get(f"{url}/dead/bombs/g/0/1")
    idle = _peak_kb(pid)
    for offset, (name, (_, _, problem)) in enumerate(BOMBS.items(), 2):
        for path in (f"/trace?id=bombs/0/{offset}", f"/dead/bombs/g/0/{offset}"):
            took_s, text = _get(url + path)
            assert took_s < _MOST_S, (name, path, took_s)
            assert problem in text and len(text) < 400_000, (name, path)
            if problem and "headers" not in problem:
                assert "This is its text" in text
    assert "*a11" in _get(f"{url}/trace?id=bombs/0/3")[1], "packed YAML is unpacked, and not parsed"
    assert "Only the first 64 KB" in _get(f"{url}/trace?id=bombs/0/8")[1]
    for path in ("/messages?topic=bombs", "/messages?topic=bombs&where=body[0]=1", "/messages/bombs/0/5", "/dead"):
        took_s, _ = _get(url + path)
        assert took_s < _MOST_S, (path, took_s)
    with ThreadPoolExecutor(8) as pool:
        all(pool.map(lambda n: _get(f"{url}/trace?id=bombs/0/{n % 5 + 2}"), range(24)))
    assert _peak_kb(pid) - idle < _MOST_KB


def _command(url: str, arguments: Sequence[str], folder: Path) -> tuple[int, str, str, float, int]:
    """Run a command; return its exit code, what it says, its seconds of processor time, and its peak of memory in kB."""
    out, err = folder / "out", folder / "err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "emsworker", *arguments],
            stdout=out_file,
            stderr=err_file,
            env=environment({"EMS_URL": url}),
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = out.read_text(errors="surrogateescape"), err.read_text()
    return process.returncode, *text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def test_commands_show_what_is_costly_to_decode_at_once_and_in_little_memory(bombed: Stream, tmp_path: Path) -> None:
    _, _, _, idle_s, idle = _command(bombed.url, ["messages", "get", "bombs/0/1"], tmp_path)
    for offset, (name, (raw, _, problem)) in enumerate(BOMBS.items(), 2):
        place = f"bombs/0/{offset}"
        for command in (["messages", "get", place], ["messages", "get", place, "--json"], ["dead", "show", place]):
            code, out, err, took_s, peak = _command(bombed.url, command, tmp_path)
            assert code == 0 and problem in out, (name, command, out[:300], err)
            assert took_s - idle_s < _MOST_S and peak - idle < _MOST_KB, (name, command, took_s, peak - idle)
            if "--json" in command:
                (found,) = json.loads(out)
                assert (found["problem"] is None) == (not problem)
                assert not problem or len(found["body"]) <= TEXT_BYTES
            elif name in ("less of it", "large"):
                assert len(out) < 3 * TEXT_BYTES
            assert ("cut after 64 KB" in err) == (name == "less of it" and "--json" not in command)
        if name in ("yaml", "large"):
            assert _command(bombed.url, ["messages", "get", place, "--raw"], tmp_path)[1].encode() == raw
    _, out, _, took_s, peak = _command(bombed.url, ["messages", "list", "bombs", "--json"], tmp_path)
    page = json.loads(out)
    assert took_s - idle_s < _MOST_S and peak - idle < _MOST_KB and page["messages"][0]["body"] == {"n": 1}


def test_a_list_of_bombs_ends_at_its_budget(bombed: Stream, tmp_path: Path) -> None:
    """Each of them is allowed alone; fifty would take 400 MB together."""
    topic, app = bombed.topic("many"), bombed.app()
    app.send_many("many", [b"?"] * 50)
    raw = zlib.compress(b"[" + b"{}," * 45_000 + b"0]")
    where = "UPDATE ems_message SET body = %s, headers = %s, size = %s WHERE topic_id = %s"
    bombed.rows(where, raw, json.dumps(_ZLIB).encode(), len(raw), topic.id)
    _, _, _, _, idle = _command(bombed.url, ["messages", "get", "bombs/0/1"], tmp_path)
    code, out, _, _, peak = _command(bombed.url, ["messages", "list", "many", "--json"], tmp_path)
    problems = [one["problem"] for one in json.loads(out)["messages"]]
    assert code == 0 and len(problems) == 50 and problems[0] is None and "look at this body alone" in problems[-1]
    assert peak - idle < 2 * _MOST_KB
    # Plain bodies end the page instead, and the next one goes on.
    bombed.topic("plain")
    app.send_many("plain", ["x" * 900_000 for _ in range(12)])
    seen: list[int] = []
    after: list[str] = []
    while len(seen) < 12:
        page = json.loads(_command(bombed.url, ["messages", "list", "plain", "--json", *after], tmp_path)[1])
        assert 0 < len(page["messages"]) < 12 and (page["after"] is not None or len(seen) + len(page["messages"]) == 12)
        seen += [one["offset"] for one in page["messages"]]
        after = ["--after", page["after"]] if page["after"] else []
    assert seen == list(range(1, 13))


def test_a_body_that_is_not_decoded_is_not_shown_where_parts_are_hidden(bombed: Stream, visit: Visiting) -> None:
    for hide in ({"bombs": ["card"]}, lambda topic, body: body):
        for path in ("/trace?id=bombs/0/2", "/dead/bombs/g/0/2"):
            text = visit("reader", redact=hide).get(path).text
            assert "a body of YAML is not decoded" in text and "*a11" not in text
    assert "*a11" in visit("reader", redact={"orders": ["card"]}).get("/trace?id=bombs/0/2").text


def test_pages_that_take_long_are_answered_and_hold_up_no_other(
    stream: Stream, visit: Visiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_DEADLINE_S", 1.0)
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def hide(topic: str, body: object) -> object:
        begun.release()
        assert go_on.wait(60)
        return body

    client = visit("reader", redact=hide)
    try:
        with client, ThreadPoolExecutor(8) as pool:
            slow = [pool.submit(client.get, "/trace?id=orders/0/1") for _ in range(6)]
            assert begun.acquire(timeout=30)
            assert client.get("/groups").status_code == 200 and client.get("/dead").status_code == 200
            for one in slow:
                answer = one.result(60)
                assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
                assert "was not ready after 1 s" in answer.text and "Ann" not in answer.text
    finally:
        go_on.set()
    assert visit("reader").get("/trace?id=orders/0/1").status_code == 200


def test_a_plan_of_a_replay_ends_in_time(bombed: Stream, visit: Visiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emsworker.web.groups._PLAN_S", 0.0)
    answer = visit("reader").get("/groups/bombs/g/replay?plan=1&where=body.n=1")
    assert answer.status_code == 400 and "narrow it" in answer.text


def test_whatever_a_message_holds_is_viewed() -> None:
    for raw, headers in (
        (b"\xff", b"{"),
        (b"", b""),
        (b"x", b'{"compression": "?"}'),
        (b"{}", b'{"content-type": "?"}'),
    ):
        view = PreviewDecoder().preview(headers, raw)
        assert view.problem and view.text is not None and view.body is None
    assert PreviewDecoder().preview(b"", None).problem is None
