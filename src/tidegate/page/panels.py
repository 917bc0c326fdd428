"""The texts of the page as HTML: header with tiles, what the pipeline waits for, notices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tidegate.html import STYLE, escaped, table
from tidegate.operators.explain.facts import time_text
from tidegate.operators.status import QueryStatus, foremost
from tidegate.page.timeline import SOURCES, Timeline
from tidegate.units import byte_size, rounded, when

_STATES = {
    "running": "#2a9d6f",
    "ended": "#64748b",
    "failed": "#c1121f",
    "unknown": "#94a3b8",
}
_SOURCES = 12
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d(?:\.\d{3})?)\d*Z")
_STYLE = f"""{STYLE}<style>
.tg-top {{ display:flex; align-items:center; gap:12px; margin-bottom:12px; }}
.tg-top h1 {{ font-size:20px; font-weight:650; margin:0; }}
.tg-pill {{ color:#fff; border-radius:99px; padding:2px 10px; font-size:12px; font-weight:600; }}
.tg-dim {{ color:var(--tg-muted); font-size:13px; }}
.tg-tiles {{ display:grid; grid-template-columns:repeat(auto-fit,minmax(168px,1fr)); gap:12px; }}
.tg-tile {{ background:var(--tg-card); border:1px solid var(--tg-line); border-radius:10px;
  padding:10px 14px; }}
.tg-tile b {{ display:block; font-size:19px; font-weight:650; margin-top:2px;
  white-space:nowrap; font-variant-numeric:tabular-nums; }}
.tg-tile span {{ color:var(--tg-muted); font-size:12px; }}
.tg-tile i {{ color:var(--tg-muted); font-size:12px; font-style:normal; }}
.tg-legend {{ display:flex; flex-wrap:wrap; gap:2px 14px; padding-top:7px; color:var(--tg-muted);
  font-size:12px; }}
.tg-legend span {{ white-space:nowrap; }}
.tg-legend i {{ display:inline-block; width:16px; margin-right:5px; vertical-align:middle; }}
.tg time {{ white-space:nowrap; font-variant-numeric:tabular-nums; }}
.tg-say {{ margin:0 0 10px; padding:0; list-style:none; }}
.tg-say li {{ padding:6px 0; border-bottom:1px solid var(--tg-line); line-height:1.45; }}
.tg-say li:first-child {{ font-weight:600; }}
h2.tg {{ font-size:13px; font-weight:650; margin:2px 0 6px; }}
.tg-line {{ display:inline-block; width:16px; height:3px; border-radius:2px; margin-right:6px;
  vertical-align:middle; }}
.tg table.tg-sources {{ width:100%; }}
.tg .tg-sources td, .tg .tg-sources th {{ white-space:nowrap; padding-right:8px; }}
.tg .tg-sources td:last-child {{ white-space:normal; }}
.tg-dot {{ display:inline-block; width:8px; height:8px; border-radius:99px; margin-right:6px; }}
</style>"""
_DOTS = {"active": "#2a9d6f", "idle": "#f08c2e", "ended": "#94a3b8"}


def header(name: str, timeline: Timeline) -> str:
    """The name and the state, and a tile for each number."""
    status = timeline.status
    if status is None:
        state = escaped(timeline.error or "waiting for the first batch …")
        return (
            f'{_STYLE}<div class="tg"><div class="tg-top"><h1>{escaped(name)}</h1>'
            f'<span class="tg-dim">{state}</span></div></div>'
        )
    batch = "" if status.batch is None else f"batch {status.batch:,}"
    pill = (
        f'<span class="tg-pill" style="background:{_STATES.get(status.state, "#94a3b8")}">'
        f"{escaped(_state(status))}</span>"
    )
    tiles = "".join(_tile(*tile) for tile in _tiles(status, timeline))
    return (
        f'{_STYLE}<div class="tg"><div class="tg-top"><h1>{escaped(name)}</h1>{pill}'
        f'<span class="tg-dim">{escaped(batch)}</span></div>'
        f'<div class="tg-tiles">{tiles}</div></div>'
    )


def _state(status: QueryStatus) -> str:
    return "from its checkpoint" if status.state == "unknown" else status.state


def _tiles(status: QueryStatus, timeline: Timeline) -> Iterable[tuple[str, str, str]]:
    counts = status.counters
    rate = timeline.samples[-1].rate if timeline.samples else 0.0
    mark = status.watermark
    yield (
        "watermark",
        "none yet" if mark is None else _clock(status, mark),
        "" if mark is None or status.ticks else time_text(mark, ticks=False)[:10],
    )
    yield "lag", "–" if status.lag is None else _short(status.lag), "behind the clock"
    yield "rows per second", f"{rate:,.0f}", f"{counts.get('events', 0):,} rows"
    panes = [counts.get(f"panes_{timing}", 0) for timing in ("early", "on_time", "late")]
    yield (
        "panes",
        f"{sum(panes):,}",
        f"{panes[0]:,} early · {panes[1]:,} on time · {panes[2]:,} late",
    )
    late = counts.get("late_rows", 0)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in status.late.items())
    yield "late rows", f"{late:,}", reasons or "none"
    yield "windows open", f"{status.windows_open:,}", f"{byte_size(status.state_bytes)} of state"


def _tile(label: str, value: str, below: str) -> str:
    return (
        f'<div class="tg-tile"><span>{escaped(label)}</span><b>{escaped(value)}</b>'
        f"<i>{escaped(below)}</i></div>"
    )


def _clock(status: QueryStatus, mark: int) -> str:
    """The time of day of a watermark; its date is below it."""
    text = time_text(mark, ticks=status.ticks)
    return text if status.ticks or "T" not in text else text.split("T")[1].rstrip("Z")[:12]


def _short(span: int) -> str:
    """A duration in its two largest units, as short as possible."""
    parts = rounded(span).split(" ")[:4]
    return " ".join(_UNITS.get(part.removesuffix("s"), part) for part in parts)


_UNITS = {
    "microsecond": "µs",
    "millisecond": "ms",
    "second": "s",
    "minute": "min",
    "hour": "h",
    "day": "d",
}


def waits(timeline: Timeline) -> str:
    """What the pipeline waits for, its sources, and what happens next."""
    status, error = timeline.status, timeline.error
    problem = notice(error, kind="error") if error else ""
    if status is None:
        return f"{_STYLE}{problem}"
    parts = [
        problem,
        *(notice(text, kind="error") for text in (status.problem, status.error) if text),
    ]
    if len(status.sources) > 1 or any(source.name for source in status.sources):
        parts.append(_sources(status, timeline.colours()))
    explained = status.explanation
    if explained is not None:
        sentences = "".join(f"<li>{_sentence(text, status)}</li>" for text in explained.sentences)
        parts.append(
            f'<h2 class="tg">Why is there no output yet?</h2><ul class="tg-say">{sentences}</ul>'
        )
    if status.happenings:
        rows = [
            (
                f"at {when(one.clock)}"
                if one.clock is not None
                else f"watermark {time_text(one.watermark or 0, ticks=status.ticks)}",
                one.text,
            )
            for one in status.happenings[:6]
        ]
        listed = timed(table(("when", "what"), rows), status)
        parts.append(f'<h2 class="tg">What happens next</h2>{listed}')
    return f'{_STYLE}<div class="tg">{"".join(parts)}</div>'


def _sentence(text: str, status: QueryStatus) -> str:
    return timed(escaped(text), status)


def timed(html: str, status: QueryStatus | None) -> str:
    """HTML with the instants of today as times of day; the whole instant is a tooltip."""
    today = "" if status is None else when(status.now)[:10]

    def short(found: re.Match[str]) -> str:
        date, time = found.groups()
        shown = time if date == today else f"{date} {time}"
        return f'<time title="{found[0]}">{shown}</time>'

    return _INSTANT.sub(short, html)


def _sources(status: QueryStatus, colours: Mapping[str, str]) -> str:
    """The sources, each with the colour of its line in the plot."""
    rows = []
    for source in foremost(status.sources, _SOURCES):
        dot = (
            f'<span class="tg-dot" style="background:{_DOTS.get(source.status, "#94a3b8")}"></span>'
        )
        mark = "none" if source.watermark is None else _clock(status, source.watermark)
        held = "<b>holds back</b>" if source.holds else ""
        colour = colours.get(source.label, "transparent")
        line = f'<span class="tg-line" style="background:{colour}"></span>'
        lag = "" if source.lag is None else _short(source.lag)
        rows.append(
            f"<tr><td>{line}{escaped(source.label or '(all)')}</td>"
            f"<td>{dot}{escaped(source.status)}</td>"
            f"<td>{escaped(mark)}</td><td>{escaped(lag)}</td><td>{held}</td></tr>"
        )
    more = len(status.sources) - _SOURCES
    rest = f'<p class="tg-dim">and {more:,} more</p>' if more > 0 else ""
    return (
        '<h2 class="tg">Sources</h2><table class="tg-sources"><thead><tr><th>source</th>'
        f"<th>status</th><th>watermark</th><th>lag</th><th></th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{rest}"
    )


_LEGEND = (
    ("watermark", "height:3px;background:#d62839"),
    ("sources", f"height:3px;background:linear-gradient(90deg,{','.join(SOURCES[:3])})"),
    ("early pane", "height:7px;background:#8ecae6"),
    ("on-time pane", "height:7px;background:#2a9d6f"),
    ("late pane", "height:7px;background:#f08c2e"),
    ("waiting window", "height:5px;background:#94a3b8;opacity:.55"),
)


def legend() -> str:
    """What the colours of the plot mean."""
    lines = "".join(f'<span><i style="{look}"></i>{escaped(name)}</span>' for name, look in _LEGEND)
    cross = '<span><b style="color:#d62846">×</b> late row</span>'
    return f'{_STYLE}<div class="tg tg-legend">{lines}{cross}</div>'


def history_head() -> str:
    """The heading of the history."""
    return (
        f'{_STYLE}<div class="tg"><h2 class="tg">Why this pane?</h2><span class="tg-dim">The'
        " history"
        " of one key and window: panes and their causes, rows by batch, late rows, and what is"
        " open.</span></div>"
    )


def notice(text: str, *, kind: str = "info") -> str:
    """A message in a box."""
    colours = (
        "rgba(214,40,57,.12);color:var(--tg-error,#c1121f)"
        if kind == "error"
        else "rgba(128,140,160,.15)"
    )
    return (
        f'{STYLE}<div class="tg" style="background:{colours};border-radius:8px;padding:8px 12px;'
        f'white-space:pre-wrap;margin-bottom:8px">{escaped(text)}</div>'
    )
