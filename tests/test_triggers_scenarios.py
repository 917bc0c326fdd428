"""The machines of triggers, against the scenarios taken from the tests of Beam's own state
machines.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tidegate.instants import MAX, MIN
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers import TriggerContext, compile_trigger
from tidegate.spec.trigger_text import parse_trigger

SCENARIOS = yaml.safe_load(
    (
        Path(__file__).parent.parent / "conformance" / "scenarios" / "beam_trigger_state.yaml"
    ).read_text("utf-8")
)


class Stage:
    """Windows by their bounds, each with a machine of one row; windows that were merged away lead
    to their result.
    """

    def __init__(self, config):
        self.config = config["window"]
        self.machine = compile_trigger(parse_trigger(config["trigger"]))
        self.states, self.pending, self.became = {}, {}, {}
        self.watermark, self.now = MIN, 0

    def assign(self, t):
        kind = self.config["type"]
        if kind == "global":
            return ["global"]
        if kind == "session":
            return [(t, t + self.config["gap"])]
        size, period = self.config["size"], self.config.get("period", self.config["size"])
        return [(start, start + size) for start in range(t - t % period, t - size, -period)]

    def result(self, window):
        return self.result(self.became[window]) if window in self.became else window

    def context(self, window):
        end = MAX if window == "global" else window[1]
        return TriggerContext(
            end, self.watermark, self.now, np.array([self.pending.get(window, 0)], np.int64)
        )

    def state(self, window):
        return self.states.setdefault(window, self.machine.initial(1, self.now))

    def events(self, times):
        for time in times:
            for window in map(self.result, self.assign(time)):
                context = replace(self.context(window), times=np.array([time], np.int64))
                self.machine.on_elements(self.state(window), np.ones(1, np.int64), context)
                self.pending[window] = self.pending.get(window, 0) + 1

    def merge(self, parts, to):
        states = [self.states.pop(part) for part in parts]
        together = {
            name: np.concatenate([state[name] for state in states]) for name in self.machine.columns
        }
        self.states[to] = self.machine.merge(together, Groups.single(len(parts)))
        self.pending[to] = sum(self.pending.pop(part) for part in parts)
        self.became.update(dict.fromkeys(parts, to))

    def fire(self, window):
        if self.ready(window):
            self.machine.fire(self.state(window), np.ones(1, bool), self.context(window))
            self.pending[window] = 0

    def ready(self, window):
        return bool(self.machine.ready(self.state(window), self.context(window))[0])

    def finished(self, window):
        return bool(self.machine.finished(self.state(window))[0])


def bounds(window):
    return window if window == "global" else tuple(window)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario["id"] for scenario in SCENARIOS])
def test_scenario(scenario):
    assert scenario["kind"] == "trigger"
    stage = Stage(scenario["config"])
    for number, step in enumerate(scenario["steps"], 1):
        [(verb, value)] = step.items()
        if verb == "events":
            stage.events(value)
        elif verb == "watermark":
            stage.watermark = MAX if value == "+inf" else value
        elif verb == "processing_time":
            stage.now = value
        elif verb == "merge":
            stage.merge([bounds(part) for part in value["from"]], bounds(value["to"]))
        elif verb == "fire":
            stage.fire(bounds(value))
        else:
            assert verb == "check"
            for what in value.keys() - {"window"}:
                assert getattr(stage, what)(bounds(value["window"])) == value[what], (
                    f"step {number}: {value}"
                )
