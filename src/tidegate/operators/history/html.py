"""A history as HTML: a line of time with a mark and a sentence for each step."""

from __future__ import annotations

from tidegate.html import STYLE, escaped
from tidegate.instants import format_instant
from tidegate.operators.history.facts import Fired, History, Step
from tidegate.operators.history.text import open_text, step_text
from tidegate.units import many

_STYLE = f"""{STYLE}<style>
.tg-steps {{ border-left:2px solid rgba(128,140,160,.35); margin:8px 0 4px 6px;
  padding:0 0 0 16px; }}
.tg-step {{ position:relative; padding:5px 0; line-height:1.45; }}
.tg-step:before {{ content:""; position:absolute; left:-22px; top:11px; width:10px; height:10px;
  border-radius:99px; background:var(--c); }}
.tg-at {{ color:var(--tg-muted,#7c8799); font-size:12px; margin-right:8px;
  font-variant-numeric:tabular-nums; }}
.tg-kind {{ color:var(--c); font-weight:650; font-size:11px; text-transform:uppercase;
  letter-spacing:.04em; margin-right:8px; }}
</style>"""
_COLOURS = {
    "rows": "#94a3b8",
    "merge": "#9d4edd",
    "withdrawn": "#b56576",
    "late": "#d62846",
    "open": "#457b9d",
    "early": "#3a9cc4",
    "on_time": "#2a9d6f",
}
_LATE_PANE = "#f08c2e"


SHOWN = 500
"""The number of steps that the HTML has at most, the last ones; the text has all."""


def history_html(found: History) -> str:
    """A history as HTML."""
    left_out = max(0, len(found.steps) - SHOWN)
    earlier = f"{many(left_out, 'earlier step')} left out; a window selects fewer."
    steps = _line("rows", _COLOURS["rows"], "", earlier) if left_out else ""
    steps += "".join(_step(found, step) for step in found.steps[left_out:])
    steps += "".join(
        _line("open", _COLOURS["open"], "", open_text(found, window)) for window in found.open
    )
    head, *_ = found.sentences or ("",)
    empty = "" if found.steps or found.open else f"<p>{escaped(found.sentences[1])}</p>"
    notes = "".join(f"<p><em>Note: {escaped(note)}</em></p>" for note in found.notes)
    return (
        f'{_STYLE}<div class="tg"><p><b>{escaped(head)}</b></p><div class="tg-steps">{steps}</div>'
        f"{empty}{notes}</div>"
    )


def _step(found: History, step: Step) -> str:
    kind, colour = step.kind, _COLOURS.get(step.kind, "#94a3b8")
    if isinstance(step, Fired):
        kind = f"{step.timing.replace('_', '-')} pane"
        colour = _LATE_PANE if step.timing == "late" else _COLOURS[step.timing]
    at = "" if step.at is None else format_instant(step.at)
    batch = "" if step.batch is None else f" · {found.unit} {step.batch:,}"
    return _line(kind, colour, f"{at}{batch}", step_text(found, step))


def _line(kind: str, colour: str, place: str, text: str) -> str:
    return (
        f'<div class="tg-step" style="--c:{colour}"><span class="tg-at">{escaped(place)}</span>'
        f'<span class="tg-kind">{escaped(kind)}</span>{escaped(text)}</div>'
    )
