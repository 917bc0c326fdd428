"""The plot of event time against processing time: bars of panes, watermarks, late rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    DatetimeTicker,
    DatetimeTickFormatter,
    HoverTool,
    Legend,
    LegendItem,
    NoOverlap,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.plotting import figure

from tidegate.page.timeline import SOURCES, Line, Timeline

COLOURS = {"early": "#8ecae6", "on_time": "#2a9d6f", "late": "#f08c2e"}
LATE_ROW, WATERMARK, WAITING = "#d62846", "#d62839", "#94a3b8"
INK, MUTED, GRID = "#0f172a", "#7688a1", "#94a3b8"
"""The colours of texts and lines; all but the first can be read on light and on dark ground."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
EVENT_TIME = "event time"
_MEASURES = {"clock": "window on the clock", "offset": "offset", "ordinal": "message of the key"}
"""What windows off event time measure."""
_NOWHERE = ([float("nan")], [float("nan")])
_TICKS = DatetimeTickFormatter(
    microseconds="%H:%M:%S.%3N",
    milliseconds="%H:%M:%S.%3N",
    seconds="%H:%M:%S",
    minsec="%H:%M:%S",
    minutes="%H:%M",
    hourmin="%H:%M",
    hours="%H:%M",
    days="%d %b",
)


