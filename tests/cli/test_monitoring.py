"""What serves HTTP, and what is exported: mistakes are one line, and nothing is half done."""

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from emsworker.observe.http import parse_address
from tests.cli.test_worker import TASKS
from tests.support.commands import Ems


def test_addresses() -> None:
    assert parse_address("9000") == parse_address(":9000") == ("127.0.0.1", 9000), "there is no authentication"
    assert parse_address("0.0.0.0:9000") == ("0.0.0.0", 9000)
    assert parse_address("[::1]:9000") == ("::1", 9000)
    for wrong in ("", "localhost", "::1:9000", "http://x:9000", "x:70000", "a b:1"):
        with pytest.raises(ValueError, match="is not an address to listen at"):
            parse_address(wrong)


def test_an_address_that_is_wrong_or_taken_is_one_line(ems: Ems) -> None:
    ems.write("work.py", TASKS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = ems("worker", "-A", "work", "--http", port)
        assert done.code == 1 and done.errors == [
            f"Error: cannot listen at 127.0.0.1:{port}: Address already in use; "
            "choose another address (--http or EMS_HTTP)"
        ]
    done = ems("worker", "-A", "work", http="everywhere")
    assert done.code == 2 and "'everywhere' is not an address" in done.err
    assert ems("monitoring", "serve", "1:2:3").code == 2
    assert ems("health", "ftp://x/").code == 2
    done = ems("health", port)
    assert done.code == 1 and done.errors[0].startswith(f"Error: http://127.0.0.1:{port}/livez cannot be reached: ")


def test_the_metrics_of_a_stream_are_served_until_a_stop(ems: Ems) -> None:
    ems.ok("topics", "create", "orders")
    ems.ok("groups", "create", "orders", "billing")
    with ems.running("monitoring", "serve", "0") as serve:
        serve.wait_ready()
        url = serve.out.read_text().split()[-1]
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert 'ems_group_unclaimed{group="billing",topic="orders"} 0.0' in answer.read().decode()
        done = ems.ok("health", url.replace("/metrics", "/scale/orders/billing"), "--json")
        assert done.json["workers"] == 0
        assert serve.stop() == 0


def test_files_are_not_replaced_unless_told(bare: Ems, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "monitoring"
    written = bare.ok("monitoring", "export", str(folder), "--json").json["written"]
    assert sorted(Path(name).name for name in written) == sorted(path.name for path in folder.iterdir())
    assert json.loads((folder / "ems-dashboard.json").read_text())["title"] == "EMS"
    (folder / "ems-rules.yml").write_text("mine")
    done = bare("monitoring", "export", str(folder))
    assert done.code == 2 and "ems-rules.yml" in done.err and (folder / "ems-rules.yml").read_text() == "mine"
    bare.ok("monitoring", "export", str(folder), "--force")
    assert "EmsDeadLetters" in (folder / "ems-rules.yml").read_text()
