"""A worker's first process: starts children, replaces those that die, forwards signals, and runs the beat.

It imports no task code, so a task cannot crash it. Its children learn of its death from a pipe that closes. When a
child dies, the supervisor ends its leases at once, so that its work need not wait until they expire.

Each child has a pipe to report that it is ready, or in one line why it cannot be. Output of tasks goes where the
supervisor's own output goes. What children are told, addresses with passwords included, they read from a file without
a name, never from their command lines, which every user can read.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from emsworker.beat.leader import BeatHealth, Beats
from emsworker.consume.isolation import SHARED_BYTES, SPARE_S
from emsworker.consume.lease import end_leases
from emsworker.core.config import Settings
from emsworker.core.durations import span_text
from emsworker.core.process.clock import ticks
from emsworker.core.process.outage import Outage, best_effort
from emsworker.core.process.runnable import watch_threads
from emsworker.core.process.scratch import open_scratch
from emsworker.core.process.signals import blocked, ignore_stops
from emsworker.core.servers import MAIN
from emsworker.core.terminal_text import escape_control
from emsworker.core.url import redact
from emsworker.store import Database
from emsworker.worker.child_spec import (
    AWAY,
    ENDING,
    HEALTH,
    HUNG,
    READY,
    RECYCLING,
    TALLY,
    USAGE,
    ChildHealth,
    ChildSpec,
    WorkDone,
)
from emsworker.worker.health import ChildState, ChildView, WorkerHealth
from emsworker.worker.placement import PlacementWatch

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_STABLE_S = 10.0
_BACKOFF_S = 0.5
_BACKOFF_MAX_S, _BACKOFF_MAX_READY_S = 30.0, 2.0  # a message may have killed one that was ready; others are waiting
_MOST_CRASHES = 8  # later crashes are neither counted nor logged, and the pause no longer grows
_GRACE_S = 10.0
_LAST_S = 5.0
_LONGEST_TURN_S = 1.0  # of the supervisor's loop; a longer one was spent paused
_SILENT_LEASES, _SILENT_LEAST_S = 2, 10.0  # a busy machine may not schedule a child for some seconds
_FROZEN_S = 10.0  # without a report, which comes each second
_DEAF_S = 2.0  # an exit closes the pipe, too, just before it can be seen
_STAT = "/proc/{}/stat"
_MOVED = 0  # among the numbers of signals


@dataclass
class _Slot:
    """A place for one child, and the history that decides how soon its next child starts."""

    number: int
    server: str = MAIN
    idle: bool = False  # its server serves no topic of the app
    process: subprocess.Popen[bytes] | None = None
    process_id: str = ""
    status: IO[bytes] | None = None
    ready: bool = False
    told: bool = False
    restarting: bool = False
    last_words: str = ""
    ready_at: float | None = None
    silent_s: float = 0.0
    ending: bool = False
    start_at: float = 0.0
    crashes: int = 0
    starts: int = 0
    spare_s: float = 0.0  # what its next child takes no suspect messages for
    said_away: bool = False
    away: bool = False
    ended_with: str = ""
    health: ChildHealth = field(default_factory=ChildHealth)
    heard_at: float = 0.0
    work: WorkDone = field(default_factory=WorkDone)
    unread: bytes = b""  # the beginning of a report whose end has not arrived

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def recycles(self) -> bool:
        """True if the child has ended by itself to be recycled, its work in order."""
        return self.last_words.startswith(RECYCLING)

    @property
    def fails_for_long(self) -> bool:
        """True if the repeated crashes of this child have been logged often enough."""
        return self.crashes >= _MOST_CRASHES

    def start(self, spec: ChildSpec) -> int:
        """Start a child with a status pipe of its own, and return its process id."""
        self.process_id = uuid.uuid4().hex
        reader, writer = os.pipe()
        spec = replace(
            spec,
            process_id=self.process_id,
            status=writer,
            number=self.number,
            server=self.server,
            spare_s=self.spare_s,
        )
        try:
            # Until it has its own handlers: a stop before that still ends it in order.
            with open_scratch(spec.to_json()) as told, blocked():
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "emsworker.worker.child", str(told.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[spec.parent, spec.suspects, writer, told.fileno()],
                )
        finally:
            os.close(writer)
        os.set_blocking(reader, False)  # processes that a child has forked keep its end open after its death
        self.status = os.fdopen(reader, "rb", buffering=0)
        self.ready = self.told = self.restarting = self.ending = self.said_away = False
        self.silent_s = 0.0
        self.health, self.starts = ChildHealth(), self.starts + 1
        self.last_words, self.ready_at, self.work, self.unread = "", None, WorkDone(), b""
        return self.process.pid

    def tell(self, number: signal.Signals) -> None:
        """Ask the child to end."""
        if self.process is not None:
            self.told = True
            self.process.send_signal(number)

    def read_reports(self) -> list[str]:
        """Read from the child's pipe what has arrived: "ready", errors, or nothing but that it runs; note its end."""
        assert self.status is not None
        try:
            said = os.read(self.status.fileno(), 65536)
        except BlockingIOError:
            return []
        if not said:
            self.close_status()
        if not said or (self.ready_at is not None and not self.ending):
            self.silent_s = 0.0
        # A pipe may be read in the middle of a report: what has no end yet waits for the next read, or for the last.
        *whole, self.unread = (self.unread + said + (b"" if said else b"\0")).split(b"\0")
        return [text.decode(errors="replace") for text in whole if text]

    def close_status(self) -> None:
        if self.status is not None:
            self.status.close()
            self.status = None

    def note_health(self, text: str) -> None:
        """Note a report of the child about itself."""
        self.health, self.heard_at = ChildHealth.from_text(text), ticks()

    def view(self, now: float) -> ChildView:
        """Return the state of the child; may be called from any thread."""
        process = self.process
        state, reason = self._judge(process is not None and self.ready_at is not None, now)
        return ChildView(self.number, None if process is None else process.pid, state, reason)

    def _judge(self, was_ready: bool, now: float) -> tuple[ChildState, str]:
        if not was_ready:
            if self.away:
                return ChildState.AWAY, "the server could not be reached when it started"
            if self.crashes > 1 or math.isinf(self.start_at):
                return ChildState.CRASHED, f"ended with {self.ended_with}, before it was ready or soon afterwards"
            return ChildState.STARTING, ""
        if self.ending or self.told:
            return ChildState.ENDING, ""
        if now - self.heard_at > _FROZEN_S:
            return ChildState.FROZEN, f"has been frozen or paused for {now - self.heard_at:.0f} s"
        if self.health.stalled:
            return ChildState.STALLED, self.health.stalled
        return (ChildState.AWAY, self.health.away) if self.health.away else (ChildState.WORKING, "")

    def silence_limit(self, settings: Settings) -> tuple[float, str]:
        """Return for how many seconds the child may be silent, and what it means if it is longer."""
        if self.status is None:  # its threads write into whatever has the numbers of their files by now
            return _DEAF_S, "has closed its pipe to this process: a handler closes files that are not its own"
        if self.told and self.ready_at is None:
            return math.inf, ""  # it is loading, and ends afterwards; the stop has a limit of its own
        if self.ready_at is None:
            return settings.start_timeout_s, f"is not ready after {settings.start_timeout_s:g} s (start_timeout_s)"
        limit_s = max(_SILENT_LEASES * settings.lease_s, _SILENT_LEAST_S)
        if self.ending:
            limit_s += settings.stop_timeout_s + settings.stop_hooks_timeout_s + _GRACE_S
            return limit_s, f"has been about to end for {limit_s:g} s"
        return limit_s, (
            f"has been frozen for {limit_s:g} s: a handler holds the interpreter's lock, so no time limit could end it"
        )

    def back_off(self) -> float:
        """Count a crash, and return the seconds until the next child."""
        if self.last_words:  # a handler hung, but the child worked before
            return 0.0
        lived_s = 0.0 if self.ready_at is None else ticks() - self.ready_at
        self.crashes = 1 if lived_s > _STABLE_S else min(self.crashes + 1, _MOST_CRASHES)
        # New messages may kill each one before it takes a suspect: then every other one takes suspects from the start.
        self.spare_s = SPARE_S if lived_s >= self.spare_s else 0.0
        most_s = _BACKOFF_MAX_S if self.ready_at is None else _BACKOFF_MAX_READY_S
        return float(min(_BACKOFF_S * 2 ** (self.crashes - 1), most_s)) if self.crashes > 1 else 0.0


