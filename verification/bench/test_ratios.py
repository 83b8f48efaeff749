"""The short form of the benchmarks: EMS keeps its distance to the raw limit of the same server in the same run.

Absolute rates belong to a machine; ratios much less. A line is tried again when it stays below, because noise only ever
takes away; but what has become twice as slow stays below however often it is tried.
"""

import pytest

from bench import report
from bench.lines import LINES, Line
from bench.publish_docs import PARTS
from bench.stage import Servers, Size
from tests.support.servers import chosen_flavors

SIZE = Size(repeats=1, seconds=0.5, drained=20_000, transactions=1_500, stamps=100)
LINES_OF_RATES = [line for line in LINES if line.name in ("send", "send-20", "send-many", "drain", "transactional")]
TRIES = 5
SHARE = 0.55  # of what has been published


@pytest.fixture(scope="module")
def published() -> dict[str, float]:
    """The ratios that the documentation tells."""
    rows = report.load(next(part.file for part in PARTS if part.name == "benchmarks"))
    return {row.line: row.ratio for row in rows}


@pytest.mark.alone
@pytest.mark.skipif(chosen_flavors()[0] != "mariadb", reason="the published ratios are MariaDB's")
@pytest.mark.parametrize("line", LINES_OF_RATES, ids=lambda line: line.name)
def test_the_ratio_to_the_raw_limit(line: Line, bench_servers: Servers, published: dict[str, float]) -> None:
    log_start, seen = SHARE * published[line.name], []
    for _ in range(TRIES):
        with bench_servers.stage(SIZE) as stage:
            [raw] = line.limit(stage).values()
        with bench_servers.stage(SIZE, redis=line.redis) as stage:
            [ours] = line.measure(stage).values()
        seen.append(ours / raw)
        if seen[-1] >= log_start:
            return
    pytest.fail(
        f"{line.name}: {', '.join(f'{ratio:.2f}' for ratio in seen)} of the raw limit, at least {log_start:.2f} wanted"
    )
