"""A server of HTTP in a process of its own, and a client of it."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emsworker.http.tokens import new_token
from tests.process.stream import Stream
from tests.support.commands import Ems, Running
from tests.support.waiting import until
from tests.support.worker import QUICK


@dataclass(frozen=True)
class Answer:
    """An answer."""

    status: int
    json: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> str:
        """The code of an error."""
        found: str = self.json["error"]["code"]
        return found


@dataclass
class Server:
    """A server that runs.

    Args:
        tokens: by role.
    """

    running: Running
    port: int
    tokens: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def open(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def headers(self, role: str = "worker") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: Any = None, role: str | None = "worker", **headers: str) -> Answer:
        """Ask on a connection of its own; a body of bytes goes as it is."""
        connection = self.open()
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, (self.headers(role) if role else {}) | headers)
            answer = connection.getresponse()
            text = answer.read()
            is_json = "json" in (answer.getheader("content-type") or "")
            return Answer(answer.status, json.loads(text) if is_json else text.decode(), dict(answer.getheaders()))
        finally:
            connection.close()

    def post(self, path: str, body: Any, role: str | None = "worker") -> Answer:
        return self.ask("POST", path, body, role)

    def ok(self, path: str, body: Any) -> Any:
        """Post what must succeed."""
        answer = self.post(path, body)
        assert answer.status == 200, (path, answer)
        return answer.json

    def send(self, topic: str, *bodies: Any) -> list[str]:
        """Send bodies; return their ids."""
        sent = self.ok(f"/v1/topics/{topic}/messages", {"messages": [{"body": body} for body in bodies]})
        return [one["id"] for one in sent["messages"]]

    def fetch(self, topic: str, group: str = "g", **options: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ok(f"/v1/topics/{topic}/groups/{group}/fetch", options)["messages"]
        return found

    def events(self, path: str, **headers: str) -> list[tuple[str, str, Any]]:
        """The name, id and data of each event of a stream, to its end."""
        answer = self.ask("GET", path, **headers)
        assert answer.status == 200, answer
        found = []
        for block in answer.json.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith((":", "retry")))
            if "data" in fields:
                found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
        return found


@contextmanager
def serving(stream: Stream, folder: Path, *options: str, url: str = "", **settings: Any) -> Iterator[Server]:
    """Run `ems http` with tokens of each role, and one of the role worker that is for topics ``only.*`` alone.

    Args:
        url: of the database; by default as a worker, with its rights alone if the stream goes by roles.
    """
    made = {role: new_token(role, role, "*") for role in ("reader", "producer", "worker")}
    made["only"] = new_token("only", "worker", "only.*")
    (folder / "tokens").write_text("".join(f"{line}\n" for _, line in made.values()))
    environ = {f"EMS_{name.upper()}": str(value) for name, value in (QUICK | settings).items()}
    ems = Ems({"EMS_URL": url or stream.urls["alone"], **environ}, folder)
    with ems.running("http", "--port", "0", "--tokens", str(folder / "tokens"), *options) as running:
        told = until(
            lambda: re.findall(r"http://[^:]+:(\d+)/", running.out.read_text()) or running.process.poll() is not None,
            60,
            "it tells its address",
        )
        assert isinstance(told, list), running.tell()
        yield Server(running, int(told[0]), {role: token for role, (token, _) in made.items()})
