"""Whether a process may claim more before it is recycled."""

from emsworker.worker.recycler import Recycler


def test_a_process_that_is_due_claims_nothing_more() -> None:
    reasons: list[str] = []
    recycler = Recycler(0, 1, reasons.append)  # Python alone takes more than 1 MiB
    with recycler.allow(5) as first:
        assert first.size == 5
        first.ran = 1
    assert len(reasons) == 1 and "(max_memory_per_child)" in reasons[0]
    with recycler.allow(5) as next_one:
        assert next_one.size == 0, "its main thread need not have acted yet"
    assert len(reasons) == 1
