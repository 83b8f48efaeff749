"""The keys of what ``--json`` prints, which programs read: none that was recorded is gone.

After additions, ``EMS_RECORD=1 python -m pytest tests/cli/test_json_keys.py`` records what is there now.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from emsworker import Ems as App
from emsworker.cli.main import ems as root
from emsworker.core.model import HandlerRow
from emsworker.store.engine.database import Database
from emsworker.store.groups import handlers
from tests.cli.test_bounds import commands
from tests.cli.test_commands import rows

_RECORD = Path(__file__).parents[2] / "docs" / "reference" / "json-keys.json"
_OF_USERS = {"headers", "body", "attributes", "args", "kwargs", "value", "result", "argument", "tasks_by_name"}
_ELSEWHERE = {
    "chaos",
    "local",
    "pipeline",
    "monitoring",
    "health",
    "top",
}  # they need a folder, a server, a job or a clock
_OF_CHANGES = {  # what each was asked for, and what became of it
    "flows cancel", "flows delete", "flows retry", "flows show", "flows signal", "readers forget", "readers release",
    "refused delete", "refused retry", "servers retire", "topics move",
}  # fmt: skip
_GIVEN = [
    "topics create parcels --partitions 2",
    "topics change parcels --keep-done 1d",
    "topics list",
    "groups create orders late --from end",
    "groups change orders late --timeout 5m",
    "groups limit orders late --rate 5/s",
    "groups list",
    "groups list orders --partitions",
    "groups reset orders late --to earliest --yes",
    "groups skip orders late --older-than 1d --yes",
    "groups replay orders stats --from 1 --to 3 --yes",
    "groups delete orders late --force --yes",
    "tasks list",
    "tasks pause orders mail shop.add",
    "tasks resume orders mail shop.add",
    "servers list",
    "clients",
    "send orders 7 --key a --header color=red",
    "messages list orders",
    "messages get orders/0/8",
    "messages peek orders stats",
    "messages contains orders {id}",
    "trace orders/0/7",
    "cancel orders {later}",
    "dead list",
    "dead list --by error",
    "dead show orders/0/7",
    "dead requeue orders/0/7 --yes",
    "dead delete --all --yes",
    "refused list",
    "schedules add nightly shop.add --every 1h",
    "schedules change nightly --every 2h",
    "schedules pause nightly",
    "schedules resume nightly",
    "schedules list",
    "schedules delete nightly --yes",
    "alarms create slow --on lag --above 10",
    "alarms silence slow --for 1h",
    "alarms silences",
    "alarms unsilence 1",
    "alarms test slow",
    "alarms list",
    "alarms delete slow --yes",
    "readers list",
    "flows list",
    "topics stale parcels",
    "topics purge parcels --yes",
    "topics delete parcels --yes",
    "audit",
    "check",
    "grants worker --user shop@10.0.0.%",
    "migrate",
]


def test_no_key_that_was_recorded_is_gone(busy: str, app: App, stream: Database, url: str) -> None:
    ((mail,),) = rows(url, "SELECT id FROM ems_group WHERE name = 'mail'")
    stream.call(lambda s: handlers.declare(s, mail, [HandlerRow("shop.add", "retry", None, None)]))
    ids = {"id": app.send("orders", 1).id, "later": app.send("orders", "later", delay="1h").id}
    found: dict[str, set[str]] = {}
    for line in _GIVEN:
        words = line.format(**ids).split()
        done = CliRunner().invoke(root, [*words, "--json"], env={"EMS_URL": url})
        assert done.exit_code in (0, 1) and done.stdout, f"{line}: {done.output}"
        found.setdefault(_command(words), set()).update(_keys(json.loads(done.stdout)))
    now = {name: sorted(keys) for name, keys in sorted(found.items())}
    if "EMS_RECORD" in os.environ:
        _RECORD.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    gone = {name: {*keys} - found.get(name, set()) for name, keys in json.loads(_RECORD.read_text()).items()}
    assert not {name: keys for name, keys in gone.items() if keys}, "it needs a new major version"


def test_every_command_with_json_is_looked_at() -> None:
    with_json = {name for name, one in commands(root) if any("--json" in option.opts for option in one.params)}
    left_out = {name for name in with_json if name.split()[0] in _ELSEWHERE or name in _OF_CHANGES}
    assert with_json - left_out == {_command(line.split()) for line in _GIVEN}


def _command(words: Sequence[str]) -> str:
    """The command's name, without what it is given."""
    return max((name for name, _ in commands(root) if words[: name.count(" ") + 1] == name.split()), key=len)


def _keys(value: Any, above: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _keys(one, f"{above}[]")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield f"{above}.{key}"
            if key not in _OF_USERS:
                yield from _keys(one, f"{above}.{key}")
