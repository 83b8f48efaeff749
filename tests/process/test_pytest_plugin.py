"""The plugin's fixtures, as a user's tests use them."""

import textwrap

import pytest

pytest_plugins = ["pytester"]

_APP = """
from emsworker import Ems

app = Ems("shop")

@app.task(result=True)
def add(x, y):
    return x + y

@app.task(result=True, transactional=True)
def book(transaction, n):
    transaction.execute("INSERT INTO booked (n) VALUES (%s)", (n,))
    return n
"""
_TEST = """
import pymysql
from urllib.parse import urlsplit

def test_in_memory():
    from shop import add, app
    with app.test() as test:
        result = app.result(add.delay(2, 3))
        test.run()
        assert result.get() == 5

def test_on_a_real_stream(ems_stream, ems_app):
    parts = urlsplit(ems_stream.url)
    sql = pymysql.connect(host=parts.hostname, port=parts.port, user=parts.username, password=parts.password,
                          database=parts.path[1:], autocommit=True)
    with sql, sql.cursor() as cursor:
        cursor.execute("CREATE TABLE booked (n INT PRIMARY KEY) ENGINE=InnoDB")
        caller = ems_stream.app("caller")
        book = caller.task(name="shop.book", result=True)(lambda n: n)
        with ems_stream.worker("shop:app"):
            assert caller.result(book.delay(7)).get(timeout=30) == 7
        cursor.execute("SELECT n FROM booked")
        assert cursor.fetchall() == ((7,),)

def test_each_test_has_a_stream_of_its_own(ems_app):
    assert ems_app.stream.catalog.topic("t").id == 1
    assert ems_app.send("t", 1).offset == 1
"""


def test_the_plugin_gives_a_real_stream(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=textwrap.dedent(_APP), test_shop=textwrap.dedent(_TEST))
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q", timeout=120)
    done.assert_outcomes(passed=3)


def test_nothing_heavy_is_imported_until_a_test_asks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_light():\n    assert 'pymysql' not in sys.modules")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
