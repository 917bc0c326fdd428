"""The kinds `generate` and `idleness`: watermarks of generators, and timers of silent sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from conformance.coalesce import frame_of
from conformance.coalescers import SystemRules
from conformance.mark_words import Signal, read, show, watermark
from tidegate.errors import InputError, SpecError, TidegateError
from tidegate.instants import MAX, MIN, clamp
from tidegate.kernel.watermarks.generators import Observed, Promises, compile_generator
from tidegate.kernel.watermarks.tracker import SourceTracker
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    is_set,
    known,
    steps_of,
)
from tidegate.scenarios.settings import CONFIG as OF_OPERATORS
from tidegate.scenarios.settings import choice, flag
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Generated,
    Implied,
    Lagging,
    Punctuated,
    Watermarks,
)

CONFIG = OF_OPERATORS | {
    "inputs",
    "generator",
    "lag",
    "bound",
    "value",
    "partitions",
    "idle_timeout",
    "emit",
    "frame",
    "restored_watermark",
    "timestamp_fn",
    "monotone_output",
    "interval",
    "auto_watermark_interval",
}
SETUP = frozenset({"lag", "bound", "value", "frame", "idle_timeout"})
NATIVE = ("native_time", "native")
STEP = SETUP | {
    "clock",
    "event",
    "batch",
    "part",
    "in",
    "mark",
    *NATIVE,
    "add",
    "add_partitions",
    "remove",
    "remove_partition",
    "emit",
    "end_of_input",
    "out",
    "state",
    "error",
}
EMISSIONS = {
    "before_event": "before",
    "after_event": "after",
    "on_event": "after",
    "end_of_batch": "after",
    "periodic": "periodic",
    "never": "never",
}
ASCENDING = ("ascending", "ascending_timestamps", "monotonous_timestamps")
TIMEOUTS = ("timeout", "idle_timeout")
IDLENESS_STEP = frozenset({"timeout", "advance", "clock", "activity", "event", "check", "error"})
_MARK = "mark"


def run_generate(scenario: Scenario) -> None:
    """Each step is an event, a moment without one, or an emission, with what comes out; or a setup
    that must be refused.
    """
    known("`config`", scenario.config, CONFIG)
    if scenario.body.keys() == {"error"}:
        _refused(scenario, scenario.body, "the config")
        return
    steps = steps_of(scenario, STEP)
    setups = [step for step in steps if step.keys() & SETUP]
    if setups and len(setups) < len(steps):
        raise UnsupportedScenarioError(
            "a step either sets a generator up or uses the one of the config"
        )
    run = None if setups else _Generation(scenario, steps)
    for number, step in enumerate(steps, 1):
        if run is None:
            given = {name: step[name] for name in step if name in SETUP}
            _refused(replace(scenario, config={**scenario.config, **given}), step, f"step {number}")
        else:
            run.step(step, f"step {number}")


def _refused(scenario: Scenario, step: Mapping[str, Any], where: str) -> None:
    """A generator that cannot be set up."""
    if step.get("error") is not True:
        raise UnsupportedScenarioError(
            f"{where} sets up a generator, and only that it must be refused can be asked of it"
        )
    try:
        _Generation(scenario, [])
    except TidegateError:
        return
    raise MismatchError(f"{where}: the generator must be refused, but it was accepted")


def run_idleness(scenario: Scenario) -> None:
    """A timer alone: `check` compares whether its source is idle."""
    known("`config`", scenario.config, OF_OPERATORS | {"inputs", *TIMEOUTS})
    ticks = ticks_of(scenario)
    now, timer = 0, None
    for number, step in enumerate(_timed(scenario), 1):
        where = f"step {number}"
        now = clamp(
            ticks(step["clock"]) if "clock" in step else now + ticks(step.get("advance", 0))
        )
        if "timeout" in step:
            timer = _timer(
                scenario, ticks(step["timeout"]), now, refused=is_set(step, "error"), where=where
            )
        if timer is None:
            if step.keys() & {"activity", "event", "check"}:
                raise UnsupportedScenarioError("an idleness scenario begins with a `timeout`")
            continue
        if is_set(step, "activity") or is_set(step, "event"):
            timer.activity(now)
        if "check" in step and timer.check(now) != is_set(step, "check"):
            raise MismatchError(f"{where}: expected idle {step['check']}, got {not step['check']}")


def _timed(scenario: Scenario) -> list[dict[str, Any]]:
    """The steps, after a timeout of the config; a first `error` alone belongs to that timeout."""
    steps = steps_of(scenario, IDLENESS_STEP)
    first = [{"timeout": scenario.config[name]} for name in TIMEOUTS if name in scenario.config]
    if first and steps and steps[0].keys() == {"error"}:
        return [first[0] | steps[0], *steps[1:]]
    return [*first, *steps]


def _timer(
    scenario: Scenario, timeout: int, now: int, *, refused: bool, where: str
) -> _Timer | None:
    try:
        Explicit(idle_after=timeout)
    except SpecError as error:
        if not refused:
            raise MismatchError(f"{where}: timeout {timeout} was refused: {error}") from error
        return None
    if refused:
        raise MismatchError(f"{where}: timeout {timeout} must be refused, but it was accepted")
    lazy = _is_flink(scenario)
    return _Timer(SourceTracker(idle_after=timeout + lazy, declared=[""], now=now), "", lazy=lazy)


def _is_flink(scenario: Scenario) -> bool:
    return scenario.system.startswith("flink")


class _Timer:
    """One source of a tracker, and when its silence begins.

    With us it begins at the last sign of life, and lasts when it is as long as the timeout. Flink
    begins to count at the first check that finds no activity since the check before, and asks for
    more than the timeout; so such a check is told as the sign of life, and the tracker has a tick
    more.
    """

    def __init__(self, tracker: SourceTracker, name: str, *, lazy: bool) -> None:
        self._tracker, self._name, self._lazy = tracker, name, lazy
        self._active, self._started = False, False

    def activity(self, now: int) -> None:
        self._active, self._started = True, False
        self._alive(now)

    def settle(self, now: int) -> None:
        """A check is made: it may be the one from which silence is counted."""
        if self._lazy and not self._started:
            self._alive(now)
            self._started, self._active = not self._active, False

    def check(self, now: int) -> bool:
        self.settle(now)
        self._tracker.tick(now)
        self._tracker.release(now)
        return any(
            source.name == self._name and source.status == "idle"
            for source in self._tracker.describe()
        )

    def _alive(self, now: int) -> None:
        self._tracker.promise([self._name], np.array([MIN]), now)


class _Generation:
    """A generator and the tracker that takes its promises."""

    def __init__(self, scenario: Scenario, steps: list[dict[str, Any]]) -> None:
        self._config = scenario.config
        self._ticks = ticks_of(scenario)
        self._hazelcast, self._flink = scenario.system.startswith("hazelcast"), _is_flink(scenario)
        self._spec = _specification(scenario, self._ticks)
        self._generator = compile_generator(self._spec)
        self._marks_itself = not any(_MARK in step for step in steps)
        self._emission = choice(self._config, "emit", EMISSIONS, self._usual_emission())
        # Hazelcast understands a frame of no size as never to emit, and we as emitting every step;
        # in an endless one nothing is ever due.
        endless = self._config.get("frame") == "+inf"
        self._silent = endless or (self._hazelcast and self._config.get("frame", 1) == 0)
        interval = self._config.get("interval", self._config.get("auto_watermark_interval"))
        self._interval = None if interval is None else self._ticks(interval)
        self._by_clock = self._interval is None and not any("emit" in step for step in steps)
        self._now = next(
            (self._ticks(step["clock"]) for step in steps[:1] if step.keys() == {"clock"}), 0
        )
        self._parts = _parts(self._config.get("partitions", 1), self._spec)
        self._tracker = self._new_tracker(0 if endless else frame_of(scenario, self._ticks))
        self._was_idle = False
        self._restore(self._config.get("restored_watermark"))
        self._timers = (
            {name: _Timer(self._tracker, name, lazy=True) for name in self._parts}
            if self._flink
            else {}
        )

    def _usual_emission(self) -> str:
        if self._hazelcast:
            return "before"
        return "periodic" if self._flink and not isinstance(self._spec, Punctuated) else "after"

    def _new_tracker(self, frame: int) -> SourceTracker:
        timeout = self._config.get("idle_timeout")
        idle_after = (
            None
            if timeout is None or (self._hazelcast and timeout == 0)
            else self._ticks(timeout) + self._flink
        )
        self._options: dict[str, Any] = {
            "idle_after": idle_after,
            "rules": SystemRules(frame=frame),
            "now": self._now,
        }
        return SourceTracker(declared=self._parts, **self._options)

    def _restore(self, written: Any) -> None:
        """Partitions begin with the watermarks of a snapshot: one for all, or by partition."""
        if written is None:
            return
        by_part = (
            written
            if isinstance(written, dict)
            else dict.fromkeys(range(len(self._parts)), written)
        )
        for part, value in by_part.items():
            self._tracker.promise(
                [self._part({"part": part})],
                np.array([watermark(value, self._ticks)], np.int64),
                self._now,
            )
        self._tracker.release(self._now)
        saved = json.loads(json.dumps(self._tracker.save()))
        self._tracker = SourceTracker(**self._options)
        self._tracker.restore(saved)

    # Steps

    def step(self, step: dict[str, Any], where: str) -> None:
        before = self._now
        if "clock" in step:
            self._now = max(self._now, self._ticks(step["clock"]))
        self._due = self._is_due(step, before)
        try:
            found = self._happened(step)
        except TidegateError as refusal:
            if not is_set(step, "error"):
                raise MismatchError(f"{where}: it was refused: {refusal}") from refusal
            return
        if is_set(step, "error"):
            raise MismatchError(f"{where}: it must be refused, but it was accepted")
        if "out" in step:
            if not isinstance(step["out"], list):
                raise UnsupportedScenarioError(f"`out` must be a list, got `{step['out']}`")
            expected = [read(entry, self._ticks) for entry in step["out"]]
            if found != self._without_repeats(expected, found, step):
                raise MismatchError(
                    f"{where}: expected {show(expected, self._ticks)}, got"
                    f" {show(found, self._ticks)}"
                )
        if "state" in step:
            self._look(step["state"], where)

    def _is_due(self, step: dict[str, Any], before: int) -> bool:
        """Whether a generator that emits by the clock does so now: at the end of an interval, or
        where only the clock can mean that.
        """
        if self._interval is not None:
            return self._now // self._interval > before // self._interval
        return self._by_clock and "clock" in step and step.get("event") is None

    def _look(self, written: Any, where: str) -> None:
        """What has been put out so far."""
        wanted = written if isinstance(written, dict) else {"wm": written}
        known("a state", wanted, {"wm", "idle"})
        if "idle" in wanted and wanted["idle"] != self._was_idle:
            raise MismatchError(f"{where}: expected `idle` {wanted['idle']}, got {self._was_idle}")
        if "wm" in wanted and watermark(wanted["wm"], self._ticks) != (
            value := self._tracker.output
        ):
            raise MismatchError(
                f"{where}: expected `wm` {wanted['wm']}, got"
                f" {show([Signal('wm', value, 0)], self._ticks)[0]}"
            )

    def _without_repeats(
        self, expected: list[Signal], found: list[Signal], step: dict[str, Any]
    ) -> list[Signal]:
        """A bare generator says at each emission where it stands; we say what is new, so a repeated
        watermark is no news.
        """
        if not is_set(step, "emit") or (
            "monotone_output" in self._config and flag(self._config, "monotone_output")
        ):
            return expected
        return [
            one for one in expected if one in found or one != Signal("wm", self._tracker.output, 0)
        ]

    def _happened(self, step: dict[str, Any]) -> list[Signal]:
        if "batch" in step:
            return self._batch(step)
        event = step.get("event")
        joining = _times(step, "add") + _times(step, "add_partitions")
        for _ in range(joining):
            self._add(step)
        for name in ("remove", "remove_partition"):
            if step.get(name) is not None and step[name] is not False:
                self._remove(step, step[name])
        if is_set(step, "end_of_input"):
            self._tracker.lift(MAX, self._now)
        if event is not None:
            self._observe(step)
        itself = [] if event is None else [Signal("ev", self._ticks(event))]
        asked = is_set(step, "emit") or is_set(step, "end_of_input")
        quiet = self._emission == "never" or (
            self._emission == "periodic" and not (asked or self._due)
        )
        if (quiet and not is_set(step, "end_of_input")) or (joining and event is None):
            return itself
        marks = self._released()
        return [*marks, *itself] if self._emission == "before" else [*itself, *marks]

    def _batch(self, step: dict[str, Any]) -> list[Signal]:
        """Events whose watermark is put out once, after the last of them; they are not shown."""
        for event in step["batch"]:
            self._observe({**step, "event": event})
        return self._released()

    def _observe(self, step: dict[str, Any]) -> None:
        name, written = self._part(step), step["event"]
        time = self._ticks(self._time_of(step))
        signals = step.get(_MARK, written if self._marks_itself else None)
        mark = None if signals is None else self._ticks.watermark(signals)
        table = pa.table({"t": pa.array([time], pa.int64()), _MARK: pa.array([mark], pa.int64())})
        seen = Observed(
            table,
            np.array([time], np.int64),
            np.ones(1, bool),
            np.zeros(1, np.int64),
            [name],
            self._now,
            MAX,
        )
        promises = self._generator.observe(seen)
        if self._emission == "before":
            # Where the watermark goes in front of its event it must not make that event late, so
            # Hazelcast clips it to the event's time.
            promises = Promises(promises.names, np.minimum(promises.values, time))
        self._tracker.promise(promises.names, promises.values, self._now, repeats=True)
        if name in self._timers:
            self._timers[name].activity(self._now)

    def _time_of(self, step: dict[str, Any]) -> Any:
        """The time of an event: itself, or the one that its source gave it where nothing reads it
        from the event.
        """
        if "timestamp_fn" not in self._config:
            return step["event"]
        if self._config["timestamp_fn"] is not None:
            raise UnsupportedScenarioError(
                "`timestamp_fn` may only be null: the event is its time otherwise"
            )
        given = next((step[name] for name in NATIVE if step.get(name) is not None), None)
        if given is None:
            raise InputError(f"the event {step['event']} has no time")
        return given

    def _part(self, step: dict[str, Any]) -> str:
        part = step.get("part", step.get("in", 0))
        if isinstance(part, int) and 0 <= part < len(self._parts):
            return self._parts[part]
        if str(part) in self._parts:
            return str(part)
        raise InputError(f"there is no partition `{part}`")

    def _add(self, step: dict[str, Any]) -> None:
        name = str(step.get("part", step.get("in", len(self._parts))))
        while name in self._tracker:
            name += "'"
        self._parts.append(name)
        self._tracker.join([name], self._now)
        if self._flink:
            self._timers[name] = _Timer(self._tracker, name, lazy=True)

    def _remove(self, step: dict[str, Any], named: Any) -> None:
        """A partition leaves, named in the step or after the word itself; those behind it count one
        less from now on.
        """
        name = self._part(step if named is True else {"part": named})
        self._parts.remove(name)
        self._timers.pop(name, None)
        self._tracker.leave([name])

    def _released(self) -> list[Signal]:
        by_clock = self._generator.tick(self._now)
        if by_clock.names:
            self._tracker.promise(by_clock.names, by_clock.values, self._now, repeats=True)
        for timer in self._timers.values():
            timer.settle(self._now)
        self._tracker.tick(self._now)
        released = self._tracker.release(self._now)
        # To Hazelcast a source without partitions is idle; to us it has no watermark.
        idle = self._tracker.is_idle or (self._hazelcast and not len(self._tracker))
        turned, self._was_idle = idle != self._was_idle, idle
        signals = (
            []
            if released.watermark is None or self._silent
            else [Signal("wm", released.watermark, 0)]
        )
        if idle and (turned or (released.idle and not self._hazelcast)):
            signals.append(Signal("idle"))
        elif turned and not self._hazelcast and not self._flink:
            signals.insert(0, Signal("active"))
        return signals


def _times(step: dict[str, Any], name: str) -> int:
    """How often: `true` is once, and so is 0, which can only be the number of the first one."""
    count = step.get(name, False)
    if not isinstance(count, int) or count < 0:
        raise UnsupportedScenarioError(f"`{name}` must be true or a number, got `{count}`")
    return 1 if count == 0 and not isinstance(count, bool) else int(count)


def _parts(given: Any, spec: Watermarks) -> list[str]:
    if isinstance(spec, Lagging | Implied):
        return [""]
    if isinstance(given, list):
        return [str(part) for part in given]
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UnsupportedScenarioError(
            f"`partitions` is a list of names or a number, got `{given}`"
        )
    return [str(part) for part in range(given)]


def _specification(scenario: Scenario, ticks: Ticks) -> Watermarks:
    """The watermark that a user would ask for."""
    config, name = scenario.config, scenario.config.get("generator")
    needed = {
        "fixed_lag": "lag",
        "bounded_out_of_orderness": "bound",
        "constant": "value",
        "clock_lag": "lag",
    }
    if needed.get(str(name), "generator") not in config:
        raise UnsupportedScenarioError(
            f"generator `{name}` needs `{needed.get(str(name), 'generator')}`"
        )
    match name:
        case "fixed_lag" | "bounded_out_of_orderness":
            # A strict watermark W completes windows that end before W: one tick later than ours.
            return Bounded(ticks(config[needed[name]]) + (scenario.wm == "strict"))
        case _ if name in ASCENDING:
            return Bounded(0)
        case "clock_lag":
            return Lagging(ticks(config["lag"]))
        case "constant":
            value = watermark(config["value"], ticks)
            return Generated(
                lambda seen: np.full(len(seen.partitions), value, np.int64), "constant"
            )
        case "punctuated":
            return Punctuated(column=_MARK)
        case "implied":
            return Implied()
    raise UnsupportedScenarioError(
        f"generator `{name}` is not one of"
        f" {', '.join([*needed, *ASCENDING, 'punctuated', 'implied'])}"
    )
