"""``ems alarms``."""

from tests.support.commands import Ems
from tests.support.webhooks import receiver


def test_alarms_are_created_listed_tested_and_deleted(ems: Ems) -> None:
    with receiver() as web:
        options = ["--on", "oldest", "--above", "5m", "--for", "30s", "--webhook", web.url, "--json"]
        made = ems.ok("alarms", "create", "late", *options).json
        assert (made["above"], made["for_s"], made["topic"], made["webhook"]) == (300.0, 30.0, None, web.url)
        assert ems.ok("alarms", "test", "late", "--json").json == [{"target": "webhook", "ok": True, "problem": None}]
        assert web.events == [("late", "test")]
    done = ems("alarms", "test", "late", "--json")
    assert done.code == 1 and "could not be reached" in done.json[0]["problem"]
    for metric, above, fix in (
        ("retries", "5m", "count of messages"), ("dead", "5%", "count of messages"), ("lag", "many", "count of mess"),
        ("oldest", "5%", "not a duration"), ("error_rate", "5", "like 0.05 or 5%"),
    ):  # fmt: skip
        done = ems("alarms", "create", "x", "--above", above, "--on", metric)
        assert done.code == 2 and f"{metric} above '{above}'" in done.err and fix in done.err
    done = ems("alarms", "create", "soon", "--on", "lag", "--topic", "nope", "--group", "nope")
    assert done.code == 0 and "Warning: there is no topic 'nope' yet" in done.err
    done = ems("alarms", "silence", "soon", "--for", "1m", "--group", "nope")
    assert done.code == 0 and "Warning: there is no group 'nope' yet" in done.err
    ems.ok("alarms", "delete", "soon", "-y")
    (row,) = ems.ok("alarms", "list", "--json").json
    assert (row["alarm"], row["on"], row["for_s"], row["firing"], row["alarms"]) == ("late", "oldest", 30.0, 0, [])
    assert ems.ok("alarms", "delete", "late", "-y", "--json").json == {"deleted": "late"}


def test_a_webhook_is_of_http(ems: Ems) -> None:
    for wrong in ("ftp://hooks.example.org/x", "file:///etc/passwd", "hooks.example.org/x", "https://", ""):
        done = ems("alarms", "create", "a", "--on", "lag", "--webhook", wrong)
        assert done.code == 2 and "webhook" in done.err and "nothing was stored" in done.err, done
    assert (
        "ftp://***: a webhook must begin with http:// or https://"
        in ems("alarms", "create", "a", "--on", "lag", "--webhook", "ftp://hooks.example.org/x").err
    )
    assert ems.ok("alarms", "list", "--json").json == []


def test_silencing_everything_asks_first(ems: Ems) -> None:
    done = ems("alarms", "silence", "--for", "1h")
    assert done.code == 2 and "Silence all alarms of all topics and groups?" in done.err and "--yes" in done.err
    assert ems.ok("alarms", "silences", "--json").json == []
    assert ems.ok("alarms", "silence", "--for", "1h", "--yes", "--json").json["alarm"] is None
    assert ems.ok("alarms", "silence", "--for", "1h", "--topic", "t", "--json").json["topic"] == "t"


def test_a_choice_that_is_missing_is_named_in_one_line(ems: Ems) -> None:
    for words, missing in ((["grants", "--user", "a@b"], "'ROLE'"), (["alarms", "create", "a1"], "'--on'")):
        done = ems(*words)
        (error,) = done.errors
        assert done.code == 2 and missing in error and "Choose from" in error
        assert done.err.splitlines()[-1] == error, "nothing follows"
