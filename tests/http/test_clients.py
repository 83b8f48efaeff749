"""The clients that `ems http client` prints: they run, are killed, and lose nothing; outside of CI if they can be run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.http.calling import Server
from tests.support.commands import Ems
from tests.support.waiting import until

_JS = """
import { appendFileSync } from "node:fs";
import { Ems } from "./ems.mjs";
const [what, url, token, topic] = process.argv.slice(2);
const ems = new Ems(url, token);
if (what === "send") {
  for (let n = 0; n < 20; n++) await ems.send(topic, { n }, { key: `k${n}` });
  await ems.sendMany(topic, [{ body: { n: 20 } }, { body: { n: 21 } }]);
} else {
  const stop = new AbortController();
  await ems.run(topic, "g", async (message) => {
    if (what === "die" && message.body.n === 3) process.kill(process.pid, "SIGKILL");
    if (message.body.n === 5 && message.attempt === 1) throw new Error("not at first");
    if (message.body.n === 7) await new Promise((resolve) => setTimeout(resolve, 2500)); // longer than its lease
    appendFileSync("effects.txt", `${message.body.n}\\n`);
    if (message.body.n === 99) stop.abort();
  }, { concurrency: 4, lease_s: 2, signal: stop.signal });
}
"""
_GO = """
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"example.com/shop/ems"
)

func main() {
	what, topic := os.Args[1], os.Args[4]
	client := ems.Client{URL: os.Args[2], Token: os.Args[3]}
	ctx, stop := context.WithCancel(context.Background())
	if what == "send" {
		for n := 0; n < 22; n++ {
			if _, err := client.Send(ctx, topic, map[string]int{"n": n}, ems.Options{"key": fmt.Sprint("k", n)}); err != nil {
				panic(err)
			}
		}
		return
	}
	err := client.Run(ctx, topic, "g", 4, 2*time.Second, func(message ems.Message) error {
		var body struct{ N int }
		if err := json.Unmarshal(message.Body, &body); err != nil {
			return err
		}
		if what == "die" && body.N == 3 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if body.N == 5 && message.Attempt == 1 {
			return errors.New("not at first")
		}
		if body.N == 7 {
			time.Sleep(2500 * time.Millisecond) // longer than its lease
		}
		effects, err := os.OpenFile("effects.txt", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer effects.Close()
		fmt.Fprintln(effects, body.N)
		if body.N == 99 {
			stop()
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
}
"""
Command = Callable[..., "subprocess.Popen[bytes]"]


def _node(folder: Path, code: str) -> list[str]:
    (folder / "ems.mjs").write_text(code)
    (folder / "shop.mjs").write_text(_JS)
    return ["node", "shop.mjs"]


def _go(folder: Path, code: str) -> list[str]:
    (folder / "go.mod").write_text("module example.com/shop\n\ngo 1.19\n")
    (folder / "ems").mkdir()
    (folder / "ems" / "ems.go").write_text(code)
    (folder / "shop.go").write_text(_GO)
    places = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOCACHE": str(folder / "cache"), "HOME": str(folder)}
    subprocess.run(["go", "vet", "./..."], cwd=folder, env={**os.environ, **places}, check=True, timeout=300)
    subprocess.run(["go", "build", "-o", "shop"], cwd=folder, env={**os.environ, **places}, check=True, timeout=300)
    return ["./shop"]


@pytest.mark.parametrize(
    ("language", "program", "prepare"),
    [("js", "node", _node), pytest.param("go", "go", _go, marks=pytest.mark.slow)],
    ids=["js", "go"],
)
def test_a_client_that_is_killed_loses_nothing(
    language: str, program: str, prepare: Callable[[Path, str], list[str]], site: Server, tmp_path: Path
) -> None:
    if shutil.which(program) is None and not os.environ.get("CI"):
        pytest.skip(
            f"{program} is not installed; on Debian: apt-get install {'nodejs' if language == 'js' else 'golang-go'}"
        )
    command = prepare(tmp_path, Ems({}, tmp_path).ok("http", "client", language).out)
    topic = f"client-{language}"

    def start(what: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, what, site.url, site.tokens["worker"], topic], cwd=tmp_path)

    def effects() -> list[int]:
        path = tmp_path / "effects.txt"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    assert start("send").wait(60) == 0
    assert start("die").wait(60) == -9
    with start("work") as worker:
        try:
            until(lambda: {*effects()} >= {*range(22)}, 60, "all are done")
            again = [n for n in {*effects()} if effects().count(n) > 1]
            assert len(again) <= 4, "what was in hand when it was killed, at most"
            site.send(topic, {"n": 99})
            assert worker.wait(60) == 0
        finally:
            worker.kill()
    assert site.fetch(topic) == []
