"""Notebook and REPL: one-line reprs, HTML that is escaped, `show`, `explain` and `plot`."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.embedded.feed import OperatorFeed
from tidegate.operators.aggregate.migration import changes
from tidegate.spark.query.progress import Progress

START = dt.datetime(2026, 3, 1, 10, tzinfo=dt.UTC)
EVIL = "<script>alert(1)</script>"


def pipeline() -> tg.Panes:
    return (
        tg.stream(time="ts", key="user", watermark=tg.bounded("5 s", idle_after="1 minute"))
        .window(tg.tumbling("10 s"))
        .trigger(tg.after_watermark(early=tg.after_count(2)))
        .aggregate(n=tg.count())
    )


def messages(*seconds: float, user: str = EVIL) -> list[dict[str, Any]]:
    return [{"user": user, "ts": START + dt.timedelta(seconds=second)} for second in seconds]


def operator() -> tg.EmbeddedOperator:
    op = pipeline().embedded(now=START)
    op.add_messages(messages(1, 2, 3), now=START + dt.timedelta(seconds=4))
    op.add_messages(messages(30), now=START + dt.timedelta(seconds=31))
    op.add_messages(messages(40, 41), now=START + dt.timedelta(seconds=42))
    return op


def joined() -> tg.Joined:
    side = tg.stream(time="ts", key="user")
    return side.join(side, tg.within("5 s", "5 s"), on="user")


def shown() -> dict[str, Any]:
    op = operator()
    stream = tg.stream(time="ts", key="user")
    return {
        "Stream": stream,
        "Windowed": stream.window(tg.session("10 s")),
        "Panes": pipeline(),
        "Joined": joined(),
        "EmbeddedOperator": op,
        "EmbeddedJoin": joined().embedded(),
        "Results": op.get_result(),
        "Explanation": op.explain_watermark(),
        "History": op.why(EVIL),
        "QueryStatus": op.status(),
    }


def test_the_progress_of_a_batch_has_a_short_repr():
    batch = Progress(4, 12.5, {"addBatch": 3}, {"windows_open": 1}, 1_000_000)
    assert repr(batch) == (
        "Progress(batch 4, 12 rows/s, watermark 1970-01-01T00:00:01Z, 1 window open)"
    )


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: tg.cumulative("1 minute", "7 minutes"), "got step 7 minutes and size 1 minute"),
        (lambda: tg.cumulative(1, 7, axis="offset"), "got step 7 and size 1"),
        (lambda: tg.evict_time("-1 minute"), "got -1 minute"),
        (lambda: tg.rows(left="-1 minute"), "got -1 minute"),
    ],
)
def test_errors_have_durations_in_the_units_of_a_reader(wrong: Any, text: str):
    with pytest.raises(tg.SpecError, match=text):
        wrong()


def test_durations_of_watermarks_are_readable():
    page = pipeline()._repr_html_()
    assert "<td>bounded, by 5 seconds, idle after 1 minute</td>" in page
    assert "000000" not in page
    assert "000000" not in pipeline().explain()


@pytest.mark.parametrize("name", list(shown()))
def test_a_repr_is_one_short_line(name: str):
    text = repr(shown()[name])
    assert text.startswith(f"{name}(")
    assert "\n" not in text
    assert len(text) < 400


def test_the_repr_of_panes_leaves_out_defaults():
    panes = tg.stream(time="ts", key="user").window(tg.tumbling("1 minute")).aggregate(n=tg.count())
    assert repr(panes) == (
        "Panes(spec=AggregateSpec(input=Input(time='ts', key=('user',)),"
        " window=Tumbling(size=60000000), aggregates=(('n', Count()),)))"
    )


@pytest.mark.parametrize("name", [name for name in shown() if name != "Windowed"])
def test_html_is_escaped(name: str):
    found = shown()[name]._repr_html_()
    assert found.startswith("<style>")
    assert "<script>" not in found


def test_rows_of_users_are_in_the_html_as_text():
    op = operator()
    for found in (op.get_result(), op.why(EVIL)):
        assert "&lt;script&gt;" in found._repr_html_()


def test_specifications_can_still_be_pasted_back():
    names = {name: getattr(tg, name) for name in tg.__all__ if name in vars(tg)}
    trigger = tg.after_watermark(early=tg.after_count(2))
    from tidegate.spec import triggers

    assert eval(repr(trigger), {**names, **vars(triggers)}) == trigger  # noqa: S307


def test_dir_is_complete():
    assert set(tg.__all__) <= set(dir(tg))
    assert {"sinks", "sources", "spark_session", "streams"} <= set(dir(tg))


def test_show_prints_the_first_panes_and_late_rows(capsys: pytest.CaptureFixture[str]):
    op = operator()
    op.add_messages(messages(1) * 3, now=START + dt.timedelta(seconds=200))
    op.add_messages(messages(300), now=START + dt.timedelta(seconds=300))
    pipeline().show(2, of=op)
    assert op.get_result().panes.num_rows, "they are still there"
    told = capsys.readouterr().out
    assert "the first 2 of " in told
    assert "window_start" in told
    pipeline().show(of=messages(1, 2, user="a"))
    assert "2026-03-01 10:00:00" in capsys.readouterr().out


def test_a_pipeline_without_rows_says_what_to_pass():
    with pytest.raises(tg.InputError, match="pass messages, the results"):
        pipeline().show()


def test_explain_says_when_panes_fire():
    text = pipeline().explain()
    for words in (
        "Input: time ts, key user; watermark bounded, by 5 seconds, idle after 1 minute.",
        "Windows: tumbling size 10 seconds.",
        "Early panes: `AfterCount(2)`, before the window is complete.",
        "On-time pane: when the watermark reaches the end of the window.",
        "Late panes: none",
        "Mode: accumulating; each pane holds the whole window so far.",
        "accepted up to 1 minute behind the watermark",
    ):
        assert words in text


def test_plot_is_one_document_without_network(tmp_path: Path):
    found = pipeline().plot(iter([messages(1, 2), messages(30)]), path=tmp_path / "panes.html")
    document = (tmp_path / "panes.html").read_text()
    assert "<script" in document
    assert not re.search(r"<script[^>]*\ssrc=|<link\s", document)
    assert found._repr_html_().startswith("<iframe sandbox=")
    assert "moments" in repr(found)
    assert len(operator().plot().figure.renderers) >= 5


def test_what_a_memory_sink_has_is_shown_and_plotted(capsys: pytest.CaptureFixture[str]):
    from tidegate.spark.sinks.base import SinkTarget

    panes = operator().get_result().panes
    sink = tg.sinks.memory()
    target = SinkTarget("q", "panes", panes.schema, ("user",), "accumulating")
    for batch in range(panes.num_rows):
        sink.write(target, batch, iter([panes.slice(batch, 1)]))
    pipeline().show(of=sink)
    assert f"{panes.num_rows} panes" in capsys.readouterr().out
    assert f"{panes.num_rows} moments" in repr(pipeline().plot(sink))
    sink.clear()


def test_times_that_are_numbers_are_plotted():
    rows = pa.table({"user": ["a", "a"], "ts": pa.array([1, 40_000_000], pa.int64())})
    assert "moments" in repr(pipeline().plot(rows))


def test_a_changed_specification_is_shown_in_the_units_of_a_reader():
    def spec(size: str, memory: int) -> dict[str, Any]:
        windowed = tg.stream(time="ts").window(tg.tumbling(size, offset="10 s"))
        kept = windowed.evict(tg.evict_time(size)).retain(bytes=memory)
        return kept.aggregate(n=tg.count()).spec.to_dict()

    with pytest.raises(tg.SpecMismatchError) as raised:
        changes(spec("1 minute", 1 << 30), spec("2 minutes", 1 << 31))
    text = str(raised.value)
    for shown in (
        "`window.size` was 1 minute and is now 2 minutes",
        "EvictTime(span=1 minute, after=False)",
        "`retention.bytes` was 1.0 GiB and is now 2.0 GiB",
    ):
        assert shown in text
    assert "60000000" not in text


def joined_rows() -> tg.EmbeddedJoin:
    op = joined().embedded(now=START)
    op.add(left=messages(1), right=messages(2), now=START + dt.timedelta(seconds=3))
    return op


def test_joins_are_shown_and_plotted(capsys: pytest.CaptureFixture[str]):
    op = joined_rows()
    joined().show(of=op)
    assert "2026-03-01" in capsys.readouterr().out
    assert op.get_result().panes.num_rows, "they are still there"
    assert repr(op.plot()).endswith(", 1 moment). Hint: .save('panes.html')")
    with pytest.raises(tg.InputError, match="messages of a join have a side"):
        joined().show(of=messages(1))
    with pytest.raises(tg.InputError, match="a join has no windows with a history"):
        op.why("a")


def test_the_feed_of_a_join_says_that_it_has_no_histories():
    feed = OperatorFeed(joined_rows())
    assert len(feed.read().moments) == 1
    with pytest.raises(tg.InputError, match="a join has no windows with a history"):
        feed.why("a", "")


def test_retention_is_explained_in_words():
    windowed = tg.stream(time="ts").window(tg.tumbling("1 minute"))
    kept = windowed.retain(time="1 hour", windows=1, bytes=3 << 20).aggregate(n=tg.count())
    assert kept.explain().splitlines()[-1] == (
        "Past windows can be read, within retention (1 hour behind the newest, 1 window of a key,"
        " 3.0 MiB)."
    )


def test_only_what_has_a_status_has_metrics():
    with pytest.raises(tg.InputError, match="those of queries and embedded operators, got 5"):
        tg.serve_metrics(5, port=0)


def test_a_folder_is_a_path():
    with pytest.raises(tg.SpecError, match="needs the path of a folder, got 5"):
        tg.sinks.parquet(5)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda folder: pipeline().show(of=str(folder / "nothing")), "that a query has written"),
        (lambda _: pipeline().show(-1, of=messages(1)), "of 0 or more, got -1"),
        (
            lambda folder: operator().plot(path=folder / "no" / "x.html"),
            "No such file or directory",
        ),
        (lambda _: tg.serve_metrics(operator(), port=99999), "cannot listen on 127.0.0.1:99999"),
        (lambda _: operator().ui(port="eighty"), "cannot use the port eighty"),
    ],
)
def test_what_cannot_be_shown_is_an_error_of_ours(wrong: Any, text: str, tmp_path: Path):
    with pytest.raises(tg.TidegateError, match=text):
        wrong(tmp_path)
