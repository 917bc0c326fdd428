"""Nexmark: the generator's rules, and the answers of the pipelines against a recount with DuckDB."""

import subprocess
import sys

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from bench import main
from bench.nexmark import generator, racing
from bench.nexmark.answers import flink_types
from bench.nexmark.queries import QUERIES

EVENTS = 60_000
"""Six seconds at the default rate would fill no window: the tests use a lower one."""
SLOW = 500
SOURCES = dict.fromkeys(generator.KINDS)


@pytest.fixture(scope="module")
def events() -> dict[str, pa.Table]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "RATE", SLOW)
        chunks = [
            generator.Chunk(begin, begin + 20_000).tables() for begin in range(0, EVENTS, 20_000)
        ]
    return {kind: pa.concat_tables(chunk[kind] for chunk in chunks) for kind in generator.KINDS}


def recount(events: dict[str, pa.Table], query: str) -> list[tuple]:
    with duckdb.connect() as connection:
        for kind, table in events.items():
            connection.register(kind, table)
        return connection.execute(query).fetchall()


def milliseconds(moment) -> int:
    return round(moment.timestamp() * 1_000)


def panes(query: str, events: dict[str, pa.Table], kind: str) -> list[dict]:
    """The panes of a pipeline, with bounds in milliseconds."""
    built = QUERIES[query].ours(SOURCES)
    last = built.embedded()
    first = built.sources[0].embedded(downstream=last) if built.sources else last
    for part in range(0, events[kind].num_rows, 7_000):
        first.add_messages(events[kind].slice(part, 7_000))
    first.finish()
    rows = last.get_result().panes.to_pylist()
    assert {row["op"] for row in rows} == {"+"}
    bounds = ("window_start", "window_end")
    return [{**row, **{name: milliseconds(row[name]) for name in bounds}} for row in rows]


