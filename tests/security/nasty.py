"""What outside data may look like at its worst, as strategies."""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# The long form tries more.
EXAMPLES = 400 if os.environ.get("EMS_TEST_LONG") else 30


def few(share: float = 1.0) -> settings:
    """So many examples, without a deadline: the machine may be busy; the same ones each time in the short form."""
    return settings(
        max_examples=max(int(EXAMPLES * share), 5),
        deadline=None,
        derandomize=not os.environ.get("EMS_TEST_LONG"),
        database=None,
        suppress_health_check=list(HealthCheck),
    )


_INJECTIONS = [
    "'",
    '"',
    "`",
    "\\",
    "\\'",
    "''; DROP TABLE ems_message; -- ",
    "') , (1,2,3); SELECT SLEEP(9); --",
    "\\'; DELETE FROM ems_message WHERE 1; #",
    "1' OR '1'='1",
    "%s %(uid)s %% %",
    "{0} {name} {{}}",
    "${a} $(b)",
    "\0",
    "a\0b",
    "\x1a",
    "\r\n",
    "/* */ -- #",
    "\u00bf\u0027",
    "\u0100\u2019\uff07",
    "\U0001f600" * 3,
    "e\u0301",
    "\u202e",
    "\ud800",
    "\udcff",
    "../../etc/passwd",
    "x" * 190,
    "x" * 256,
    "[{" * 70,
    "'" * 70_000,
    "NULL",
    "",
    " ",
    "orders ",
]

texts = st.one_of(
    st.sampled_from(_INJECTIONS),
    st.text(alphabet=st.sampled_from("'\"\\`%;\0\x1a\n()-#a_\u00e9\U0001f600"), max_size=40),
    st.text(max_size=40),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "Co", "Cn"]), max_size=10),
)
raw = st.one_of(texts.map(lambda text: text.encode(errors="surrogatepass")), st.binary(max_size=300))
names = texts | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,20}", fullmatch=True)
numbers: st.SearchStrategy[Any] = st.one_of(
    st.floats(), st.integers(), st.integers(-(2**70), 2**70), st.sampled_from([0, -1, 1e300, 10**400])
)
scalars: st.SearchStrategy[Any] = st.none() | st.booleans() | numbers | texts | raw
plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
anything: st.SearchStrategy[Any] = scalars | plain | st.lists(scalars, max_size=2) | st.just(object())
headers = st.dictionaries(texts, texts, max_size=3)