class TimePlot:
    """The plot of a timeline; `update` brings it up to date."""

    def __init__(self, *, ticks: bool = False, height: int = 570, legend: bool = True) -> None:
        """`ticks`: whether event times are plain numbers; `legend`: whether the plot has one."""
        self.ticks, self._measure = ticks, EVENT_TIME
        self.bars = ColumnDataSource(_empty_bars())
        self.late = ColumnDataSource({"x": [], "y": [], "time": [], "rows": []})
        names = ("x0", "x1", "y", "keys", "start_text", "end_text")
        self.waiting = ColumnDataSource({name: [] for name in names})
        self.watermark = ColumnDataSource({"x": [], "y": []})
        self.sources = ColumnDataSource({"xs": [], "ys": [], "name": [], "colour": []})
        self.x_range, self.y_range = Range1d(0, 1), Range1d(0, 1)
        self.figure = figure(
            height=height,
            sizing_mode="stretch_width",
            y_axis_type="datetime",
            x_range=self.x_range,
            y_range=self.y_range,
            y_axis_label="processing time",
            tools="pan,wheel_zoom,box_zoom,reset,save",
            active_scroll="wheel_zoom",
            toolbar_location="above",
            output_backend="canvas",
        )
        self._draw(legend=legend)
        style(self.figure)
        self._set_axis()

    def _set_axis(self) -> None:
        """Show event times as numbers or as instants."""
        axis = self.figure.xaxis[0]
        axis.ticker = BasicTicker() if self.ticks else DatetimeTicker()
        axis.formatter = NumeralTickFormatter(format="0,0") if self.ticks else _TICKS.clone()
        axis.axis_label = self._measure

    def _draw(self, *, legend: bool) -> None:
        plot = self.figure
        waiting = plot.segment(
            "x0", "y", "x1", "y", source=self.waiting, color=WAITING, line_width=5, alpha=0.55
        )
        drawn = plot.segment(
            "x0", "y", "x1", "y", source=self.bars, color="colour", line_width="width", alpha=0.9
        )
        sources = plot.multi_line(
            "xs", "ys", source=self.sources, color="colour", line_width=1.5, alpha=0.75
        )
        mark = plot.line("x", "y", source=self.watermark, color=WATERMARK, line_width=2.5)
        late = plot.scatter(
            "x", "y", source=self.late, marker="x", color=LATE_ROW, size=8, line_width=1.6
        )
        if legend:
            self._add_legend(mark, late)
        self._add_hover(drawn, waiting, sources, late)

    def _add_legend(self, mark: Any, late: Any) -> None:
        plot = self.figure
        # Glyphs without data give the legend one entry for each colour.
        keys = [
            (
                name.replace("_", "-") + " pane",
                plot.line(*_NOWHERE, color=colour, line_width=7),
            )
            for name, colour in COLOURS.items()
        ]
        items = [
            ("watermark", [mark]),
            ("source", [plot.line(*_NOWHERE, color=SOURCES[0], line_width=1.5)]),
            *((name, [glyph]) for name, glyph in keys),
            ("late row", [late]),
            ("waiting window", [plot.line(*_NOWHERE, color=WAITING, line_width=5, alpha=0.55)]),
        ]
        legend = Legend(
            items=[LegendItem(label=name, renderers=glyphs) for name, glyphs in items],
            orientation="horizontal",
            border_line_color=None,
            label_text_color=MUTED,
            label_text_font=FONT,
            label_text_font_size="11px",
            spacing=14,
            padding=2,
            margin=0,
            glyph_width=16,
        )
        plot.add_layout(legend, "above")

    def _add_hover(self, drawn: Any, waiting: Any, sources: Any, late: Any) -> None:
        """The texts of bars, lines and late rows under the pointer."""
        when = "{%F %H:%M:%S}"
        bounds = "@start_text – @end_text"
        self.figure.add_tools(
            HoverTool(
                renderers=[drawn],
                tooltips=[
                    ("window", bounds),
                    ("timing", "@timing"),
                    ("panes", "@panes{0,0}"),
                    ("at", f"@y{when}"),
                    ("batch", "@batch"),
                ],
                formatters={"@y": "datetime"},
            ),
            HoverTool(
                renderers=[waiting],
                tooltips=[("waiting window", bounds), ("keys", "@keys{0,0}")],
            ),
            HoverTool(
                renderers=[sources], tooltips=[("watermark of", "@name")], line_policy="interp"
            ),
            HoverTool(
                renderers=[late],
                tooltips=[("late row", "@time"), ("late rows at this moment", "@rows{0,0}")],
            ),
        )

    def update(self, timeline: Timeline, *, follow: bool = True, span: float | None = None) -> None:
        """Show a timeline; `span` is the last part of processing time that is shown, in seconds."""
        status = timeline.status
        if status is not None:
            # Before the first event, the type of times is unknown.
            ticks = status.ticks and bool(status.counters.get("events"))
            measure = _MEASURES.get("" if status.explanation is None else status.explanation.axis)
            if (ticks, measure or EVENT_TIME) != (self.ticks, self._measure):
                self.ticks, self._measure = ticks, measure or EVENT_TIME
                self._set_axis()
        found = timeline.bar_columns()
        x0, x1 = self._x(found["start"]), self._x(found["end"])
        y = milliseconds(found["clock"])
        self.bars.data = {
            "x0": x0,
            "x1": x1,
            "y": y,
            "colour": [COLOURS.get(timing, MUTED) for timing in found["timing"]],
            "timing": list(found["timing"]),
            "width": 4 + 2.2 * np.log10(np.maximum(found["panes"], 1)),
            "panes": found["panes"],
            "batch": [f"{batch}" if batch >= 0 else "" for batch in found["batch"].tolist()],
            "start_text": self._texts(found["start"]),
            "end_text": self._texts(found["end"]),
        }
        late = timeline.late_columns()
        self.late.data = {
            "x": self._x(late["time"]),
            "y": milliseconds(late["clock"]),
            "time": self._texts(late["time"]),
            "rows": late["rows"],
        }
        waits = timeline.waiting_columns()
        self.waiting.data = {
            "x0": self._x(waits["start"]),
            "x1": self._x(waits["end"]),
            "y": milliseconds(waits["clock"]),
            "keys": waits["keys"],
            "start_text": self._texts(waits["start"]),
            "end_text": self._texts(waits["end"]),
        }
        self.watermark.data = self._stepped(timeline.watermark)
        colours = timeline.colours()
        lines = [(name, self._stepped(timeline.sources[name])) for name in colours]
        self.sources.data = {
            "xs": [line["x"] for _, line in lines],
            "ys": [line["y"] for _, line in lines],
            "name": [name for name, _ in lines],
            "colour": [*colours.values()],
        }
        if follow:
            self._follow(timeline, span)

    def _follow(self, timeline: Timeline, span: float | None) -> None:
        """Move the ranges to the last part of the timeline."""
        clocks = timeline.clocks()
        if clocks is None:
            return
        low, high = float(clocks[0]), float(clocks[1])
        if span is not None:
            low = max(low, high - span * 1e6)
        margin = max(1e6, (high - low) * 0.04)
        self.y_range.start, self.y_range.end = (low - margin) / 1e3, (high + margin) / 1e3
        shown: list[np.ndarray] = []
        bars, late = self.bars.data, self.late.data
        for data, names in (
            (bars, ("x0", "x1")),
            (late, ("x",)),
            (self.waiting.data, ("x0", "x1")),
        ):
            inside = np.asarray(data["y"]) >= low / 1e3 - 1
            shown += [np.asarray(data[name])[inside] for name in names]
        marks = np.asarray(self.watermark.data["x"], float)
        shown.append(marks[np.asarray(self.watermark.data["y"], float) >= low / 1e3 - 1])
        known = np.concatenate([np.zeros(0), *shown])
        if not len(known):
            if not self.ticks:
                self.x_range.start, self.x_range.end = self.y_range.start, self.y_range.end
            return
        # One stray time does not flatten the rest.
        first, last = _core(known)
        pad = max(1.0, (last - first) * 0.04)
        self.x_range.start, self.x_range.end = first - pad, last + pad

    def _stepped(self, line: Line) -> dict[str, np.ndarray]:
        """A line as steps: a watermark holds until it moves."""
        clock, mark = np.array(line.x, float), np.array(line.y, float)
        return {
            "x": self._x(np.repeat(mark, 2)[: max(0, 2 * len(mark) - 1)]),
            "y": milliseconds(np.repeat(clock, 2)[1:]) if len(clock) else clock,
        }

    def _x(self, times: np.ndarray) -> np.ndarray:
        return times.astype(float) if self.ticks else milliseconds(times)

    def _texts(self, times: np.ndarray) -> list[str]:
        if self.ticks:
            return [str(time) for time in times.tolist()]
        texts = np.datetime_as_string(times.astype("datetime64[us]"), unit="s")
        return [text.replace("T", " ") for text in texts.tolist()]


