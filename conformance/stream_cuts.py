"""The kinds of streams whose writers know the time: `stream_cut`, `writer_activity`,
`writer_marks`, `compare` and `time_window`.
"""

from __future__ import annotations

from typing import Any

from tidegate.errors import WatermarkError
from tidegate.kernel.streams.segments import Segment, Segments
from tidegate.kernel.streams.watermarks import (
    Aggregation,
    Commit,
    Mark,
    Marks,
    StreamMark,
    TimeWindow,
    takes_part,
    time_window,
)
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)

_ROUNDS = 4
"""Number of timeouts to wait for a watermark, or for silence."""
_UNTIL_QUIET = ("until_quiet", "for_10s")
_COMPUTE = (True, "once", "until_emitted", *_UNTIL_QUIET)
_CUT_STEP = frozenset(
    {
        "mark",
        "time",
        "pos",
        "shutdown",
        "clock",
        "advance_clock",
        "compute",
        "out",
        "same_cut",
        "scale",
        "writer",
        "known",
        "alive",
        "stream_tracked",
    }
)


def run_stream_cut(scenario: Scenario) -> None:
    """Writers note times, and rounds of the controller make watermarks of them; rounds are a tenth
    of the timeout apart.
    """
    known("the scenario", scenario.body, {"steps"})
    known("`config`", scenario.config, {"timeout", "epochs"})
    stream = _Stream(scenario)
    for number, step in enumerate(scenario.entries("steps"), 1):
        known("a step", mapping("a step", step), _CUT_STEP)
        stream.step(step, f"step {number}")


