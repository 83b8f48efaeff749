"""The nightly summary: a flow of one call for each carrier, a join, a report, and an undo for each of its steps."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from emsworker import Reject
from emsworker.flows import Flow
from sample_app import config, tables
from sample_app.app import app
from sample_app.settings import NIGHT_SHIFT, NIGHTLY, NIGHTLY_NAME, REFUSAL, REPORTS


@app.periodic(NIGHTLY, name=NIGHTLY_NAME)
@app.flow(name="summarize", topic=REPORTS, group=NIGHT_SHIFT)
def summarize(flow: Flow) -> None:
    """Every midnight, sum up all carriers."""
    assert flow.slot is not None, "it is started by a schedule"
    _sum_up(flow, flow.slot.isoformat())


@app.flow(name="rehearse", topic=REPORTS, group=NIGHT_SHIFT)
def rehearse(flow: Flow, slot: str) -> None:
    """Write a summary that is refused at the end, so that all of it is undone."""
    _sum_up(flow, slot)
    flow.step(sign_off)


def _sum_up(flow: Flow, slot: str) -> None:
    carriers = flow.transaction(tables.list_carriers)
    flow.undo(discard_shares.s(slot))  # before the calls: if one of them fails, the others have written their shares
    flow.gather(write_share.s(slot, carrier) for carrier in carriers)
    flow.transaction(write_report, slot)
    flow.undo(withdraw_report.s(slot))


def write_report(transaction: Any, slot: str) -> None:
    """Write the sum of all shares, under the title of the day."""
    at = datetime.fromisoformat(slot)
    tables.sum_up(transaction, at)
    tables.add_title(transaction, at, config.current["title"])


def sign_off() -> None:
    """Refuse the report of a rehearsal."""
    raise Reject(REFUSAL)


@app.task(name="write_share", topic=REPORTS, group=NIGHT_SHIFT, transactional=True)
def write_share(transaction: Any, slot: str, carrier: str) -> None:
    """Write a carrier's share of a summary."""
    tables.add_share(transaction, datetime.fromisoformat(slot), carrier)


@app.task(name="discard_shares", topic=REPORTS, group=NIGHT_SHIFT, transactional=True)
def discard_shares(transaction: Any, slot: str) -> int:
    """Delete the shares of a summary; return how many there were."""
    return tables.delete_shares(transaction, datetime.fromisoformat(slot))


@app.task(name="withdraw_report", topic=REPORTS, group=NIGHT_SHIFT, transactional=True)
def withdraw_report(transaction: Any, slot: str) -> int:
    """Delete a summary and its title; return how many rows these were."""
    return tables.delete_summary(transaction, datetime.fromisoformat(slot))
