"""Sessions: a late message merges two fired sessions, and both are retracted first."""

# ruff: noqa: INP001, T201

from __future__ import annotations

import tidegate as tg

PANES = (
    tg.stream(time="ts", key="user", watermark=tg.explicit())
    .window(tg.session("10 minutes"))
    .trigger(tg.after_watermark(late=tg.after_count(1)))
    .allow_lateness("1 hour")
    .retracting()
    .aggregate(pages=tg.count(), path=tg.list_("page"))
)


def view(minute: int, page: str) -> dict[str, object]:
    """A page view of ann."""
    return {"ts": f"2025-03-14T12:{minute:02}:00Z", "user": "ann", "page": page}


def show(op: tg.EmbeddedOperator) -> None:
    """Print and release the waiting panes."""
    for pane in op.get_result().panes.to_pylist():
        window = f"{pane['window_start']:%H:%M} to {pane['window_end']:%H:%M}"
        print(
            f"  {pane['op']} {window}  {pane['timing']:<8} {pane['pages']} pages:"
            f" {', '.join(pane['path'])}"
        )
    op.flush()


def main() -> None:
    """Two sessions, then the page view between them."""
    op = PANES.embedded(now="2025-03-14T12:00:00Z")
    op.add_messages([view(4, "shoes"), view(0, "home"), view(20, "basket")])
    print(
        "open:",
        [
            f"{window['window_start']:%H:%M} to {window['window_end']:%H:%M}"
            for window in op.get_windows()
        ],
    )
    print("the watermark reaches 12:40")
    op.advance_watermark("2025-03-14T12:40:00Z")
    show(op)
    print("a page view of 12:12 arrives")
    op.add_message(view(12, "sizes"))
    show(op)


if __name__ == "__main__":
    main()
