"""The pictures: those of ideas are as their file draws them; that of the README is small, whole, and of a real run."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs.picture import PICTURE, Run, draw, record
from docs.ten_pictures import FOLDER, drawn
from tests.support.servers import TestServers, chosen_flavors, fresh_database

_SVG = "{http://www.w3.org/2000/svg}"


def test_the_ten_pictures_are_as_they_are_drawn_and_each_is_shown_with_its_words() -> None:
    page = (FOLDER.parent / "discussions" / "pictures.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[([^\]]+)\]\(\.\./img/([^)]+)\)", page)
    assert [FOLDER / name for _, name in shown] == [*drawn()]
    for said, name in shown:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert text == drawn()[FOLDER / name], f"{name}: run python -m docs.ten_pictures"
        assert ET.fromstring(text).attrib["aria-label"] == said


def test_the_picture_is_small_and_brings_all_that_it_shows() -> None:
    text = PICTURE.read_text()
    assert len(text) < 200_000
    assert "<script" not in text and re.findall(r"(?:href|url|src)\s*[=(]", text) == []
    squares = [one for one in ET.fromstring(text).iter(f"{_SVG}rect") if one.find(f"{_SVG}animate") is not None]
    assert len(squares) == 480 == int(re.findall(r">(\d+) orders sent", text)[0])


def test_a_square_is_red_from_the_kill_until_the_order_is_booked_again() -> None:
    run = Run((("A", 0.0), ("B", 12.0), ("B", 1.0)), 4.0, frozenset({1}), 6.0)
    squares = [one.find(f"{_SVG}animate") for one in ET.fromstring(draw(run)).iter(f"{_SVG}rect")][:3]
    times = [[float(at) for at in one.attrib["keyTimes"].split(";")] for one in squares if one is not None]
    assert [len(found) for found in times] == [2, 3, 2]
    assert times[1] == pytest.approx([0, 0.2, 0.6])  # of ten seconds: half of twelve, and the rest
    assert all(found == sorted(found) and found[-1] <= 1 for found in times)


@pytest.mark.slow
def test_a_recorded_run_books_each_order_once_whichever_worker_is_killed(servers: TestServers, tmp_path: Path) -> None:
    server = servers.database(chosen_flavors()[0])
    quick = {"EMS_LEASE_S": "3", "EMS_RENEW_S": "0.5", "EMS_LEASE_MARGIN_S": "0.5"}
    with fresh_database(server) as url:
        run = record(url, tmp_path, 80, 20, quick)
    assert len(run.booked) == 80 and {worker for worker, _ in run.booked} == {"A", "B"}
    assert all(run.booked[order][1] > run.killed_s for order in run.torn)