class Supervisor:
    """Runs ``processes`` children until told to stop.

    Args:
        spec: passed to every child.
        processes: the number of children, for each server.
        databases: the stream on each server, for its beat and to end leases of dead children; connected on first use.
        settings: of the command, without the app's own.
        topics: of the app, to be looked for on each of several servers.
        idle: servers that serve none of them; their children start when they do.
        with_beat: run the beat of each server in this process.
        patient: a child that cannot load the app does not end the worker: it waits for the next restart, as
            ``--reload`` needs while a file is being edited.
        on_ready: called when all children are ready, and again after a restart.
        on_error: called with a line that says why a child cannot become ready, once for all children; by default the
            line is printed, or logged if logs are JSON.
    """

    def __init__(
        self,
        spec: ChildSpec,
        processes: int,
        databases: Mapping[str, Database],
        settings: Settings,
        *,
        topics: Sequence[str] = (),
        idle: Collection[str] = (),
        with_beat: bool = True,
        patient: bool = False,
        on_ready: Callable[[list[int]], None] = lambda pids: None,
        on_error: Callable[[str], None] | None = None,
    ) -> None:
        self._spec = spec
        servers = [server for server in databases for _ in range(processes)]
        if all(server in idle for server in databases):
            idle = ()
        self._slots = [_Slot(number, server, server in idle) for number, server in enumerate(servers)]
        self._sessions = {server: database.session() for server, database in databases.items()}
        self._settings, self._databases = settings, databases
        self._beats = Beats(databases, settings, self._on_death) if with_beat else None
        self._outages = {server: Outage(log, database.servers) for server, database in databases.items()}
        self._moved: dict[str, bool] = {}  # servers whose topics have changed, and whether there are any
        several = databases if len(databases) > 1 else {}
        self._watches = [
            self._watch(server, database, topics, set() if server in idle else None)
            for server, database in several.items()
        ]
        self._patient = patient
        self._on_ready = on_ready
        self._told_ready = False
        self._was_ready = False
        self._started = False
        self._turn_at = ticks()
        self._on_error = on_error or self._print_error
        self._told_error = ""
        self._suspects = open_scratch("\0" * SHARED_BYTES)
        self._alive_reader, self._alive = os.pipe()  # children hold the reading end; it closes when this process ends
        self._signals, self._signal_in = os.pipe()
        self._began = ticks()
        self._work = WorkDone()  # of children that have ended
        self._stopping = False
        self._kill_at: float | None = None
        self._exit_code = 0

    def _watch(self, server: str, database: Database, topics: Sequence[str], known: set[str] | None) -> PlacementWatch:
        def note(served: bool) -> None:
            self._moved[server] = served
            self._note_signal(_MOVED, None)

        return PlacementWatch(server, database, topics, note, self._on_death, known)

    def run(self) -> int:
        """Run until told to stop and all children have ended; return the exit code."""
        self._catch_signals()
        watch_threads(self._on_death)
        while not (self._stopping and not any(slot.alive for slot in self._slots)):
            self._reap()
            self._start_missing()
            self._wait()
            self._watch_silence()
            self._watch_server()
            if self._kill_at is not None and ticks() > self._kill_at:
                self._kill_rest()
        self._end()
        return self._exit_code

    def restart(self, servers: Collection[str] = ()) -> None:
        """Replace children gracefully, each after its end, because the code has changed, or their topics.

        Args:
            servers: only the children of these.
        """
        log.info("restarting the children%s", f" of {', '.join(servers)}" if servers else "")
        self._told_error = ""
        self._told_ready = bool(servers) and self._told_ready
        for slot in self._slots:
            if servers and slot.server not in servers:
                continue
            slot.start_at, slot.crashes = 0.0, 0
            slot.ready = False  # otherwise the first new child would make all count as ready, including old ones
            if slot.alive and slot.process is not None:
                slot.restarting = True
                slot.tell(signal.SIGTERM)

    def request_restart(self) -> None:
        """Make the supervisor's own loop call :meth:`restart`; safe from any thread."""
        self._note_signal(signal.SIGHUP, None)

    def beat(self) -> BeatHealth | None:
        """Return the health of the worker's beat, ``None`` if it has none; may be called from any thread."""
        return None if self._beats is None else self._beats.health()

    def health(self) -> WorkerHealth:
        """Return the health of the worker; may be called from any thread."""
        now = ticks()
        return WorkerHealth(
            tuple(slot.view(now) for slot in self._slots if not slot.idle or slot.alive),
            started=self._started,
            stopping=self._stopping,
            turned_s=now - self._turn_at,
            starts=sum(slot.starts for slot in self._slots),
            full=next((full for one in self._databases.values() if (full := one.full)), ""),
        )

    # -- children ------------------------------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        for slot in self._slots:
            if slot.process is None and not (self._stopping or slot.idle) and ticks() >= slot.start_at:
                pid = slot.start(replace(self._spec, parent=self._alive_reader, suspects=self._suspects.fileno()))
                if not slot.fails_for_long:
                    log.info("started child %d as process %d", slot.number, pid)

    def _reap(self) -> None:
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is not None:
                self._on_child_end(slot, slot.process.returncode)

    def _watch_silence(self) -> None:
        """Kill children that do not become ready, whose main thread does not run, or that have closed their pipes.

        A handler that holds the interpreter's lock, for example in a regular expression, freezes its process: no
        thread in it can enforce a time limit. Its leases have expired, so its work already runs elsewhere, but only
        the supervisor can replace the process. Time counts only while the supervisor runs: a child that was paused
        together with it has not been silent.
        """
        turn_s = min(ticks() - self._turn_at, _LONGEST_TURN_S)
        self._turn_at = ticks()
        for slot in self._slots:
            if slot.process is None or not slot.alive:
                continue
            slot.silent_s += turn_s
            limit_s, what = slot.silence_limit(self._settings)
            if slot.silent_s <= limit_s:
                continue
            if _is_paused(slot.process.pid):
                slot.silent_s = 0.0
                continue
            log.error("child %d (process %d) %s; killing it", slot.number, slot.process.pid, what)
            slot.process.kill()
            slot.process.wait()

    def _watch_server(self) -> None:
        """Log once for all children of a server what is the matter with it, and once that it is over."""
        told: dict[str, list[ChildHealth]] = {}
        for slot in self._slots:
            if slot.alive and slot.ready_at is not None and not self._stopping:
                told.setdefault(slot.server, []).append(slot.health)
        for server, each in told.items():
            silent_s = min(one.silent_s for one in each)
            refusal = next((one.refusal for one in each if one.refusal), "")
            full = next((one.full for one in each if one.full), "") or self._databases[server].full
            self._outages[server].note(silent_s or None, refusal, full)

    def _on_child_end(self, slot: _Slot, code: int) -> None:
        assert slot.process is not None
        pid, slot.process = slot.process.pid, None
        if slot.status is not None:
            self._on_status(slot)
            slot.close_status()
        slot.ended_with, slot.away = slot.last_words or _meaning(code), slot.said_away
        if slot.away and self._was_ready:
            self._tell_ready()
        self._work += slot.work
        well = code == 0 and (slot.told or slot.recycles)  # a task may have called os._exit(0)
        if not well:
            self._end_leases(slot)
        if self._stopping or well or slot.restarting:
            slot.start_at, slot.crashes, slot.spare_s = 0.0, 0, 0.0
            if slot.recycles:
                log.info("child %d (process %d) is replaced: %s", slot.number, pid, slot.last_words)
            return
        if code == USAGE and not slot.ready and (self._patient or not self._was_ready):
            self._on_fatal_start(slot)
            return
        known = slot.fails_for_long
        pause_s = slot.back_off()
        slot.start_at = ticks() + pause_s
        if known:
            return
        log.warning(
            "child %d (process %d) ended with %s; the next starts in %.1f s",
            slot.number,
            pid,
            slot.ended_with,
            pause_s,
        )

    def _on_fatal_start(self, slot: _Slot) -> None:
        """Handle a child that has reported an error with which another one would fail, too."""
        if self._patient:
            log.warning("child %d waits for the next change", slot.number)
            slot.start_at = math.inf
            return
        self._exit_code = USAGE
        self._stop(signal.SIGTERM)

    def _end_leases(self, slot: _Slot) -> None:
        with best_effort(log, f"could not end the leases of child {slot.number}; they run out by themselves"):
            end_leases(self._sessions[slot.server], slot.process_id)

    # -- waiting, signals, the end -------------------------------------------------------------------------------------

    def _wait(self) -> None:
        sources = {slot.status.fileno(): slot for slot in self._slots if slot.status is not None}
        ready, _, _ = select.select([self._signals, *sources], [], [], _LOOK_S)
        for source in ready:
            if source in sources:
                self._on_status(sources[source])
            else:
                for number in os.read(self._signals, 16):
                    self._on_signal(number)

    def _on_status(self, slot: _Slot) -> None:
        for text in slot.read_reports():
            if text.startswith(HEALTH):
                slot.note_health(text)
                continue
            if text.startswith(AWAY):
                slot.said_away, text = True, text.removeprefix(AWAY)
            if text == READY:
                self._on_child_ready(slot)
            elif text == ENDING:
                slot.ending = True
            elif text.startswith(TALLY):
                slot.work = WorkDone.from_report(text)
            elif text.startswith((RECYCLING, HUNG)):
                slot.last_words = text
            elif text != self._told_error and not slot.restarting:
                self._told_error = text
                self._on_error(text)

    def _print_error(self, text: str) -> None:
        if self._spec.log_format == "json":
            log.error("%s", redact(text))
        else:
            print(f"Error: {escape_control(redact(text))}", file=sys.stderr, flush=True)

    def _on_child_ready(self, slot: _Slot) -> None:
        if slot.crashes > 1:
            log.info("child %d is ready again", slot.number)
        slot.ready, slot.ready_at, slot.silent_s = not slot.restarting, ticks(), 0.0
        slot.heard_at, slot.away = ticks(), False
        self._told_error, self._was_ready = "", True
        if not self._stopping:
            if self._beats is not None:
                self._beats.start()  # not earlier: a worker that cannot run must not lead or fire schedules
            for watch in self._watches:
                if watch.ident is None:
                    watch.start()
        self._tell_ready()

    def _tell_ready(self) -> None:
        """Say once that all children are ready; those whose server is away may follow later if others are ready."""
        if not self._told_ready and all(slot.ready or slot.away or slot.idle for slot in self._slots):
            self._told_ready = self._started = True
            self._on_ready([other.process.pid for other in self._slots if other.process is not None])

    def _catch_signals(self) -> None:
        os.set_blocking(self._signal_in, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, self._note_signal)

    def _note_signal(self, number: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._signal_in, bytes([number]))

    def _on_signal(self, number: int) -> None:
        if number == _MOVED:
            moved, self._moved = self._moved, {}
            if moved and not self._stopping:
                for slot in self._slots:
                    slot.idle = not moved.get(slot.server, not slot.idle)
                self.restart(sorted(moved))
        elif number == signal.SIGHUP:
            self.restart()
        elif self._stopping or number == signal.SIGQUIT:
            self._stop(signal.SIGQUIT)
        else:
            self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping = True
        grace = self._settings.stop_timeout_s if number == signal.SIGTERM else 0.0
        self._kill_at = ticks() + grace + self._settings.stop_hooks_timeout_s + _GRACE_S
        log.info("stopping%s", " at once" if number == signal.SIGQUIT else "; running messages finish first")
        for slot in self._slots:
            if slot.alive:
                slot.tell(number)

    def _kill_rest(self) -> None:
        for slot in self._slots:
            if slot.alive and slot.process is not None:
                log.error("child %d does not end; killing it", slot.number)
                slot.process.kill()

    def _on_death(self, name: str, error: BaseException) -> None:
        self._exit_code = 1
        self._note_signal(signal.SIGTERM, None)

    def _end(self) -> None:
        for slot in self._slots:
            if slot.process is not None:
                self._on_child_end(slot, slot.process.wait())
        for watch in self._watches:
            watch.stop()
        if self._beats is not None:
            self._beats.stop()
        ignore_stops()
        for session in self._sessions.values():
            session.close()
        done = {"messages": self._work.ran, "failed_attempts": self._work.failed, "dead_letters": self._work.dead}
        log.info("stopped after %s: %s", span_text(ticks() - self._began), self._work, extra=done)
        os.close(self._alive)
        os.close(self._alive_reader)
        self._suspects.close()


def _is_paused(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, a debugger); false if that cannot be read."""
    try:
        return Path(_STAT.format(pid)).read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _meaning(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
