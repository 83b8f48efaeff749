"""Sends what the progress of a claim owes the store."""

from __future__ import annotations

from emsworker.broker.channel import Channel
from emsworker.consume.claim_progress import ClaimWrite
from emsworker.core.errors import FenceLost


def send(channel: Channel, write: ClaimWrite, *, holds: bool = False) -> None:
    """Send a write, perhaps not for the first time.

    Args:
        holds: the lease under which the claim was taken holds. Nobody else can have ended the claim then, so that a
            write in doubt that has ended it was our own.

    Raises:
        FenceLost: the claim has another owner.
        ConnectionLost: it is not known if it was committed.
    """
    try:
        if write.rest is not None:
            channel.detach(write.flush, write.rest)
        elif write.last is not None:
            channel.give_back(write.flush, write.last, write.isolation)
        else:
            channel.flush(write.flush)
    except FenceLost:
        if not write.in_doubt or not _was_committed(channel, write, holds):
            raise
    except BaseException:  # also one from outside
        write.in_doubt = True
        raise


def _was_committed(channel: Channel, write: ClaimWrite, holds: bool) -> bool:
    if write.rest is not None:
        return channel.acked_to(write.rest) is not None
    return write.flush.finished and (holds or channel.was_committed(write.flush))
