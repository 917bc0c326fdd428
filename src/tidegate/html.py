"""HTML for notebooks and the live page: escaped text, tables and their look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """<style>
.tg { font:13px/1.4 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;
  color:var(--tg-ink,inherit); }
.tg table, table.tg { border-collapse:collapse; width:auto; margin:4px 0 10px; font-size:12.5px; }
.tg th { text-align:left; color:var(--tg-muted,#7c8799); font-weight:600; padding:4px 14px 4px 0;
  border-bottom:1px solid rgba(128,140,160,.35); white-space:nowrap; }
.tg td { text-align:left; padding:4px 14px 4px 0; border-bottom:1px solid rgba(128,140,160,.18);
  vertical-align:top; font-variant-numeric:tabular-nums; }
.tg code { background:rgba(128,140,160,.15); border-radius:4px; padding:1px 4px; }
</style>"""
"""Text has the colour of the notebook around it, light or dark, or that of the page."""


def escaped(text: object) -> str:
    """Text for HTML."""
    return escape(str(text), quote=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def sentences_html(sentences: Iterable[str]) -> str:
    """Sentences as a list."""
    items = "".join(f"<li>{escaped(text)}</li>" for text in sentences)
    return f'{STYLE}<div class="tg"><ul>{items}</ul></div>'


def fields_html(title: str, fields: Iterable[tuple[str, object]]) -> str:
    """A title, and a table of names and values."""
    rows = "".join(
        f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>" for name, value in fields
    )
    return f'{STYLE}<div class="tg"><b>{escaped(title)}</b><table>{rows}</table></div>'