def _core(known: np.ndarray) -> tuple[float, float]:
    """The range of the values without far outliers on either side."""
    low, high = np.quantile(known, [0.02, 0.98])
    reach = max(high - low, 1.0)
    inside = known[(known >= low - reach) & (known <= high + reach)]
    return float(inside.min()), float(inside.max())


def milliseconds(times: np.ndarray) -> np.ndarray:
    """Microseconds as the milliseconds of Bokeh's time axes."""
    return np.asarray(times, float) / 1e3


def style(plot: Any) -> None:
    """The look that all plots share."""
    plot.background_fill_color = plot.border_fill_color = "#ffffff"
    plot.outline_line_color = None
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.min_border_right = 14
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = MUTED
        axis.axis_line_alpha = axis.major_tick_line_alpha = 0.5
        axis.minor_tick_line_color = None
        axis.major_label_policy = NoOverlap(min_distance=8)
        axis.major_label_text_color = axis.axis_label_text_color = MUTED
        axis.major_label_text_font = axis.axis_label_text_font = FONT
        axis.axis_label_text_font_style = "normal"
        axis.major_label_text_font_size = "11px"
        axis.axis_label_text_font_size = "12px"
        if hasattr(axis, "formatter") and "Datetime" in type(axis.formatter).__name__:
            axis.formatter = _TICKS.clone()
    plot.grid.grid_line_color = GRID
    plot.grid.grid_line_alpha = 0.25
    if plot.title is not None:
        plot.title.text_color = INK
        plot.title.text_font = FONT
        plot.title.text_font_size = "12px"
        plot.title.text_font_style = "bold"


def _empty_bars() -> Mapping[str, list[Any]]:
    names = (
        "x0",
        "x1",
        "y",
        "colour",
        "timing",
        "width",
        "panes",
        "batch",
        "start_text",
        "end_text",
    )
    return {name: [] for name in names}
