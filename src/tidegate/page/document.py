"""The document of the live page: header, plot, explanation, rates, and the history of a key."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import (
    Button,
    ColumnDataSource,
    Div,
    InlineStyleSheet,
    NumeralTickFormatter,
    Select,
    TextInput,
    Toggle,
)
from bokeh.plotting import figure
from jinja2 import Template

from tidegate.errors import TidegateError
from tidegate.operators.history.html import history_html
from tidegate.page import panels
from tidegate.page.feed import Feed
from tidegate.page.plot import MUTED, TimePlot, milliseconds, style
from tidegate.page.timeline import Sample, Timeline

REFRESH_MILLISECONDS = 500
_SPANS = {"1 minute": 60.0, "5 minutes": 300.0, "30 minutes": 1800.0, "everything": None}
_PHASES = {"addBatch": "#2a9d6f", "queryPlanning": "#f4a261", "other": "#94a3b8"}
"""The phases of a batch under Spark's names, with their colours."""
_WHOLE = "triggerExecution"
_WHOLE_NUMBERS = "0,0"
_TEMPLATE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title | e }}</title>
{{ bokeh_css }}
{{ bokeh_js }}
<style>
:root { color-scheme: light dark; --tg-ground: #f1f5f9; --tg-card: #fff; --tg-ink: #0f172a;
  --tg-muted: #64748b; --tg-line: #e2e8f0; --tg-error: #b3122a; }
@media (prefers-color-scheme: dark) {
  :root { --tg-ground: #0f1521; --tg-card: #182130; --tg-ink: #e5eaf2; --tg-muted: #93a1b5;
    --tg-line: #2b3649; --tg-error: #ff8a94; }
}
html, body { margin: 0; background: var(--tg-ground); overflow-x: clip; }
body { padding: 18px 22px 40px; box-sizing: border-box; }
</style>
</head>
<body>
{{ plot_div | indent(4) }}
{{ plot_script | indent(4) }}
<script>
// Canvases are opaque, and follow the scheme of the browser.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const ground = getComputedStyle(document.documentElement).getPropertyValue("--tg-card").trim();
  for (const doc of Bokeh.documents) {
    for (const model of doc._all_models.values()) {
      if (model.type === "Figure") {
        model.setv({background_fill_color: ground, border_fill_color: ground});
      }
    }
  }
}
const waiting = setInterval(() => {
  if (window.Bokeh && Bokeh.documents.length) { clearInterval(waiting); paint(); }
}, 50);
dark.addEventListener("change", paint);
</script>
</body>
</html>
""")
_CARD = """\
:host { background: var(--tg-card); border: 1px solid var(--tg-line); border-radius: 10px;
  padding: 12px 14px; box-sizing: border-box; }
"""
_WIDGET = """\
:host { color: var(--tg-muted); }
.bk-input, .bk-btn-default { background-color: var(--tg-card); color: var(--tg-ink);
  border-color: var(--tg-line); }
select.bk-input { appearance: auto !important; background-image: none !important; }
.bk-btn-default.bk-active, .bk-btn-default:hover { background-color: var(--tg-line);
  color: var(--tg-ink); border-color: var(--tg-line); }
"""
"""The look of inputs and buttons, on light and on dark ground."""


_WRAPPED = ":host { flex-wrap: wrap; }"
"""A row whose parts go to the next line where the window is narrow."""
_AT_THE_BOTTOM = ":host { align-items: flex-end; }"
_PLOT_WIDTH, _WAITS_WIDTH, _SERIES_WIDTH = 560, 330, 240
"""The widths in pixels that parts have at least, where the window has as much."""


def _flexible(width: int, *, grows: int = 1) -> dict[str, str]:
    """The styles of a part that is at least this wide, or as wide as the window."""
    return {"flex": f"{grows} 1 {width}px", "min-width": f"min({width}px, 100%)"}


def document(doc: Document, timeline: Timeline, feed: Feed) -> None:
    """Fill the document of one visitor."""
    doc.title = f"{feed.name} · Tidegate"
    doc.template = _TEMPLATE
    view = _View(doc, timeline, feed)
    doc.add_root(view.layout)
    view.refresh()
    doc.add_periodic_callback(view.refresh, REFRESH_MILLISECONDS)


class _View:
    """The widgets of one visitor, brought up to date from the timeline that all share."""

    def __init__(self, doc: Document, timeline: Timeline, feed: Feed) -> None:
        self._doc, self._timeline, self._feed = doc, timeline, feed
        self._card = InlineStyleSheet(css=_CARD)
        self._shown = -1
        self._header, self._waits = _div("header"), _div("waits")
        self._header.margin = 0
        self.plot = TimePlot(legend=False)
        widget = InlineStyleSheet(css=_WIDGET)
        self._follow = Toggle(
            label="Follow", active=True, width=80, button_type="default", stylesheets=[widget]
        )
        self._span = Select(
            value="5 minutes", options=list(_SPANS), width=120, stylesheets=[widget]
        )
        self._series = _Series(has_phases=feed.has_phases)
        self._key = TextInput(
            placeholder="user=alice", title="Key", width=240, name="key", stylesheets=[widget]
        )
        self._window = TextInput(
            placeholder="2026-01-01T10:00:00Z/2026-01-01T10:01:00Z, or one instant",
            title="Window (empty: all)",
            width=420,
            max_width=420,
            styles={"max-width": "100%"},
            name="window",
            stylesheets=[widget],
        )
        self._ask = Button(label="Show history", button_type="primary", width=130, name="why")
        self._answer = _div("history")
        self._answer.styles = {"max-height": "600px", "overflow-y": "auto"}
        self._ask.on_click(self._why)
        self._follow.on_change("active", self._again)
        self._span.on_change("value", self._again)
        self.layout = self._layout()

    def _layout(self) -> Any:
        # The toolbar of the plot is in the same line.
        legend = Div(text=panels.legend(), sizing_mode="stretch_width", styles=_flexible(300))
        controls = row(
            self._follow,
            self._span,
            legend,
            sizing_mode="stretch_width",
            styles={"margin-bottom": "-30px", "padding-right": "150px", "z-index": "1"},
            stylesheets=[_WRAPPED],
        )
        main = column(
            controls,
            self.plot.figure,
            sizing_mode="stretch_width",
            styles=_flexible(_PLOT_WIDTH, grows=3),
            stylesheets=[self._card],
        )
        waits = column(
            self._waits,
            sizing_mode="stretch_width",
            styles={**_flexible(_WAITS_WIDTH), "max-height": "622px", "overflow-y": "auto"},
            stylesheets=[self._card],
        )
        asked = row(
            self._key,
            self._window,
            self._ask,
            sizing_mode="stretch_width",
            margin=(0, 0, 6, 0),
            stylesheets=[_WRAPPED, _AT_THE_BOTTOM],
        )
        history = column(
            Div(text=panels.history_head(), sizing_mode="stretch_width"),
            asked,
            self._answer,
            sizing_mode="stretch_width",
            stylesheets=[self._card],
        )
        return column(
            self._header,
            row(main, waits, sizing_mode="stretch_width", spacing=14, stylesheets=[_WRAPPED]),
            row(
                *(
                    column(
                        one,
                        sizing_mode="stretch_width",
                        styles=_flexible(_SERIES_WIDTH),
                        stylesheets=[self._card],
                    )
                    for one in self._series.figures
                ),
                sizing_mode="stretch_width",
                spacing=14,
                stylesheets=[_WRAPPED],
            ),
            history,
            sizing_mode="stretch_width",
            spacing=14,
        )

    def _again(self, attr: str, old: object, new: object) -> None:  # noqa: ARG002 - Bokeh's
        self._shown = -1
        self.refresh()

    def refresh(self) -> None:
        """Show what the timeline has, if it has changed."""
        with self._timeline.lock:
            if self._timeline.version == self._shown:
                return
            self._shown = self._timeline.version
            self._header.text = panels.header(self._feed.name, self._timeline)
            self._waits.text = panels.waits(self._timeline)
            self.plot.update(
                self._timeline,
                follow=bool(self._follow.active),
                span=_SPANS[str(self._span.value)],
            )
            self._series.update([*self._timeline.samples], _SPANS[str(self._span.value)])

    # The history of a key

    def _why(self) -> None:
        """Read a history in a thread, so that the page stays responsive."""
        self._ask.disabled = True
        self._answer.text = panels.notice("Reading …")
        key, window = str(self._key.value or ""), str(self._window.value or "")
        threading.Thread(target=self._read_history, args=(key, window), daemon=True).start()

    def _read_history(self, key: str, window: str) -> None:
        try:
            found = history_html(self._feed.why(key.strip(), window.strip()))
            # The first line has the whole bounds.
            head, end, steps = found.partition("</p>")
            text = head + end + panels.timed(steps, self._timeline.status)
        except TidegateError as error:
            text = panels.notice(str(error), kind="error")
        except Exception as error:  # noqa: BLE001 - the page shows any error and goes on
            text = panels.notice(f"{type(error).__name__}: {error}", kind="error")
        self._doc.add_next_tick_callback(partial(self._show_history, text))

    def _show_history(self, text: str) -> None:
        self._answer.text = text
        self._ask.disabled = False


class _Series:
    """Rate, lag, state and phases over processing time."""

    def __init__(self, *, has_phases: bool) -> None:
        """`has_phases`: whether the pipeline runs in micro-batches of Spark."""
        self._lines = ColumnDataSource({"t": [], "rate": [], "lag": [], "state": [], "windows": []})
        self._last = ColumnDataSource(dict(self._lines.data))
        """The last sample, so that a single one can be seen."""
        self._stacks = ColumnDataSource({"t": [], **{name: [] for name in _PHASES}})
        self.figures = [
            self._line("rows per second", "rate", "#457b9d", "0,0.[0]"),
            self._line("watermark lag", "lag", "#d62839", "0,0.[0]"),
            self._line("state", "state", "#8e6fa8", "0,0.[0]"),
            self._phases()
            if has_phases
            else self._line("windows open", "windows", "#2a9d6f", _WHOLE_NUMBERS),
        ]

    def _line(self, title: str, name: str, colour: str, numbers: str) -> Any:
        plot = _small(title)
        plot.varea("t", 0, name, source=self._lines, fill_color=colour, fill_alpha=0.14)
        plot.line("t", name, source=self._lines, color=colour, line_width=2)
        plot.scatter("t", name, source=self._last, color=colour, size=6)
        # Keeps the axes where nothing is known yet.
        plot.scatter("t", 0, source=self._lines, size=0)
        plot.yaxis.formatter = NumeralTickFormatter(format=numbers)
        if numbers == _WHOLE_NUMBERS:
            plot.yaxis.ticker.min_interval = 1
        return plot

    def _phases(self) -> Any:
        plot = _small("batches by phase, seconds")
        plot.varea_stack(
            list(_PHASES),
            x="t",
            source=self._stacks,
            color=list(_PHASES.values()),
            alpha=0.85,
            legend_label=list(_PHASES),
        )
        legend = plot.legend[0]
        legend.orientation, legend.location = "horizontal", "top_left"
        legend.background_fill_alpha, legend.border_line_color = 0, None
        legend.label_text_font_size, legend.label_text_color = "9px", MUTED
        legend.glyph_height = legend.glyph_width = legend.label_height = 9
        legend.spacing, legend.padding, legend.margin = 8, 1, 0
        plot.y_range.range_padding = 0.3
        return plot

    def update(self, samples: list[Sample], span: float | None) -> None:
        """Show the samples of the last `span` seconds."""
        if span is not None and samples:
            since = samples[-1].clock - span * 1e6
            samples = [sample for sample in samples if sample.clock >= since]
        times = milliseconds(np.array([sample.clock for sample in samples]))
        lags = np.array([np.nan if one.lag is None else one.lag for one in samples], float)
        sizes = np.array([one.state_bytes for one in samples], float)
        lag_unit, seconds = _unit(lags, _LAGS)
        size_unit, size = _unit(sizes, _SIZES)
        self.figures[1].title.text = f"watermark lag, {lag_unit}"
        self.figures[2].title.text = f"state, {size_unit}"
        self._lines.data = {
            "t": times,
            "rate": [sample.rate for sample in samples],
            "lag": lags / seconds,
            "state": sizes / size,
            "windows": [sample.windows for sample in samples],
        }
        self._last.data = {name: values[-1:] for name, values in self._lines.data.items()}
        self._stacks.data = {
            "t": times,
            **{name: [_phase(sample, name) for sample in samples] for name in _PHASES},
        }


_LAGS = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))


def _unit(values: np.ndarray, units: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """The unit in which these values are small numbers, and how large it is."""
    largest = float(np.max(np.abs(values[~np.isnan(values)]), initial=0.0))
    return next((one for one in units if largest > 3 * one[1]), units[-1])


def _phase(sample: Sample, name: str) -> float:
    """The seconds of a phase; those of all the smaller ones together."""
    known = sample.phases
    if name != "other":
        return known.get(name, 0.0)
    shown = sum(known.get(one, 0.0) for one in _PHASES)
    return max(0.0, known.get(_WHOLE, shown) - shown)


def _small(title: str) -> Any:
    plot = figure(
        title=title,
        height=170,
        sizing_mode="stretch_width",
        x_axis_type="datetime",
        tools="",
        toolbar_location=None,
        min_border_left=46,
    )
    plot.x_range.default_span = 60_000
    plot.xaxis.ticker.desired_num_ticks = 3
    plot.yaxis.ticker.desired_num_ticks = 4
    plot.y_range.start = 0
    plot.y_range.min_interval = 1e-3
    style(plot)
    plot.xgrid.grid_line_color = None
    plot.title.text_color = MUTED
    return plot


def _div(name: str) -> Div:
    return Div(
        text="",
        name=name,
        sizing_mode="stretch_width",
        css_classes=[f"tidegate-{name}"],
        stylesheets=[":host, .bk-clearfix { width: 100%; display: block; }"],
    )