def test_kinds_ids_and_times_follow_from_the_number_of_an_event() -> None:
    tables = generator.Chunk(0, 100_000).tables()
    assert [tables[kind].num_rows for kind in generator.KINDS] == [2_000, 6_000, 92_000]
    assert sorted(tables["person"]["id"].to_pylist()) == list(range(1_000, 3_000))
    assert sorted(tables["auction"]["id"].to_pylist()) == list(range(1_000, 7_000))
    times = np.sort(
        np.concatenate([table["ts"].cast(pa.int64()).to_numpy() for table in tables.values()])
    )
    assert times.tolist() == (generator.START + np.arange(100_000) * 1_000 // 10_000).tolist()


def test_events_are_out_of_order_by_less_than_the_delay_of_the_watermark() -> None:
    times = generator.Chunk(0, 100_000).tables()["bid"]["ts"].cast(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(times) - times
    assert 0 < behind.max() < generator.GROUP * 1_000 // generator.RATE


def test_a_chunk_is_the_same_in_every_run() -> None:
    first, second = (generator.Chunk(50_000, 60_000).tables() for _ in range(2))
    assert first == second


def test_hot_auctions_bidders_and_sellers_have_their_share(events: dict[str, pa.Table]) -> None:
    bids = events["bid"]
    hot = (bids["auction"].to_numpy() - 1_000) % 100 == 0
    assert 0.45 < hot.mean() < 0.55
    assert 0.7 < ((bids["bidder"].to_numpy() - 1_000) % 100 == 1).mean() < 0.8
    assert 0.7 < ((events["auction"]["seller"].to_numpy() - 1_000) % 100 == 0).mean() < 0.8
    prices = bids["price"].to_numpy()
    assert prices.min() >= 100
    assert prices.max() <= 10**8
    assert 4.8 < np.log10(prices).mean() < 5.2


def test_rows_have_the_size_that_nexmark_gives_them(events: dict[str, pa.Table], tmp_path) -> None:
    generator.write(tmp_path, 10_000, 2)
    sizes = {
        kind: sum(path.stat().st_size for path in (tmp_path / kind).iterdir()) / rows
        for kind, rows in (("person", 200), ("auction", 600), ("bid", 9_200))
    }
    assert {kind: round(size, -2) for kind, size in sizes.items()} == {
        "person": 200,
        "auction": 500,
        "bid": 100,
    }


def test_dealing_lines_keeps_every_event_and_its_order(tmp_path) -> None:
    generator.write(tmp_path / "events", 10_000, 3)
    generator.halves(tmp_path / "events", tmp_path / "halves", 2)
    for kind in generator.KINDS:
        lines = [
            line
            for path in sorted((tmp_path / "events" / kind).iterdir())
            for line in path.read_text("utf-8").splitlines()
        ]
        dealt = [
            (tmp_path / "halves" / kind / f"{part}.csv").read_text("utf-8").splitlines()
            for part in range(2)
        ]
        assert sorted(dealt[0] + dealt[1]) == sorted(lines)
        position = {line: number for number, line in enumerate(lines)}
        for half in dealt:
            assert [position[line] for line in half] == sorted(position[line] for line in half)


def test_q5_finds_all_auctions_with_the_most_bids(events: dict[str, pa.Table]) -> None:
    found = [
        (pane["window_start"], item["auction"], item["num"])
        for pane in panes("q5", events, "bid")
        for item in pane["top"]
    ]
    expected = recount(
        events,
        """
        WITH each AS (SELECT auction, (epoch_ms(ts) // 2000 - step) * 2000 AS begin
                      FROM bid, range(5) AS steps(step)),
             counts AS (SELECT begin, auction, count(*) AS num FROM each GROUP BY ALL)
        SELECT begin, auction, num FROM counts
        QUALIFY num = max(num) OVER (PARTITION BY begin)""",
    )
    assert sorted(found) == sorted(expected)


def test_q7_finds_all_bids_with_the_highest_price(events: dict[str, pa.Table]) -> None:
    found = [
        (pane["window_start"], item["price"], item["auction"], item["bidder"])
        for pane in panes("q7", events, "bid")
        for item in pane["top"]
    ]
    expected = recount(
        events,
        """
        SELECT epoch_ms(ts) // 10000 * 10000 AS begin, price, auction, bidder FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY epoch_ms(ts) // 10000 * 10000)""",
    )
    assert sorted(found) == sorted(expected)


def test_q8_finds_persons_who_sell_in_the_window_of_their_registration(
    events: dict[str, pa.Table],
) -> None:
    op = QUERIES["q8"].ours(SOURCES).embedded()
    for part in range(0, events["auction"].num_rows, 1_000):
        op.port("left").add_messages(events["person"].slice(part // 3, 334))
        op.port("right").add_messages(events["auction"].slice(part, 1_000))
    op.finish()
    rows = op.get_result().panes.to_pylist()
    assert {row["op"] for row in rows} == {"+"}
    found = [(milliseconds(row["window_start"]), row["id"], row["name"]) for row in rows]
    expected = recount(
        events,
        """
        SELECT epoch_ms(ts) // 10000 * 10000, id, name FROM person AS p
        WHERE EXISTS (FROM auction AS a WHERE a.seller = p.id
                      AND epoch_ms(a.ts) // 10000 = epoch_ms(p.ts) // 10000)""",
    )
    assert len(expected) > 0
    assert sorted(found) == sorted(expected)


def test_q11_counts_bids_of_sessions(events: dict[str, pa.Table]) -> None:
    found = [
        (pane["bidder"], pane["window_start"], pane["window_end"], pane["num"])
        for pane in panes("q11", events, "bid")
    ]
    expected = recount(
        events,
        """
        WITH timed AS (SELECT bidder, epoch_ms(ts) AS moment FROM bid),
             marked AS (
               SELECT bidder, moment, (moment - lag(moment) OVER (
                 PARTITION BY bidder ORDER BY moment) > 10000)::INT AS starts FROM timed),
             numbered AS (
               SELECT bidder, moment, coalesce(sum(starts) OVER (
                 PARTITION BY bidder ORDER BY moment), 0) AS visit FROM marked)
        SELECT bidder, min(moment), max(moment) + 10000, count(*)
        FROM numbered GROUP BY bidder, visit""",
    )
    assert sorted(found) == sorted(expected)


def test_q12_counts_bids_by_the_clock(events: dict[str, pa.Table]) -> None:
    op = QUERIES["q12"].ours(SOURCES).embedded(now="2025-03-14T12:00:01Z")
    op.add_messages(events["bid"].slice(0, 5_000))
    op.add_messages(events["bid"].slice(5_000), now="2025-03-14T12:00:11Z")
    op.timeout(now="2025-03-14T12:00:20Z")
    rows = op.get_result().panes.to_pylist()
    assert sum(row["num"] for row in rows) == events["bid"].num_rows


def test_columns_of_answers_have_a_type_for_flink() -> None:
    assert {kind for query in QUERIES.values() for kind, _ in flink_types(query).values()} == {
        "BIGINT",
        "STRING",
        "TIMESTAMP(3)",
        "TIMESTAMP_LTZ(3)",
    }


def test_an_unknown_query_is_refused(capsys) -> None:
    with pytest.raises(racing.SpecError, match="there is no query `q99`"):
        racing.named("q5,q99")


def test_without_flink_the_benchmark_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FLINK_PYTHON", sys.executable)
    assert racing.flink_python() is None
    seconds = iter([3.0])
    monkeypatch.setattr(racing, "_run", lambda side, command, processor: next(seconds))
    monkeypatch.setattr(racing.answers, "of_tidegate", lambda query, folder: [])
    assert main(["nexmark", "--cases", "q7", "--events", "2000", "--json"]) == 0
    output = capsys.readouterr()
    assert "Flink is skipped" in output.err
    assert '"name": "q7", "ratio": null' in output.out


def test_the_job_of_flink_imports_nothing_of_the_project() -> None:
    source = (
        "import sys; sys.path.insert(0, 'bench/nexmark'); import flink_job; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert not {name for name in done.stdout.split() if name.split(".")[0] in ("tidegate", "bench")}