class _Stream:
    """The marks of a stream's writers, and the rounds that aggregate them."""

    def __init__(self, scenario: Scenario) -> None:
        timeout = int(scenario.config.get("timeout", 0))
        self._epochs = list(scenario.config.get("epochs", []))
        steps = [mapping("a step", step) for step in scenario.entries("steps")]
        # A scenario that scales begins with its first epoch, all others have all epochs at once.
        first = 1 if any("scale" in step for step in steps) else len(self._epochs)
        self._segments = _epochs(self._epochs[:first])
        self._marks, self._rounds = Marks(), Aggregation(timeout)
        self._now, self._period = 0, max(1, timeout // 10)
        self._wait = _ROUNDS * max(timeout, self._period)
        self._last_cut: dict[str, int] | None = None

    def step(self, step: dict[str, Any], where: str) -> None:
        if "mark" in step:
            self._marks.note(step["mark"], int(step["time"]), _position(step.get("pos", {})))
        if "shutdown" in step:
            self._marks.shut_down(step["shutdown"])
        if "scale" in step:
            self._scale(mapping("`scale`", step["scale"]), where)
        if "clock" in step:
            self._now = max(self._now, int(step["clock"]))
        if "advance_clock" in step:
            self._now += int(step["advance_clock"])
        if "compute" in step:
            self._compute(step, where)
        if "writer" in step:
            _look_up(self._marks, {"get": step["writer"], **step}, where)
        if "stream_tracked" in step and bool(step["stream_tracked"]) != bool(self._marks.by_writer):
            raise MismatchError(f"{where}: the writers are {sorted(self._marks.by_writer)}")

    def _scale(self, change: dict[str, Any], where: str) -> None:
        """The next epoch of the config begins."""
        known("`scale`", change, {"sealed", "created"})
        before = set(self._segments.by_name)
        begun = 1 + self._segments.epoch
        self._segments = _epochs(self._epochs[: begun + 1])
        created = set(self._segments.by_name) - before
        sealed = {name for name in before if name not in self._epochs[begun]}
        if (sealed, created) != (set(change["sealed"]), set(change["created"])):
            raise MismatchError(
                f"{where}: epoch {begun} seals {sorted(sealed)} and creates {sorted(created)}"
            )

    def _compute(self, step: dict[str, Any], where: str) -> None:
        how = step["compute"]
        if how not in _COMPUTE:
            raise UnsupportedScenarioError(
                f"`compute: {how}` is not one of {', '.join(map(str, _COMPUTE))}"
            )
        found = self._rounds.compute(self._marks, self._segments, self._now)
        last = self._now if how in (True, "once") else self._now + self._wait
        while self._now < last and (found is None or how in _UNTIL_QUIET):
            self._now += self._period
            further = self._rounds.compute(self._marks, self._segments, self._now)
            found = further or (found if how in _UNTIL_QUIET else None)
        _same_mark(step.get("out"), found, where)
        if found is None:
            return
        if step.get("same_cut") not in (None, dict(found.cut) == self._last_cut):
            raise MismatchError(f"{where}: the cut {dict(found.cut)} follows {self._last_cut}")
        self._last_cut = dict(found.cut)


def _same_mark(expected: Any, found: StreamMark | None, where: str) -> None:
    shown = (
        None
        if found is None
        else {"time": found.time, "upper": found.upper, "cut": dict(found.cut)}
    )
    if expected is None or shown is None:
        if expected is not None or shown is not None:
            raise MismatchError(f"{where}: expected {expected}, got {shown}")
        return
    known("`out`", mapping("`out`", expected), {"time", "upper", "cut"})
    different = {name: shown[name] for name in expected if shown[name] != expected[name]}
    if different:
        raise MismatchError(f"{where}: expected {expected}, got {different}")


def run_writer_activity(scenario: Scenario) -> None:
    """Each case: whether a writer takes part, and whether it is waited for when it is seen for the
    first time.
    """
    known("the scenario", scenario.body, {"cases"})
    known("`config`", scenario.config, ())
    for case in scenario.entries("cases"):
        known(
            "a case",
            mapping("a case", case),
            {"previous_watermark", "writer_time", "timeout", "active", "participating"},
        )
        previous, time = case["previous_watermark"], int(case["writer_time"])
        rounds = Aggregation(
            int(case["timeout"]),
            None if previous is None else StreamMark(int(previous), int(previous), {}),
        )
        found = {
            "active": rounds.is_active("writer", Mark(time), 0),
            "participating": takes_part(previous, time),
        }
        different = {
            name: value for name, value in found.items() if name in case and case[name] != value
        }
        if different:
            raise MismatchError(f"{case}: got {different}")


def run_writer_marks(scenario: Scenario) -> None:
    """Marks are noted, looked at and removed."""
    known("the scenario", scenario.body, {"steps"})
    known("`config`", scenario.config, ())
    marks = Marks()
    for number, step in enumerate(scenario.entries("steps"), 1):
        where = f"step {number}"
        names = {
            "get",
            "known",
            "alive",
            "time",
            "marks_written",
            "mark",
            "pos",
            "shutdown",
            "remove",
            "expecting",
            "error",
            "all",
            "commit_txns",
        }
        known("a step", mapping("a step", step), names)
        if "mark" in step:
            marks.note(step["mark"], int(step["time"]), _position(step.get("pos", {})))
        elif "commit_txns" in step:
            marks.commit(
                [Commit(txn["writer"], txn.get("time")) for txn in step["commit_txns"]],
                _position(step.get("pos", {})),
            )
        elif "shutdown" in step:
            marks.shut_down(step["shutdown"])
        elif "remove" in step:
            _remove(marks, step, where)
        elif "all" in step:
            if sorted(marks.by_writer) != sorted(step["all"]):
                raise MismatchError(
                    f"{where}: expected the writers {step['all']}, got {sorted(marks.by_writer)}"
                )
        else:
            _look_up(marks, step, where)


def _remove(marks: Marks, step: dict[str, Any], where: str) -> None:
    if step.get("expecting") not in ("empty_mark", "current_mark"):
        raise UnsupportedScenarioError(
            f"`expecting: {step.get('expecting')}` is not one of empty_mark, current_mark"
        )
    current = marks.get(step["remove"])
    expected = current if step["expecting"] == "current_mark" and current is not None else Mark(0)
    try:
        marks.remove(step["remove"], expected)
    except WatermarkError:
        if "error" not in step:
            raise
    else:
        if "error" in step:
            raise MismatchError(f"{where}: expected to be refused, but the mark was removed")


def _look_up(marks: Marks, step: dict[str, Any], where: str) -> None:
    mark = marks.get(step["get"])
    found = {
        "known": mark is not None,
        "alive": mark is not None and mark.alive,
        "time": None if mark is None else mark.time,
        "marks_written": marks.written,
    }
    different = {
        name: value for name, value in found.items() if name in step and step[name] != value
    }
    if different:
        raise MismatchError(f"{where}: expected {step}, got {different}")


def run_compare(scenario: Scenario) -> None:
    """Each case: whether a position is before a cut, at or after it, or neither."""
    known("the scenario", scenario.body, {"cases"})
    known("`config`", scenario.config, {"segments", "cut"})
    segments = _segments(scenario.config["segments"])
    for case in scenario.entries("cases"):
        known("a case", mapping("a case", case), {"pos", "result"})
        found = segments.compare(_position(case["pos"]), _position(scenario.config["cut"]))
        if found != case["result"]:
            raise MismatchError(f"{case['pos']}: expected {case['result']}, got {found}")


def run_time_window(scenario: Scenario) -> None:
    """A group of readers goes through a stream with watermarks: by positions, or by events, whose
    offset counts when the next one is read.
    """
    known("the scenario", scenario.body, {"steps"})
    known("`config`", scenario.config, {"segments", "marks", "event_size", "data"})
    segments = _segments(scenario.config["segments"])
    marks = [
        StreamMark(int(mark["time"][0]), int(mark["time"][1]), _position(mark["cut"]))
        for mark in scenario.config["marks"]
    ]
    group = _Group(scenario.config)
    for number, step in enumerate(scenario.entries("steps"), 1):
        known("a step", mapping("a step", step), {"advance", "read", "window"})
        if "advance" in step:
            group.position = _position(step["advance"])
        if "read" in step:
            group.read(step["read"], f"step {number}")
        if "window" in step:
            found = time_window(group.position, marks, segments)
            if found != TimeWindow(*step["window"]):
                raise MismatchError(
                    f"step {number}: expected {step['window']}, got {[found.lower, found.upper]}"
                )


class _Group:
    """Readers that read the events of all segments."""

    def __init__(self, config: Any) -> None:
        self.position: dict[str, int] | None = None
        self._size = int(config.get("event_size", 1))
        self._data = {
            name: list(values) for name, values in mapping("`data`", config.get("data", {})).items()
        }
        self._last: str | None = None

    def read(self, event: Any, where: str) -> None:
        """Read the next event with this value; None where there is none. The one before it has been
        dealt with.
        """
        if self.position is None:
            self.position = dict.fromkeys(self._data, 0)
        if self._last is not None:
            self.position[self._last] += self._size
        self._last = next(
            (name for name, values in self._data.items() if values and values[0] == event), None
        )
        if self._last is not None:
            self._data[self._last].pop(0)
        elif event is not None or any(self._data.values()):
            raise MismatchError(
                f"{where}: expected to read {event}, and what is left is {self._data}"
            )


def _position(given: Any) -> dict[str, int]:
    return {str(name): int(at) for name, at in mapping("a position", given).items()}


def _epochs(given: Any) -> Segments:
    """Segments by epoch; one that is in several epochs is from the first of them."""
    found: dict[str, Segment] = {}
    for number, epoch in enumerate(given):
        for name, (low, high) in mapping("an epoch", epoch).items():
            found.setdefault(str(name), Segment(str(name), float(low), float(high), number))
    return Segments.of(found.values())


def _segments(given: Any) -> Segments:
    """Segments in the order in which they were made: one that shares keys with earlier ones
    succeeds them.
    """
    found: list[Segment] = []
    for name, (low, high) in mapping("`segments`", given).items():
        made = Segment(str(name), float(low), float(high))
        epoch = 1 + max((other.epoch for other in found if made.meets(other)), default=-1)
        found.append(Segment(made.name, made.low, made.high, epoch))
    return Segments.of(found)
