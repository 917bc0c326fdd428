"""Rows that are aggregated on their way to the operator come to the same panes as rows that travel
one by one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from support.spark_fakes import Fleet, Found, shipped
from test_edge import Whole, check
from tidegate.errors import StateError
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame, to_numpy
from tidegate.kernel.keys import shard_of
from tidegate.kernel.storage.column_encoding import unpack
from tidegate.operators.aggregate import pre_aggregation as combining
from tidegate.operators.aggregate.context import IDENTITY
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.pre_aggregation import PreAggregator, can_combine
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.output import Output
from tidegate.spark.query.publish import Publisher
from tidegate.spark.tasks.chain import ChainPlan
from tidegate.spark.tasks.edge import Edge, split_frame
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import COMBINED, ROWS, decode_payload, encode_payloads
from tidegate.spark.tasks.watermark_files import FEW_SHARDS, WatermarkFiles
from tidegate.spec.triggers import Default
from tidegate.spec.windows import Hopping
from tidegate.state.memory import MemoryStore

THREE = ShardLayout.balanced(3)
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", STAMP),
        ("v", pa.int64()),
        ("f", pa.bool_()),
        ("writer", pa.string()),
        ("noted", STAMP),
    ]
)


@dataclass(frozen=True)
class Known(WatermarkFiles):
    """What the shards of a fleet have as watermarks, without files."""

    checkpoint: str = ""
    operator: str = "0"
    fleet: list[Fleet] = field(default_factory=list, hash=False, compare=False)

    def before(self, batch: int, layout: ShardLayout) -> int | None:
        return max(self.fleet[0].stages[0].watermarks(), default=MIN)


def panes(window: Any = None, watermark: Any = None, **input: Any) -> Any:
    given_stream = tg.stream(time="t", key="k", watermark=watermark or tg.bounded("5 us"), **input)
    return given_stream.window(tg.tumbling("10 us") if window is None else window)


def aggregated(windowed: Any) -> Any:
    return windowed.aggregate(
        n=tg.count(),
        total=tg.sum("v"),
        least=tg.min("v"),
        most=tg.max("v"),
        mean=tg.mean("v"),
        some=tg.count(where="f"),
    )


def edge_of(spec: Any, **more: Any) -> Edge:
    return Edge(
        spec.input,
        THREE,
        0,
        spec.options.future_tolerance,
        combiner=PreAggregator(spec, SCHEMA, THREE.hasher),
        **more,
    )


aligned = st.sampled_from(
    [
        tg.tumbling("10 us"),
        tg.hopping("20 us", "5 us"),
        Hopping(3, 10),
        tg.cumulative("20 us", "5 us"),
        tg.hopping("15 us", "10 us"),
    ]
)
sessions = st.builds(
    tg.session,
    st.sampled_from(["1 us", "4 us", "10 us"]),
    touch=st.sampled_from(["separate", "merge"]),
)
rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "t": st.one_of(st.integers(0, 60), st.none(), st.integers(200, 210)),
        "v": st.one_of(st.none(), st.integers(-5, 5), st.integers(2**62, 2**63 - 1)),
        "f": st.one_of(st.none(), st.booleans()),
    }
)
notes = st.fixed_dictionaries(
    {"writer": st.sampled_from(["x", "y", None]), "noted": st.one_of(st.none(), st.integers(0, 60))}
)
noting_rows = st.one_of(rows, st.builds(lambda row, note: {**row, **note}, rows, notes), notes)
"""Events, events that note a time as well, and notes alone."""
late_rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b"]),
        "t": st.integers(0, 60),
        "v": st.integers(-5, 5),
        "f": st.booleans(),
    }
)
"""Rows that are read and taken for the most part, many of them late."""


@st.composite
def configured(
    draw: st.DrawFn, windows: st.SearchStrategy[Any] = aligned, watermark: Any = None
) -> Any:
    windowed = panes(draw(windows), watermark).allow_lateness(draw(st.integers(0, 15)), unit="us")
    windowed = windowed.options(
        drop_by=draw(st.sampled_from(["event", "window"])),
        session_lateness=draw(st.sampled_from(["own", "merged"])),
        granularity=draw(st.sampled_from(["element", "batch"])),
        on_time=draw(st.sampled_from(["always", "if_nonempty", "if_updated"])),
        closing=draw(st.sampled_from(["always", "if_nonempty", "never"])),
        timestamp=draw(st.sampled_from(["end_of_window", "earliest", "latest"])),
        future=draw(st.sampled_from(["process", "reject"])),
        future_tolerance="50 us",
    )
    trigger = draw(
        st.sampled_from(
            [
                None,
                tg.after_watermark(),
                tg.after_watermark(late=tg.after_count(1)),
                Default(),
                tg.never(),
            ]
        )
    )
    windowed = windowed if trigger is None else windowed.trigger(trigger)
    return aggregated(
        draw(
            st.sampled_from([windowed.accumulating(), windowed.discarding(), windowed.retracting()])
        )
    ).spec


def table(given_rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(given_rows, SCHEMA)


COUNTED = (
    "events",
    "on_time",
    "mildly_late",
    "very_late",
    "future",
    "unreadable",
    "late_rows",
    "panes_on_time",
    "panes_late",
    "retractions",
)
histories = st.lists(st.lists(st.lists(rows, max_size=8), min_size=1, max_size=3), max_size=5)


def check_history(spec: Any, history: list[list[list[dict[str, Any]]]], *, forgetful: bool) -> None:
    """Shards that get what edges have combined put out what one operator puts out that gets all
    rows.
    """
    assert can_combine(spec)
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(combining, "_WORTH_IT", 1.0)
        known = Known()
        fleet = Fleet([ChainPlan((spec,), SCHEMA)], [edge_of(spec, watermark_files=known)], THREE)
        known.fleet.append(fleet)
        fleet.forget_workers()
        whole, now = Whole(spec, SCHEMA), 100
        for tasks in history:
            if forgetful:
                fleet.forget_workers()
            now += 10
            have = fleet.deliver(
                [(0, number, [table(part)]) for number, part in enumerate(tasks) if part],
                now,
                batch=1,
            )
            want = whole.deliver([Arrival(0, table([row for part in tasks for row in part]))], now)
            check(have, want, ("k",))
        now += 20_000_000
        check(fleet.wake(now, all_timers=True), whole.wake(now), ("k",))
        have, want = (
            {name: found[name] for name in COUNTED}
            for found in (fleet.counters(), whole.operator.operator.progress.counters)
        )
        assert have == want


@pytest.mark.slow
@examples(60)
@given(configured(), histories, st.booleans())
def test_panes_are_the_same_as_those_of_rows_one_by_one(spec, history, forgetful):
    check_history(spec, history, forgetful=forgetful)


@pytest.mark.slow
@examples(30)
@given(configured(sessions), histories, st.booleans())
def test_sessions_are_the_same_as_those_of_rows_one_by_one(spec, history, forgetful):
    check_history(spec, history, forgetful=forgetful)


@pytest.mark.slow
@examples(30)
@given(
    configured(watermark=tg.noted()),
    st.lists(st.lists(st.lists(noting_rows, max_size=8), min_size=1, max_size=3), max_size=5),
    st.booleans(),
)
def test_what_writers_note_is_heard_where_their_events_are_combined(spec, history, forgetful):
    check_history(spec, history, forgetful=forgetful)


def cells_of(operator: WindowedAggregate) -> list[dict[str, Any]]:
    """The cells of an operator by key and window; without when something came last, which nothing
    asks where no messages are kept.
    """
    cells = operator.bound().context.cells.all()
    found = [] if cells is None else cells.drop(["newest_seq", "fired_seq"]).to_table().to_pylist()
    # A time that waits for nothing may be anything.
    plain = [
        {**row, "hold_time": row["hold_time"] if row["has_on_time"] else None} for row in found
    ]
    return sorted(plain, key=lambda row: repr([row[name] for name in IDENTITY]))


def counted(operator: WindowedAggregate) -> dict[str, int]:
    """What was counted; a session that later rows of the batch join to another was opened or not,
    depending on what came together.
    """
    return {
        name: n for name, n in operator.progress.counters.items() if n and name != "windows_opened"
    }


def combined_run(
    operator: WindowedAggregate, wiring: list[list[dict[str, Any]]], now: int
) -> tuple[Output, list[int]]:
    """A micro-batch whose wiring were combined one by one as far as that goes; and how many rows of
    each were not.
    """
    combiner = PreAggregator(operator.spec, SCHEMA, operator.hasher)
    limit = now + operator.spec.options.future_tolerance
    found = [
        (table(part), combiner.combine(table(part), operator.progress.watermark, limit))
        for part in wiring
    ]
    frames = [made[0] for _, made in found if made is not None]
    rest = [Arrival(0, whole if made is None else made[1]) for whole, made in found]
    output = operator.process_all(
        rest, now, observed=[Arrival(0, whole) for whole, _ in found], combined=frames
    )
    return output, [arrival.table.num_rows for arrival in rest]


def shown(operator: WindowedAggregate, output: Output) -> Found:
    results = operator.renderer().render(output)
    return Found(results.panes.to_pylist(), results.late.to_pylist())


def check_states(spec: Any, history: list[list[list[dict[str, Any]]]]) -> list[list[int]]:
    """Two operators of which one gets what was combined are the same after every batch; the answer
    is how many rows came one by one.
    """
    travelled = []
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(combining, "_WORTH_IT", 1.0)
        combined, single = (WindowedAggregate(spec, MemoryStore()) for _ in range(2))
        for operator in (combined, single):
            operator.bind(SCHEMA)
        for number, wiring in enumerate(history):
            now = 100 + number
            have, alone = combined_run(combined, wiring, now)
            want = single.process_all([Arrival(0, table(part)) for part in wiring], now)
            check(shown(combined, have), shown(single, want), ("k",))
            assert cells_of(combined) == cells_of(single)
            assert counted(combined) == counted(single)
            assert (combined.hold, combined.output_watermark, combined.next_due) == (
                single.hold,
                single.output_watermark,
                single.next_due,
            )
            travelled.append(alone)
        check(shown(combined, combined.finish()), shown(single, single.finish()), ("k",))
    return travelled


@pytest.mark.slow
@given(
    configured(sessions),
    st.lists(
        st.lists(st.lists(late_rows, min_size=1, max_size=8), min_size=1, max_size=3), max_size=6
    ),
)
def test_the_state_of_sessions_is_the_same_after_every_batch(spec, history):
    check_states(spec, history)


def at(*times: int) -> list[dict[str, Any]]:
    return [{"k": "a", "t": time, "v": 1, "f": True} for time in times]


@pytest.mark.parametrize("granularity", ["element", "batch"])
@pytest.mark.parametrize(
    ("touch", "lateness", "history", "travelled"),
    [
        # The second batch is judged by 35. A late row joins a session that has fired to the rows on
        # time.
        ("separate", "30 us", [[at(10, 40)], [at(36, 44), at(28, 19)]], [[0], [0, 2]]),
        # A row that is too late alone is saved by a session that what another task has aggregated
        # is in; one that joins nothing is not.
        ("separate", "5 us", [[at(22, 31, 40)], [at(38), at(15, 3, 60)]], [[0], [0, 2]]),
        # The session from 25 to 35 has fired when the watermark is 35: who touches it is seen as a
        # row.
        ("merge", "30 us", [[at(25, 40)], [at(35, 35)]], [[0], [2]]),
        ("separate", "30 us", [[at(25, 40)], [at(35, 35)]], [[0], [0]]),
        # Wiring of one session come from several slices and tasks.
        (
            "separate",
            "30 us",
            [[at(1, 9, 12, 25), at(18, 30, 33)], [at(35, 44), at(53, 64)]],
            [[0, 0], [0, 0]],
        ),
    ],
    ids=["bridged", "saved", "touched", "apart", "slices"],
)
@pytest.mark.parametrize(
    "trigger",
    [tg.after_watermark(), tg.after_watermark(late=tg.after_count(1))],
    ids=["once", "late"],
)
def test_parts_of_sessions_meet_sessions_that_have_fired_and_rows_that_are_late(
    touch, lateness, history, travelled, trigger, granularity
):
    windowed = panes(tg.session("10 us", touch=touch)).allow_lateness(lateness).trigger(trigger)
    windowed = windowed.options(
        granularity=granularity, drop_by="window", session_lateness="merged"
    )
    assert check_states(aggregated(windowed.retracting()).spec, history) == travelled


def kinds(edge: Edge, given_table: pa.Table, batch: int | None = 1) -> list[str]:
    return sorted(
        {row.kind for row in shipped(edge.pack(iter(given_table.to_batches()), 0, 0, batch))}
    )


def many(keys: int, n: int = 8192) -> pa.Table:
    return table(
        [{"k": str(number % keys), "t": number % 50, "v": 1, "f": True} for number in range(n)]
    )


def test_a_batch_that_would_not_shrink_travels_as_it_is():
    edge = edge_of(aggregated(panes()).spec)
    assert COMBINED in kinds(edge, many(5))
    assert ROWS not in kinds(edge, many(5))
    assert COMBINED not in kinds(edge, many(8192))
    assert COMBINED not in kinds(edge, many(5, n=1))


def test_sessions_travel_in_parts():
    edge = edge_of(aggregated(panes(tg.session("10 us"))).spec)
    assert kinds(edge, many(5)) == [COMBINED, "observed"]
    assert COMBINED not in kinds(edge_of(aggregated(panes(tg.session("1 us"))).spec), many(200)), (
        "each slice has one row of a key"
    )


def parts_of_sessions(*times: int, floor: int = 0, limit: int = 100) -> list[tuple[int, int, int]]:
    combiner = PreAggregator(aggregated(panes(tg.session("10 us"))).spec, SCHEMA, THREE.hasher)
    found = combiner.combine(table(at(*times)), floor, limit)
    assert found is not None
    frame, rest = found
    assert rest.num_rows == sum(not floor <= time <= limit for time in times)
    columns = (frame.ints(name).tolist() for name in ("start", "end", "row_count"))
    return sorted(zip(*columns, strict=True))


def test_parts_of_sessions_end_with_the_newest_row():
    assert parts_of_sessions(9, 12, 18, 18, 9, 10) == [(9, 28, 6)], (
        "a grid from 0 would cut them at 10"
    )
    assert parts_of_sessions(9, 12, 12, 22, 19, 9) == [
        (9, 22, 4),
        (19, 32, 2),
    ], "12 and 22 are a gap apart"
    assert parts_of_sessions(3, 3, 3, 3, 8, 200, floor=5) == [(8, 18, 1)], (
        "rows that are late or from the future are in none"
    )


def test_parts_of_sessions_over_all_of_time():
    first, last = MIN + 50, MAX - 50
    assert parts_of_sessions(first, first, last, last, last, 0, floor=MIN, limit=MAX) == [
        (first, first + 10, 2),
        (0, 10, 1),
        (last, last + 10, 3),
    ]


def test_rows_below_the_floor_travel_as_they_are(tmp_path):
    files = WatermarkFiles(str(tmp_path))
    edge = edge_of(aggregated(panes()).spec, watermark_files=files)
    assert COMBINED not in kinds(edge, many(5), batch=1), "nothing is known of the shards"
    assert kinds(edge, many(5), batch=0) == [COMBINED, "observed"], "no shard has a watermark"
    for shard in THREE.ids:
        files.write(shard, 4, 20)
    assert kinds(edge, many(5), batch=5) == [COMBINED, "observed", ROWS]
    assert kinds(edge, many(5), batch=4) == ["observed", ROWS], "a replay knows what was known then"


def test_the_floor_is_the_highest_of_all_shards_and_a_silent_shard_keeps_its_own(tmp_path):
    files = WatermarkFiles(str(tmp_path))
    for number, shard in enumerate(THREE.ids):
        files.write(shard, 1, number)
    files.write(THREE.ids[0], 2, 30)
    files.write(THREE.ids[0], 2, 30)
    assert files.before(2, THREE) == 2
    assert files.before(3, THREE) == 30
    for batch in range(3, 20):
        files.write(THREE.ids[0], batch, batch * 100)
    assert files.before(20, THREE) == 1900
    assert files.before(2, THREE) is None, "what is long gone is not kept"


def test_with_many_shards_an_edge_reads_one_file_instead_of_one_per_shard(tmp_path):
    files, many_shards = WatermarkFiles(str(tmp_path)), ShardLayout.balanced(FEW_SHARDS + 1)
    folder = tmp_path / "tidegate" / "watermarks" / "0"
    for number, shard in enumerate(many_shards.ids[1:]):
        files.write(shard, 1, number)
    files.gather(2, many_shards)
    assert not (folder / "gathered").exists(), "nothing is known of one shard"
    assert files.before(2, many_shards) is None
    files.write(many_shards.ids[0], 1, 70)
    files.write(many_shards.ids[0], 2, 80)
    files.gather(2, many_shards)
    for shard in many_shards.ids[1:]:
        (folder / str(shard)).unlink()
    assert files.before(2, many_shards) == 70
    assert files.before(3, many_shards) is None, "it is of another batch"
    (folder / "gathered").write_bytes(b"damaged")
    with pytest.warns(RuntimeWarning, match="gathered` is ignored"):
        assert files.before(2, many_shards) is None


def test_the_watermarks_are_gathered_before_the_rows_of_a_batch_are_read(tmp_path):
    files, many_shards = WatermarkFiles(str(tmp_path)), ShardLayout.balanced(FEW_SHARDS + 1)
    for shard in many_shards.ids:
        files.write(shard, 1, 70)
    seen = []

    class Packed:
        def toArrow(self) -> None:
            seen.append((tmp_path / "tidegate/watermarks/0/gathered").exists())

    Publisher((), watermark_files=(files,), layout=many_shards)(Packed(), 2)
    assert seen == [True]


def test_few_shards_need_no_gathered_file(tmp_path):
    files = WatermarkFiles(str(tmp_path))
    for shard in THREE.ids:
        files.write(shard, 1, 5)
    files.gather(2, THREE)
    assert sorted(path.name for path in (tmp_path / "tidegate/watermarks/0").iterdir()) == sorted(
        map(str, THREE.ids)
    )


def test_the_partial_aggregates_of_many_shards_are_encoded_as_a_whole():
    layout = ShardLayout.balanced(200)
    keys = pa.array(range(70_000, 71_000))
    hashes, checks = layout.hasher.identify([pa.chunked_array([keys])], len(keys))
    frame = Frame({"key_hash": hashes, "key_check": checks, "k.key": keys}, len(keys))
    parts = dict(split_frame(frame, layout))
    assert len(parts) > 190
    assert len({part.schema.metadata[b"narrowed"] for part in parts.values()}) == 1
    held = {}
    for shard, part in parts.items():
        (payload,) = encode_payloads(part)
        decoded = unpack(decode_payload(payload))
        held |= dict.fromkeys(to_numpy(decoded.columns["k.key"]).tolist(), shard)
    expected = [layout.ids[number] for number in shard_of(hashes, len(layout)).tolist()]
    assert [held[key] for key in keys.to_pylist()] == expected


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-3],
        lambda data: data.replace(b"20", b"10"),
        lambda data: b"[[4, 20]]",
        lambda data: b"\xff" * 40,
        lambda data: b"[" * 100_000,
    ],
)
def test_a_damaged_watermark_file_is_ignored_with_a_warning(tmp_path, damage):
    files = WatermarkFiles(str(tmp_path))
    edge = edge_of(aggregated(panes()).spec, watermark_files=files)
    for shard in THREE.ids:
        files.write(shard, 4, 20)
    path = tmp_path / "tidegate" / "watermarks" / "0" / str(THREE.ids[1])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match=f"watermark file `{path}` is ignored"):
        assert kinds(edge, many(5), batch=5) == ["observed", ROWS]
    with pytest.warns(RuntimeWarning, match="is ignored"):
        files.write(THREE.ids[1], 5, 20)
    assert kinds(edge, many(5), batch=6) == [COMBINED, "observed", ROWS], "a write replaces it"


def test_a_floor_of_another_query_is_told():
    spec = aggregated(panes()).spec
    fleet = Fleet([ChainPlan((spec,), SCHEMA)], [edge_of(spec)], THREE)
    fleet.forget_workers()
    fleet.deliver([(0, 0, [table([{"k": "a", "t": 40, "v": 1, "f": True}] * 4)])], 100)
    with pytest.raises(StateError, match="tidegate/watermarks"):
        fleet.deliver([(0, 0, [table([{"k": "a", "t": 40, "v": 1, "f": True}] * 4)])], 100)


@pytest.mark.parametrize(
    "windowed",
    [
        panes(id="v"),
        panes(offset="v"),
        panes(times={"noted": tg.punctuated(marker="f")}),
        panes(tg.session(gap_column="v")),
        panes(tg.session("10 us", axis="clock")),
        panes(tg.session("10 us")).trigger(tg.every_element()),
        panes(tg.session("10 us")).retain(windows=3),
        panes().trigger(tg.after_watermark(early=tg.after_count(3))),
        panes().retain(messages=3),
        panes().options(keep_messages=True),
        panes().options(future_reference="watermark"),
        panes(tg.tumbling("10 us", create="static")),
    ],
    ids=[
        "id",
        "offset",
        "markers",
        "gap",
        "clock",
        "elements",
        "windows",
        "count",
        "retention",
        "messages",
        "future",
        "static",
    ],
)
def test_what_has_to_be_seen_one_by_one_is_not_combined(windowed):
    assert not can_combine(aggregated(windowed).spec)


def test_aggregates_that_ask_for_an_order_are_not_combined():
    assert not can_combine(panes().aggregate(v=tg.last("v")).spec)
    assert not can_combine(panes().aggregate(v=tg.count("v", distinct=True)).spec)
    assert not can_combine(
        dataclasses.replace(panes().aggregate(v=tg.sum("v")).spec, evictor=tg.evict_count(3))
    )
