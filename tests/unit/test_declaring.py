"""Apps, tasks and their options, without a server."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.errors import AppNotFound, ConfigError, DecodeError, InvalidName, UnknownTask
from emsworker.core.ladder import Ladder
from emsworker.core.model import Message
from emsworker.loader import load_app
from emsworker.publish.outgoing import Outgoing
from emsworker.store.engine.sql import Statements, split_script
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.route import PASSED_OVER
from tests.support.statements import sql_files, statements_beside

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("on_error", "shrug"), ("batch", -1), ("batch", "5"), ("batch", True), ("max_attempts", 0),
        ("max_attempts", "3"), ("max_attempts", 70000), ("timeout_s", 0), ("timeout_s", "1s"),
        ("soft_time_limit_s", -1), ("ladder", "1x"),
        ("hard_time_limit_s", float("nan")), ("hard_time_limit_s", float("inf")), ("colour", "red"),
        ("retry_for", "ConnectionError"), ("retry_for", ()), ("no_retry_for", (ValueError, 1)), ("retry_after", 5),
        ("requires", "g p u"), ("requires", 5), ("requires", tuple("abcdefghi")), ("fair", "a.b"), ("fair", 1),
    ],
)  # fmt: skip
def test_a_wrong_task_option_is_named(option: str, value: Any) -> None:
    app = Ems("test")
    with pytest.raises(ConfigError) as caught:
        app.task(**{option: value})(print)
    assert [problem.name for problem in caught.value.problems] == [option]


def test_all_wrong_options_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        HandlerOptions(on_error="shrug", batch=-1, max_attempts=0, timeout_s=-1, ladder="x")
    assert len(caught.value.problems) == 5


def test_a_task_has_its_own_ladder_over_the_groups() -> None:
    group = Ladder.parse("1s 2s", 5, 0.0)
    assert HandlerOptions().ladder_over(group) is group
    assert HandlerOptions(max_attempts=9).ladder_over(group) == Ladder((1.0, 2.0), 9, 0.0)
    assert HandlerOptions(ladder="7s").ladder_over(group) == Ladder((7.0,), 5, 0.0)


def test_a_name_is_taken_once() -> None:
    app = Ems("test")
    app.task(name="a")(print)
    with pytest.raises(ConfigError, match="has a handler"):
        app.task(name="a")(print)
    with pytest.raises(ConfigError, match="has a handler"):
        app.subscribe("default", "workers")(print)
    app.subscribe("t", "g")(print)
    with pytest.raises(ConfigError, match="another group"):
        app.subscribe("t", "g")(print)
    with pytest.raises(InvalidName):
        app.task(name="no blanks")(print)


def message(app: Ems, body: bytes, headers: bytes = b"") -> Message:
    row = (1, b"\x00" * 16, None, None, headers, body, "2026-11-20 00:00:00.000000")
    return Message("default", 0, row, app.stream.decoder)


def test_a_task_gets_its_arguments_and_its_request() -> None:
    app = Ems("test")

    @app.task(bind=True, name="add")
    def add(self: Any, a: int, b: int) -> tuple[int, str, int]:
        return a + b, self.request.task, self.request.attempt

    route = app.registry.routes["default", "workers"]
    sent = message(app, b'[[1],{"b":2}]', b'{"ems-task":"add"}')
    assert route.resolve(sent).call(sent) == (3, "add", 1)
    with pytest.raises(UnknownTask, match=r"'sub' is not known to this worker.*add"):
        route.resolve(message(app, b"[]", b'{"ems-task":"sub"}'))
    elsewhere = message(app, b"[[],{}]", b'{"ems-task":"sub","ems-group":"mail"}')
    assert route.resolve(elsewhere) is PASSED_OVER  # that group runs it
    here_too = message(app, b'[[1],{"b":2}]', b'{"ems-task":"add","ems-group":"mail"}')
    assert route.resolve(here_too).call(here_too) == (3, "add", 1)  # two groups may both know a task
    with pytest.raises(UnknownTask, match="'sub'"):
        route.resolve(message(app, b"[[],{}]", b'{"ems-task":"sub","ems-group":"workers"}'))
    with pytest.raises(UnknownTask, match="names no task"):
        route.resolve(message(app, b"[]"))
    with pytest.raises(DecodeError, match="not a call of a task"):
        add.call(message(app, b"7"))


def test_middleware_changes_its_own_copy_of_the_headers() -> None:
    headers = {"a": "b"}
    outgoing = Outgoing("t", 1, headers=headers)
    outgoing.headers["c"] = "d"
    assert headers == {"a": "b"}


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("no_such_module", None, "no module 'no_such_module'"),
        ("loader_a", "", "has no Ems"),
        ("loader_b:other", "from emsworker import Ems\napp = Ems()\n", "no Ems named 'other'; it has: app"),
        ("loader_c", "from emsworker import Ems\none = Ems()\ntwo = Ems()\n", "several apps"),
        ("loader_d", "1/0\n", "ZeroDivisionError"),
        ("loader_e", "import no_such_module_of_theirs\n", "no_such_module_of_theirs"),
        ("loader_f", "\ndef f(:\n", r"SyntaxError: invalid syntax \(.*/loader_f\.py:2\)$"),
        ("loader_g", "compile('1 +', 'made.py', 'exec')\n", r"SyntaxError: invalid syntax \(made\.py:1\)$"),
        ("loader_h.py", None, r"names a file; write -A loader_h, the module"),
        ("./shop/loader_i.py:app", None, r"names a file; write -A shop\.loader_i:app, the module"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str | None, message: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    if text is not None:
        (tmp_path / f"{path.partition(':')[0]}.py").write_text(text)
    with pytest.raises(AppNotFound, match=message) as caught:
        load_app(path)
    assert f"-A {path}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_app_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "loader_ok.py").write_text("from emsworker import Ems\napp = Ems('one')\nsame = app\nb = Ems('two')\n")
    assert load_app("loader_ok").name == "one"
    assert load_app("loader_ok:b").name == "two"


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, emsworker; print({'kombu', 'pymysql', 'redis', 'tenacity'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_reading_the_declarations_of_extensions_is_cheap() -> None:
    code = (
        "import sys; from emsworker.core.extension import extensions; assert extensions(); "
        "print({'pymysql', 'emsworker.app', 'emsworker.store', 'emsworker.flows.flow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()", "every command does it, `ems --help` too"


def test_every_named_statement_is_used_and_named_once() -> None:
    for path in sql_files():
        names = [
            line.split()[2] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("-- name:")
        ]
        assert len(names) == len(set(names)), path.name
        statements = statements_beside(path)
        code = path.with_suffix(".py").read_text(encoding="utf-8")
        computed = [re.sub(r"{[^}]*}", r"\\w+", name) for name in re.findall(r'_SQL\[f"([^"]+)"\]', code)]
        computed += [r"\w+"] if re.search(r"_SQL\[\w+\]", code) else []
        forms = "|".join([*re.findall(r"^(_\w+) = Statements\(", code, re.MULTILINE), "sql"])
        for name in names:
            assert statements[name] and "%" not in re.sub(r"%\(\w+\)s", "", statements[name]), name
            used = re.search(rf"\b(?:{forms})\.{name}\b", code) or any(
                re.fullmatch(pattern, name) for pattern in computed
            )
            assert used, f"{path.name}: {name} is not used"
    with pytest.raises(AttributeError):
        _ = Statements("emsworker.store.groups.cancel").no_such_statement


def test_a_script_is_split_at_the_ends_of_lines() -> None:
    assert split_script("-- a\nCREATE x (a\n);\n\n-- b;\nSELECT ';';\n") == ["CREATE x (a\n)", "SELECT ';'"]


def test_a_broadcast_takes_few_options_and_its_topic_has_no_groups() -> None:
    app = Ems("test")
    with pytest.raises(ConfigError) as caught:
        app.subscribe("news", "g", broadcast=True, batch=5, ladder="1s")
    assert sorted(problem.name for problem in caught.value.problems) == ["batch", "group", "ladder"]
    with pytest.raises(ConfigError, match="name a group"):
        app.subscribe("news")
    with pytest.raises(ConfigError, match="only that has a name="):
        app.subscribe("news", "g", name="x")
    app.subscribe("news", broadcast=True, name="x")(print)
    with pytest.raises(ConfigError, match="the name is taken"):
        app.subscribe("other", broadcast=True, name="x")(print)
    for group_of in (lambda: app.subscribe("news", "g")(print), lambda: app.task(topic="news")(print)):
        with pytest.raises(ConfigError, match="listens to topic 'news'"):
            group_of()
    app.subscribe("orders", "g")(print)
    with pytest.raises(ConfigError, match="in a group already"):
        app.subscribe("orders", broadcast=True)
    with pytest.raises(InvalidName):
        app.subscribe("no topic", broadcast=True)


def test_a_task_that_requires_tags_has_a_group_of_its_own() -> None:
    app = Ems("test")
    assert app.task(name="a")(print).group == "workers"
    assert app.task(name="b", requires="gpu")(print).group == "workers-gpu"
    assert app.task(name="c", requires=["gpu", "eu", "gpu"])(print).group == "workers-eu-gpu"
    assert app.task(name="d", requires="eu, gpu")(print).group == "workers-eu-gpu"
    assert app.task(name="e", requires="gpu", group="mine")(print).group == "mine"
    with pytest.raises(ConfigError, match="group 'mine' of topic 'default' requires gpu"):
        app.task(name="f", group="mine")(print)


def test_the_key_of_a_fair_call_is_its_argument_or_what_the_caller_gives() -> None:
    app = Ems("test")

    def act(tenant: str = "nobody", n: int = 0) -> None:
        pass

    def bound(self: Any, n: int, tenant: str) -> None:
        pass

    task = app.task(name="act", fair="tenant")(act)
    assert task.prepare(["a"]).headers["tenant"] == "a"
    assert task.prepare([], {"tenant": 5}).headers["tenant"] == "5"
    assert task.prepare(["a"], headers={"tenant": "b"}).headers["tenant"] == "b"
    assert task.prepare(["a"], headers={"c": "d"}).headers.items() >= {"tenant": "a", "c": "d"}.items()
    assert "tenant" not in task.prepare([]).headers
    assert app.task(name="bound", fair="tenant", bind=True)(bound).prepare([1, "a"]).headers["tenant"] == "a"
    assert app.task(name="all", fair="tenant", batch=5)(print).prepare([], {"tenant": "a"}).headers["tenant"] == "a"
    assert "n" not in app.task(name="plain", group="plain")(act).prepare(["a"], {"n": 1}).headers


def _serve(tenant: str, n: int = 0) -> None:
    pass


def test_a_fair_task_that_lacks_the_argument_is_refused_by_its_name_unless_it_is_a_header() -> None:
    app = Ems("test")
    with pytest.raises(ConfigError, match=r"fair of task a = 'tennant': .* which takes \(tenant, n\), .* 'x-tennant'"):
        app.task(name="a", fair="tennant")(_serve)
    with pytest.raises(ConfigError, match=r"= 'tenant': .* which takes \(n\)"):
        app.task(name="b", fair="tenant", bind=True)(lambda tenant, n: None)
    app.task(name="c", fair="x-tenant", group="c")(_serve)
    with pytest.raises(ConfigError, match="name the key with fair="):
        app.task(name="l", max_running_per_key=2)(_serve)
    with pytest.raises(ConfigError, match="claimed one by one"):
        app.task(name="l", max_running_per_key=2, fair="tenant", batch=5)(_serve)
    app.task(name="d", fair="tenant", group="d")(lambda **given: None)
    app.task(name="e", fair="tenant", group="e", batch=5)(print)
    app.subscribe("t", "f", fair="tenant")(print)


def test_a_group_is_fair_by_one_header_and_has_no_order() -> None:
    app = Ems("test")
    app.task(name="a", fair="tenant")(_serve)
    app.task(name="b")(print)
    with pytest.raises(ConfigError, match="is fair by 'tenant' already"):
        app.task(name="c", fair="region")(lambda region: None)
    with pytest.raises(ConfigError, match="runs in order"):
        app.task(name="d", order="key")(print)
    with pytest.raises(ConfigError, match="runs in order"):
        app.subscribe("t", "g", order="key", fair="tenant")(print)
