"""The kind `coalesce`: the watermarks of many inputs, and the one watermark of the output.

The rules of other systems are in `coalescers`; this module translates how a system shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from conformance.coalescers import SystemRules
from conformance.firings import Firings, window_size
from conformance.inputs import Inputs, Keyed, OfWindow, Partitioned, Tracked, producers_of
from conformance.mark_words import (
    TURNS,
    Signal,
    of_mark,
    read,
    show,
    watermark,
)
from tidegate.errors import InputError, SpecError, TidegateError
from tidegate.instants import MIN
from tidegate.kernel.watermarks.marks import Idle, Mark
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

CONFIG = OF_OPERATORS | {
    "inputs",
    "policy",
    "quorum",
    "frame",
    "initial",
    "partitions",
    "producers_per_partition",
    "idle_timeout",
    "emit",
    "deferred",
    "realign",
}
ACTIONS = ("snapshot_restore", "add", "event", "active", "wm", "idle", "done", "remove")
EMITS = ("emit", "end_of_batch")
LOOKS = frozenset({"out", "idle_pending", "error", "state", "keys", "aligned", "result", "returns"})
STEP = frozenset(ACTIONS) | LOOKS | {"in", "clock", "key", *EMITS, "deferred", "immediate"}
EMISSIONS = {
    "immediate": "",
    "end_of_batch": "batch",
    "periodic": "periodic",
    "deferred": "periodic",
}
OUTPUT = ("wm", "overall", "stream", "after_repartition", "coalesced")
TOP = ("top", "top_observed")


@dataclass(frozen=True)
class Habits:
    """How a system coalesces, as rules of ours, and what it shows of it."""

    rules: SystemRules = field(default_factory=SystemRules)
    keyed: bool = False
    partitioned: bool = False
    of_window: bool = False
    """The inputs are those of a window operator."""
    hears_events: bool = True
    lazy: bool = False
    """Joining, leaving and a watermark that does not rise are no updates: they show with the next
    one.
    """
    shows: tuple[str, ...] = TURNS
    """What is put out beside watermarks; the rest is compared only where a scenario mentions it."""


_HAZELCAST = SystemRules(strict=True, increasing=True, any_key_wakes=True)
_VALVE = Habits(SystemRules(realign=True, woken_by="touch"), hears_events=False)
HABITS = {
    "tidegate": Habits(),
    **dict.fromkeys(("min", "beam", "spark", "apex"), Habits(shows=())),
    # The plain coalescer answers with a watermark or nothing; that it is idle is a flag beside it,
    # `idle_pending`.
    "hazelcast": Habits(_HAZELCAST, shows=()),
    "hazelcast_keyed": Habits(_HAZELCAST, keyed=True, shows=("idle",)),
    "flink": _VALVE,
    "flink_valve": _VALVE,
    "flink_multiplexer": Habits(lazy=True, shows=()),
    "samza": Habits(partitioned=True, shows=()),
    "window_operator": Habits(keyed=True, of_window=True, shows=()),
}


def _habits(system: str, steps: list[dict[str, Any]]) -> Habits:
    """The habits of a system; where steps name watermark keys there are some, also if the scenario
    does not say so.
    """
    habits = HABITS[system]
    if habits.keyed or habits.partitioned or not any("key" in step for step in steps):
        return habits
    return HABITS["hazelcast_keyed"] if system == "hazelcast" else replace(habits, keyed=True)


def run_coalesce(scenario: Scenario) -> None:
    """Each step is an action and its outcome."""
    known("`config`", scenario.config, CONFIG)
    steps = steps_of(scenario, STEP)
    if scenario.system not in HABITS:
        raise UnsupportedScenarioError(
            f"`semantics: {scenario.system}` is not one of {', '.join(HABITS)}"
        )
    difference = _difference(scenario, steps)
    unsaid = HABITS[scenario.system].lazy and not {"emit", "deferred"} & scenario.config.keys()
    if difference is not None and unsaid and any("emit" in step for step in steps):
        # Outputs of Flink's multiplexer are immediate, or wait for an emission. Steps that emit go
        # with both, so where nothing says which it is, either will do.
        deferred = replace(scenario, config={**scenario.config, "emit": "periodic"})
        difference = difference if _difference(deferred, steps) else None
    if difference is not None:
        raise difference


def _difference(scenario: Scenario, steps: list[dict[str, Any]]) -> MismatchError | None:
    """What is not as it should be."""
    coalescing = _Coalescing(scenario, steps)
    try:
        for number, step in enumerate(steps, 1):
            coalescing.step(step, f"step {number}")
    except MismatchError as difference:
        return difference
    return None


def frame_of(scenario: Scenario, ticks: Ticks) -> int:
    """What watermarks are rounded to."""
    frame = ticks(scenario.config.get("frame") or 0)
    if frame and ticks.watermark(0) != 0:
        raise UnsupportedScenarioError(
            f"`frame` rounds the numbers of the scenario, and `wm: {scenario.wm}` shifts ours"
            " against them"
        )
    return frame


class _Coalescing:
    """The inputs of one scenario and what is to be compared with them."""

    def __init__(self, scenario: Scenario, steps: list[dict[str, Any]]) -> None:
        self._scenario, self._config = scenario, scenario.config
        self._ticks = ticks_of(scenario)
        self._habits = _habits(scenario.system, steps)
        # Inputs without partitions are producers of one that has no name.
        self._prefix = "/" if self._habits.partitioned and "partitions" not in self._config else ""
        self._declared = "inputs" in self._config or "partitions" in self._config
        self._inputs = self._made(steps)
        # The inputs are made at 0; the clock of the steps begins where the scenario starts.
        self._start = self._ticks(self._config.get("initial_processing_time", 0))
        if self._start:
            self._inputs.tick(self._start)
        self._pending_idle = False
        self._shows = {
            turn
            for turn in TURNS
            if turn in self._habits.shows or (not self._habits.shows and _mentioned(steps, turn))
        }
        emission = choice(
            self._config, "emit", EMISSIONS, "periodic" if self._is_deferred() else ""
        )
        # A scenario whose batches end after every step has no `emit` steps.
        self._on_emit = emission == "periodic" or (
            emission == "batch" and any(step.keys() & set(EMITS) for step in steps)
        )
        if "initial" in self._config:
            self._inputs.lift(self._watermark(self._config["initial"]))
            self._inputs.release()
        self._firings = self._firing_windows(steps)

    # What there is at the beginning

    def _made(self, steps: list[dict[str, Any]]) -> Inputs:
        rules = self._rules(steps)
        timeout = self._config.get("idle_timeout")
        idle_after = None if timeout is None else self._ticks(timeout)
        start = next(
            (self._ticks(step["clock"]) for step in steps[:1] if step.keys() == {"clock"}), 0
        )
        names = _names(self._config.get("inputs", 0), "")
        if self._habits.partitioned:
            named = [str(step["in"]) for step in steps if "in" in step]
            producers = producers_of(
                self._partitions(), _count(self._config, "producers_per_partition"), named
            )
            # Samza asks for its quorum where silence has an end; without one it waits for
            # everybody.
            quorum = None if idle_after is None or "quorum" not in self._config else rules.quorum
            return Partitioned(
                producers if "partitions" in self._config else {"": names},
                rules,
                idle_after,
                start,
                quorum,
            )
        if "partitions" in self._config or "producers_per_partition" in self._config:
            raise UnsupportedScenarioError(
                "`partitions` and `producers_per_partition` belong to `semantics: samza`"
            )
        names = _called(names, steps)
        if not self._habits.keyed:
            return Tracked(names, rules, idle_after, start)
        if idle_after is not None:
            raise UnsupportedScenarioError(
                "keyed inputs have no `idle_timeout`: idleness is a step"
            )
        return (OfWindow if self._habits.of_window else Keyed)(names, rules)

    def _rules(self, steps: list[dict[str, Any]]) -> SystemRules:
        rules, config = self._habits.rules, self._config
        quorum = config.get("quorum", 1.0)
        if isinstance(quorum, bool) or not isinstance(quorum, int | float):
            raise UnsupportedScenarioError(
                f"`quorum` must be a share of the inputs, got `{quorum}`"
            )
        # Our own rules leave it open whether a step back is an error; a scenario that expects one
        # asks for the strict option.
        asked = self._habits.rules == SystemRules() and any(
            "wm" in step and step.get("error") for step in steps
        )
        changed = {name: flag(config, name) for name in ("strict", "realign") if name in config}
        policy = choice(config, "policy", {"min": "min", "max": "max"}, "min")
        # Samza waits for producers that never spoke until the timeout is over, where there is one.
        patient = self._habits.partitioned and config.get("idle_timeout") is not None
        frame = frame_of(self._scenario, self._ticks)
        try:
            return replace(
                rules,
                policy=policy,
                quorum=quorum,
                frame=frame,
                patient=patient,
                strict=changed.get("strict", rules.strict or asked),
                realign=changed.get("realign", rules.realign),
            )
        except SpecError as error:
            raise UnsupportedScenarioError(
                f"the config asks for rules that do not go together: {error}"
            ) from error

    def _is_deferred(self) -> bool:
        return "deferred" in self._config and flag(self._config, "deferred")

    def _firing_windows(self, steps: list[dict[str, Any]]) -> Firings | None:
        fires = [
            step["state"]["fires"]
            for step in steps
            if isinstance(step.get("state"), dict) and "fires" in step["state"]
        ]
        if not fires:
            return None
        signals = [self._watermark(step["wm"]) for step in steps if "wm" in step]
        firings = Firings(
            window_size(dict(self._config), fires, self._ticks), [*signals, self._inputs.output(0)]
        )
        firings.upto(self._inputs.output(0))
        return firings

    # Steps

    def step(self, step: dict[str, Any], where: str) -> None:
        if "clock" in step:
            self._inputs.tick(self._start + self._ticks(step["clock"]))
        due = self._is_update(step)
        known_before = "in" in step and self._named(step) in self._inputs
        try:
            self._act(step)
            found = self._inputs.release() if due else []
        except TidegateError as refusal:
            if not is_set(step, "error"):
                raise MismatchError(
                    f"{where}: {_action_text(step)} was refused: {refusal}"
                ) from refusal
            found = []
        else:
            if is_set(step, "error"):
                raise MismatchError(
                    f"{where}: {_action_text(step)} must be refused, but it was accepted"
                )
        for name in ("result", "returns"):
            if step.get(name, known_before) != known_before:
                raise MismatchError(f"{where}: expected {name} {step[name]}, got {known_before}")
        self._compare(step, found, where)

    def _is_update(self, step: dict[str, Any]) -> bool:
        """Whether the system puts out in this step what is due."""
        if any(is_set(step, name) for name in EMITS):
            return True
        if is_set(step, "deferred") or (self._on_emit and not is_set(step, "immediate")):
            return False
        if not self._habits.lazy:
            return True
        if "wm" not in step:
            return not {"add", "remove"} & step.keys()
        name, value = self._named(step), self._watermark(step["wm"])
        return value > self._inputs.output(0) and (
            name not in self._inputs or value > self._inputs.promised(name)
        )

    def _act(self, step: dict[str, Any]) -> None:
        for action in ACTIONS:
            if action == "wm" and "wm" in step:
                self._inputs.promise(
                    self._input(step), self._watermark(step["wm"]), step.get("key", 0)
                )
            elif action != "wm" and is_set(step, action):
                self._do(action, step)

    def _do(self, action: str, step: dict[str, Any]) -> None:
        if action == "snapshot_restore":
            self._inputs.restart()
        elif action == "add":
            self._inputs.join(self._named(step))
        elif action == "remove":
            if self._named(step) in self._inputs:
                self._inputs.leave(self._named(step))
        elif action == "idle":
            self._inputs.idle(self._input(step), step.get("key"))
        elif action == "done":
            self._inputs.end(self._input(step))
        elif action == "active" or self._habits.hears_events:
            self._inputs.touch(self._input(step))

    def _named(self, step: dict[str, Any]) -> str:
        if "in" not in step:
            raise UnsupportedScenarioError(
                f"a step must say `in` which input something happens: {step}"
            )
        return f"{self._prefix}{step['in']}"

    def _input(self, step: dict[str, Any]) -> str:
        """The input of a step; those that are not declared join when they are first named."""
        name = self._named(step)
        if name not in self._inputs:
            if self._declared:
                raise InputError(f"there is no input `{name}`")
            self._inputs.join(name)
        return name

    def _watermark(self, written: Any) -> int:
        return watermark(written, self._ticks)

    # Comparisons

    def _compare(self, step: dict[str, Any], found: list[Mark], where: str) -> None:
        went_idle = any(isinstance(mark, Idle) for mark in found) and not self._inputs.ended
        self._pending_idle = self._pending_idle or went_idle
        if "out" in step:
            expected = [read(entry, self._ticks) for entry in _list(step["out"], "out")]
            signals = self._signals(step, found)
            if signals != expected:
                raise MismatchError(
                    f"{where}: expected {show(expected, self._ticks)}, got"
                    f" {show(signals, self._ticks)}"
                )
        if "idle_pending" in step:
            # Reading the flag resets it.
            pending, self._pending_idle = self._pending_idle, False
            if pending != is_set(step, "idle_pending"):
                raise MismatchError(
                    f"{where}: expected idle_pending {step['idle_pending']}, got {pending}"
                )
        if "state" in step:
            self._look(step["state"], step, where)
        self._look({name: step[name] for name in ("keys", "aligned") if name in step}, step, where)

    def _signals(self, step: dict[str, Any], found: list[Mark]) -> list[Signal]:
        if not self._habits.keyed or self._habits.rules != _HAZELCAST:
            return [
                signals
                for signals in map(of_mark, found)
                if signals.word == "wm" or signals.word in self._shows
            ]
        # Hazelcast emits one idle mark for all keys, each time that an input becomes idle by a mark
        # of itself, and never because one ended.
        is_idle_step = is_set(step, "idle")
        signals = [
            one
            for one in map(of_mark, found)
            if one.word == "wm" or (is_idle_step and one.word == "idle" and "key" in step)
        ]
        all_idle = (
            is_idle_step and "key" not in step and self._inputs.is_idle and not self._inputs.ended
        )
        return [*signals, Signal("idle")] if all_idle else signals

    def _look(self, wanted: Any, step: dict[str, Any], where: str) -> None:
        if not isinstance(wanted, dict):
            wanted = {"idle": True} if wanted == "idle" else {"wm": wanted}
        for name, value in wanted.items():
            if name == "aligned":
                self._same_value("`aligned`", value, self._is_aligned(step), where)
            else:
                self._same(f"`{name}`", name, value, where)

    def _same(self, called: str, name: Any, wanted: Any, where: str) -> None:
        if name in {"idle", "ended", "keys"}:
            found = {
                "idle": self._inputs.is_idle,
                "ended": self._inputs.ended,
                "keys": list(self._inputs.keys),
            }[name]
            self._same_value(called, wanted, found, where)
        elif name == "fires":
            self._same_windows(wanted, where)
        elif self._watermark(wanted) != (value := self._value(name)):
            raise MismatchError(
                f"{where}: expected {called} {wanted}, got"
                f" {None if value == MIN else self._ticks.shown_watermark(value)}"
            )

    def _is_aligned(self, step: dict[str, Any]) -> bool:
        if not isinstance(self._inputs, Tracked):
            raise UnsupportedScenarioError(
                "`aligned` is asked of inputs without keys and partitions"
            )
        return self._inputs.is_aligned(self._named(step))

    def _same_value(self, called: str, wanted: Any, found: Any, where: str) -> None:
        if wanted != found:
            raise MismatchError(f"{where}: expected {called} {wanted}, got {found}")

    def _value(self, name: Any) -> int:
        """The watermark that goes by this name."""
        if name in OUTPUT:
            return self._inputs.output(0)
        if name in TOP:
            return self._inputs.top
        if self._habits.keyed and isinstance(name, int):
            return self._inputs.output(name)
        if name in self._partitions():
            return self._inputs.value(name)
        for candidate in (
            f"{self._prefix}{name}",
            f"{self._prefix}{str(name).removeprefix('input')}",
        ):
            if candidate in self._inputs:
                return self._inputs.value(candidate)
        raise UnsupportedScenarioError(f"unknown key `{name}` in a state")

    def _partitions(self) -> list[str]:
        return _names(self._config.get("partitions", 0), "p")

    def _same_windows(self, wanted: Any, where: str) -> None:
        assert self._firings is not None  # noqa: S101 - made where any step asks for it
        expected = sorted(
            (self._ticks(start), self._ticks(end)) for start, end in _list(wanted, "fires")
        )
        found = self._firings.upto(self._inputs.output(0))
        if found != expected:
            raise MismatchError(
                f"{where}: expected windows {wanted} to fire, got"
                f" {[[self._ticks.shown(edge) for edge in w] for w in found]}"
            )


def _action_text(step: dict[str, Any]) -> str:
    """The action of a step, for people."""
    found_value = {name: value for name, value in step.items() if name in {"in", "key", *ACTIONS}}
    return f"`{', '.join(f'{name}: {value}' for name, value in found_value.items())}`"


def _mentioned(steps: list[dict[str, Any]], turn: str) -> bool:
    return any(turn in str(step.get("out", "")) for step in steps)


def _names(given: Any, prefix: str) -> list[str]:
    """The names of inputs or partitions: as they are listed, or numbers."""
    if isinstance(given, list):
        return [str(name) for name in given]
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UnsupportedScenarioError(
            f"inputs are a list of names or a number of them, got `{given}`"
        )
    return [f"{prefix}{number}" for number in range(given)]


def _called(numbers: list[str], steps: list[dict[str, Any]]) -> list[str]:
    """The inputs by the names that steps call them, where these are not the numbers; those that
    `add` lets in come besides.
    """
    acting = [step for step in steps if "in" in step and step.keys() & set(ACTIONS)]
    joining = {str(step["in"]) for step in acting if "add" in step}
    named = list(dict.fromkeys(name for step in acting if (name := str(step["in"])) not in joining))
    if not named or len(named) > len(numbers) or any(name.isdecimal() for name in named):
        return numbers
    return [*named, *numbers[len(named) :]]


def _count(config: Any, name: str) -> int:
    count = config.get(name, 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise UnsupportedScenarioError(f"`{name}` must be a number, got `{count}`")
    return count


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise UnsupportedScenarioError(f"`{name}` must be a list, got `{value}`")
    return value
