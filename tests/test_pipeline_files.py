"""Pipeline files translate to the API, and every mistake is reported with location, rule and hint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.column_functions import owner, patience, seconds
from support.documents import blocks
from tidegate.cli import main
from tidegate.errors import ParseError
from tidegate.pipeline import PipelineFileError, Problem, load, parse
from tidegate.pipeline.inputs import FileInput, KafkaInput, RateInput

WHOLE = """
name: clicks
input: {type: parquet, folder: data, schema: "user string, ts timestamp"}
stream: {time: ts, key: user, watermark: "bounded(10 seconds, idle_after=1 minute)"}
window: tumbling(1 minute)
trigger: AfterWatermark(early=Every("10 seconds"), late=AfterCount(1))
mode: retracting
allow_lateness: 5 minutes
options: {future: reject, future_tolerance: 2 minutes}
retain: {windows: 10}
aggregate: {n: count, spent: sum(price), p95: "quantile(ms, [0.5, 0.95])"}
write: {to: parquet(out/panes), late: noop, checkpoint: out/ck, trigger: 2 seconds, shards: 4}
"""


JUNK = ["", ":", "]", "}", "[", "'", " x", ": x", "\t", "5", "(", ",", "null"]


def part(word: str, value: str) -> str:
    """The whole file with one part replaced, or omitted if the value is empty."""
    lines = [line for line in WHOLE.splitlines() if not line.startswith(f"{word}:")]
    return "\n".join([*lines, f"{word}: {value}"] if value else lines)


def problems(text: str, **environment: str) -> list[Problem]:
    with pytest.raises(PipelineFileError) as caught:
        parse(text, environment=environment)
    return list(caught.value.problems)


def only(text: str, **environment: str) -> Problem:
    found = problems(text, **environment)
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def tried(text: str) -> tuple[Problem, ...]:
    """The problems of a text; any other error is a failure."""
    try:
        parse(text, environment={})
    except PipelineFileError as error:
        return error.problems
    return ()


# Valid files


def test_a_file_says_what_the_api_says() -> None:
    stream = tg.stream(
        time="ts", key="user", watermark=tg.bounded("10 seconds", idle_after="1 minute")
    )
    panes = (
        stream.window(tg.tumbling("1 minute"))
        .trigger('AfterWatermark(early=Every("10 seconds"), late=AfterCount(1))')
        .retracting()
        .allow_lateness("5 minutes")
        .retain(windows=10)
        .options(future="reject", future_tolerance="2 minutes")
        .aggregate(n=tg.count(), spent=tg.sum("price"), p95=tg.quantile("ms", [0.5, 0.95]))
    )
    assert parse(WHOLE).spec == panes.spec


def test_outputs_and_inputs_are_read(tmp_path: Path) -> None:
    read = parse(WHOLE, folder=tmp_path)
    assert read.output.checkpoint == str(tmp_path / "out" / "ck")
    assert read.output.sinks["to"].folder == str(tmp_path / "out" / "panes")
    assert (read.output.trigger, read.output.shards) == ("2 seconds", 4)
    assert read.inputs[0].source == FileInput(
        "parquet", str(tmp_path / "data"), "user string, ts timestamp"
    )


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("tumbling(1 minute, offset=10 seconds)", tg.tumbling("1 minute", offset="10 seconds")),
        (
            "{type: tumbling, size: 1 minute, offset: 10 seconds}",
            tg.tumbling("1 minute", offset="10 seconds"),
        ),
        ("{type: tumbling, size: 3, axis: ordinal}", tg.tumbling(3, axis="ordinal")),
        ("hopping(10 minutes, 10 seconds)", tg.hopping("10 minutes", "10 seconds")),
        ("sliding(5 s)", tg.sliding("5 s")),
        ("{type: session, gap: 30 s, touch: merge}", tg.session("30 s", touch="merge")),
        (
            "{type: calendar, unit: month, n: 7, start: 2014-03-05}",
            tg.calendar("month", 7, start="2014-03-05"),
        ),
        ("global", tg.global_window()),
        ('cumulative("1 hour", "10 minutes")', tg.cumulative("1 hour", "10 minutes")),
    ],
)
def test_windows_have_a_text_and_a_mapping(text: str, window: object) -> None:
    assert parse(part("window", text)).spec.window == window


@pytest.mark.parametrize(
    ("text", "aggregate"),
    [
        ("count", tg.count()),
        ("count()", tg.count()),
        ("count(user, distinct=true)", tg.count("user", distinct=True)),
        ("{kind: sum, column: price, where: is_paid}", tg.sum("price", where="is_paid")),
        ("top_k(page, 3, by=ms)", tg.top_k("page", 3, by="ms")),
        ("quantile('a, b', 0.5)", tg.quantile("a, b", 0.5)),
    ],
)
def test_aggregates_have_a_text_and_the_json_form(text: str, aggregate: object) -> None:
    written = text if text.startswith("{") else json.dumps(text)
    assert dict(parse(part("aggregate", f"{{a: {written}}}")).spec.aggregates) == {"a": aggregate}


def test_the_json_form_of_an_aggregate_is_read_back() -> None:
    for aggregate in (
        tg.count(),
        tg.arg_max("a", by="b"),
        tg.quantile("ms", [0.1, 0.9]),
        tg.first("a", ignore_nulls=True),
    ):
        text = part("aggregate", json.dumps({"a": aggregate.to_dict()}))
        assert dict(parse(text).spec.aggregates) == {"a": aggregate}


def test_functions_over_columns_have_a_name() -> None:
    columns = "support.column_functions"
    text = part(
        "stream",
        f"{{time: {{function: '{columns}:seconds'}}, key: [user, {{function: '{columns}:owner'}}]}}",
    )
    text += f"\nwindow: {{type: session, gap: {{function: '{columns}:patience'}}}}"
    text = text.replace("window: tumbling(1 minute)\n", "")
    spec = parse(text).spec
    assert (spec.input.time, spec.input.key) == ("seconds", ("user", "owner"))
    assert [column.function for column in spec.input.computed] == [seconds, owner, patience]
    assert spec.window == tg.session(gap_column="session_gap")


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("{function: 'support.column_functions:hours'}", "cannot be imported"),
        ("{function: hours}", "named as `module:name`"),
        ("{functoin: 'a:b'}", "`functoin` is not"),
        ("{}", "`time` needs `function`"),
    ],
)
def test_functions_that_cannot_be_imported_are_problems(value: str, rule: str) -> None:
    found = problems(part("stream", f"{{time: {value}, key: user}}"))
    assert rule in str(found[0])


def test_several_inputs_are_united_and_share_the_stream_s_words() -> None:
    text = part(
        "inputs", "[{type: parquet, folder: a}, {type: csv, folder: b, watermark: ascending}]"
    ).replace("input:", "#")
    read = parse(text)
    assert [given.source.format for given in read.inputs] == ["parquet", "csv"]
    assert [given.watermark for given in read.spec.inputs] == [
        tg.bounded("10 seconds", idle_after="1 minute"),
        tg.ascending(),
    ]


def test_kafka_and_rate_are_read() -> None:
    kafka = parse(
        part(
            "input",
            "{type: kafka, bootstrap_servers: 'a:9092', topic: clicks, schema: 'user string',"
            " starting: earliest}",
        )
    ).inputs[0]
    assert kafka.source == KafkaInput("a:9092", "clicks", schema="user string", starting="earliest")
    assert parse(part("input", "rate(rows_per_second=5)")).inputs[0].source == RateInput(5)


def test_addresses_are_not_taken_for_paths() -> None:
    read = parse(part("write", "{to: parquet(s3://bucket/panes), checkpoint: s3://bucket/ck}"))
    assert read.output.checkpoint == "s3://bucket/ck"


def test_anchors_and_merges_are_read() -> None:
    text = part(
        "inputs", "\n- &one {type: parquet, folder: a, latest_first: true}\n- {<<: *one, folder: b}"
    ).replace("input:", "#")
    first, second = (given.source for given in parse(text).inputs)
    assert (first.latest_first, second.latest_first) == (True, True)
    assert second.folder.endswith("b")


def test_the_environment_fills_in_and_is_not_shown() -> None:
    text = part(
        "write",
        '{to: "parquet(${WHERE}/panes)", checkpoint: "${CK:-out/ck}", late: "parquet(a$$b)"}',
    )
    read = parse(text, environment={"WHERE": "secret"}, folder=Path("/data"))
    assert read.output.sinks["to"].folder == "/data/secret/panes"
    assert read.output.sinks["late"].folder == "/data/a$b"
    assert read.output.checkpoint == "/data/out/ck"
    assert "secret" not in json.dumps(read.describe())


def test_passwords_are_not_shown() -> None:
    text = part(
        "input",
        "{type: kafka, bootstrap_servers: 'a:9092', topic: t, format: text, options: {jaas: 'user=x"
        " password=hunter2;', u: 'k://me:hunter2@h'}}",
    )
    assert "hunter2" not in json.dumps(parse(text).describe())


def test_reading_a_file_does_not_import_spark(repository: Path) -> None:
    program = (
        "import sys; from tidegate.pipeline import load;"
        f" load({str(repository / 'examples/pipeline.yaml')!r}); print('pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("False", "")


# Invalid files

RULES = [
    ("nam", "x", "`nam` is not a part of a pipeline", "did you mean `name`?"),
    ("name", "[a]", "`name` must be a string, got a list", ""),
    ("input", "", "the pipeline needs `input`", "for instance"),
    (
        "input",
        "{type: parqet, folder: a}",
        "`parqet` is not an input",
        "did you mean `parquet`?",
    ),
    ("input", "{folder: a}", "an input needs a `type`", "type: name"),
    ("input", "{type: parquet}", "`parquet` needs `folder`", "add `folder`"),
    ("input", "{type: parquet, folder: 5}", "`folder` must be a string, got 5", ""),
    (
        "input",
        "{type: parquet, folder: a, max_file: 1}",
        "`max_file` is not a parameter of an input `parquet`",
        "max_files_per_trigger",
    ),
    (
        "input",
        "{type: parquet, folder: a, max_files_per_trigger: many}",
        "`max_files_per_trigger` must be a whole number",
        "",
    ),
    (
        "input",
        "{type: parquet, folder: a, direct: perhaps}",
        "`direct` must be true or false, got `perhaps`",
        "",
    ),
    (
        "input",
        "{type: rate, direct: true}",
        "`direct` applies to folders of files and to kafka",
        "omit it",
    ),
    ("input", "{type: arrow, folder: a}", "Spark cannot read Arrow files itself", "direct: true"),
    (
        "input",
        "{type: parquet, folder: a, direct: true, where: x > 1}",
        "a direct input bypasses Spark",
        "omit `direct`",
    ),
    ("input", "{type: kafka, bootstrap_servers: a, topic: t}", "kafka needs a `schema`", "schema:"),
    (
        "input",
        "{type: kafka, bootstrap_servers: a, topic: t, format: xml}",
        "`format` of kafka is one of",
        "",
    ),
    (
        "input",
        "{type: rate, rows_per_second: -1}",
        "`rows_per_second` must be a whole number greater than 0",
        "",
    ),
    ("input", "5", "an input is a string or a mapping, got `5`", "for instance"),
    ("stream", "{time: 5, key: user}", "`time` must be a string, got `5`", "put it in quotes"),
    (
        "stream",
        "{tim: ts, time: ts}",
        "`tim` is not a key of `stream`",
        "did you mean `time`?",
    ),
    ("stream", "[time]", "this must be a mapping", "time, key"),
    ("stream", "{time: ts, key: [user, 5]}", "a column of `key` must be a string, got `5`", ""),
    (
        "stream",
        "{time: ts, watermark: bonded(1 s)}",
        "`bonded` is not a watermark",
        "did you mean `bounded`?",
    ),
    ("stream", "{time: ts, watermark: bounded(10 secnds)}", "`secnds` is not a unit of time", ""),
    ("stream", "{time: ts, watermark: bounded}", "`bounded` needs `disorder`", "add `disorder`"),
    ("stream", "{time: ts, id: a, offset: b}", "duplicates are detected by", "omit one of them"),
    ("stream", "{key: user}", "a window on event time needs a time column", "time="),
    ("window", "", "the pipeline needs `window`", "tumbling(1 minute)"),
    (
        "window",
        "tumbing(1 minute)",
        "`tumbing` is not a window",
        "did you mean `tumbling`?",
    ),
    ("window", "tumbling(1 minute", "a window is a call", "for instance"),
    (
        "window",
        "tumbling(1 minute, 2, 3)",
        "`tumbling` takes 1 positional argument(s), got 3",
        "name the others",
    ),
    (
        "window",
        "'tumbling(1 minute, size=1 minute)'",
        "`size` of `tumbling` is given twice",
        "remove one",
    ),
    ("window", "tumbling(-1 minute)", "tumbling `size` must be greater than 0", ""),
    ("window", "{type: tumbling, size: [1]}", "", ""),
    ("window", "{type: session, gap: 1 s, touch: sometimes}", "session `touch` must be one of", ""),
    (
        "trigger",
        "AfterWatermrk()",
        "there is no trigger `AfterWatermrk` at position 0",
        "did you mean `AfterWatermark`?",
    ),
    ("trigger", "{type: every}", "`trigger` must be a string, got a mapping", ""),
    ("mode", "retractin", "`retractin` is not a mode", "did you mean `retracting`?"),
    ("allow_lateness", "5", "a duration given as a number needs a unit", "5 seconds"),
    ("allow_lateness", "-1 s", "`allow_lateness` can't be negative", ""),
    ("options", "{futur: reject}", "`futur` is not an option", "did you mean `future`?"),
    ("options", "{future: refuse}", "`future` must be one of process, reject", ""),
    ("options", "{semantics: flnk}", "`semantics` must be one of", ""),
    ("retain", "{windows: 0}", "retention by windows must be positive, got 0", ""),
    (
        "retain",
        "{window: 1}",
        "`window` is not a bound of `retain`",
        "did you mean `windows`?",
    ),
    (
        "evict",
        "evict_cont(5)",
        "`evict_cont` is not an evictor",
        "did you mean `evict_count`?",
    ),
    ("aggregate", "", "the pipeline needs `aggregate`", "for instance"),
    ("aggregate", "{}", "`aggregate` needs at least one aggregate", ""),
    ("aggregate", "[count]", "`aggregate` must map names to aggregates, got a list", "n: count"),
    ("aggregate", "{n: coun}", "`coun` is not an aggregate", "did you mean `count`?"),
    ("aggregate", "{n: python(zero=0)}", "`python` is not an aggregate", ""),
    ("aggregate", "{n: sum}", "`sum` needs `column`", "add `column`"),
    ("aggregate", "{n: {kind: quantile, column: a, q: 5}}", "", ""),
    (
        "aggregate",
        "{op: count}",
        "the name(s) op are reserved for columns of every pane",
        "choose another name",
    ),
    (
        "aggregate",
        "{user: count}",
        "the name(s) user are both key columns and aggregates",
        "rename",
    ),
    ("write", "", "the pipeline needs `write`", "for instance"),
    ("write", "parquet(out)", "this must be a mapping", "to, late"),
    ("write", "{checkpoint: a}", "`write` needs `to`", "parquet"),
    ("write", "{to: noop}", "`write` needs `checkpoint`", "checkpoint:"),
    (
        "write",
        "{to: parket(a), checkpoint: a}",
        "`parket` is not a sink",
        "did you mean `parquet`?",
    ),
    (
        "write",
        "{to: noop, checkpoint: a, trigger: once}",
        "`trigger` of `write` can't be once",
        "available_now",
    ),
    (
        "write",
        "{to: noop, checkpoint: a, trigger: 1}",
        "`trigger` of `write` is an interval or available_now",
        "1 second",
    ),
    ("write", "{to: noop, checkpoint: a, trigger: soon}", "", ""),
    (
        "write",
        "{to: noop, checkpoint: a, shards: 0}",
        "`shards` must be a whole number greater than 0",
        "",
    ),
    ("write", "{to: console(rows=0), checkpoint: a}", "console prints at least one row", ""),
    ("write", "{to: noop, checkpoint: ''}", "`checkpoint` must be a string", ""),
    (
        "write",
        "{to: noop, checkpoint: a, metric: noop}",
        "`metric` is not a key of `write`",
        "did you mean `metrics`?",
    ),
    ("session", "{core: 2}", "`core` is not a key of `session`", "did you mean `cores`?"),
    ("session", "{conf: [a]}", "`conf` must map Spark settings to values", ""),
]


@pytest.mark.parametrize(
    ("word", "value", "rule", "hint"), RULES, ids=[f"{word}-{value}" for word, value, _, _ in RULES]
)
def test_one_mistake_is_one_problem_in_its_line(
    word: str, value: str, rule: str, hint: str
) -> None:
    text = part(word, value)
    found = only(text)
    assert rule in found.rule
    assert hint in found.hint
    assert "Hint:" not in found.rule
    lines = text.splitlines()
    if value:
        # A missing key, or a conflict of two parts, is reported at one of them.
        assert lines[found.line - 1].startswith((f"{word}:", "window:")), (
            f"line {found.line}: {lines[found.line - 1]}"
        )
    assert 1 <= found.column <= len(lines[found.line - 1]) + 1


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = """nam: x
input: {type: parqet, folder: a}
stream: {time: 5, keyy: u}
window: {type: tumbling, sizee: 1 minute}
mode: retractin
aggregate: {n: coun, m: sum}
write: {to: "parquet(${NOWHERE})", late: nope}"""
    found = problems(text)
    assert found == sorted(found)
    assert [problem.line for problem in found] == [1, 2, 3, 3, 4, 4, 5, 6, 6, 7, 7, 7]
    assert [(p.line, p.column) for p in found if "`parqet`" in p.rule] == [
        (2, text.splitlines()[1].index("parqet") + 1)
    ]


def test_a_word_said_twice_is_told_with_its_first_line() -> None:
    found = only(f"{WHOLE}\nwindow: tumbling(2 minutes)")
    assert found.rule == "`window` is given twice, first in line 5"
    assert found.line == len(f"{WHOLE}\nwindow".splitlines())


def test_input_and_inputs_exclude_each_other() -> None:
    assert "has both `input` and `inputs`" in only(part("inputs", "[{type: rate}]")).rule


def test_an_unset_variable_is_told() -> None:
    found = only(part("write", '{to: noop, checkpoint: "${NOWHERE}/a"}'))
    assert (found.rule, found.hint) == (
        "the environment has no variable `NOWHERE`",
        "export NOWHERE=..., or give a default: ${NOWHERE:-...}",
    )


@pytest.mark.parametrize(
    ("text", "rule", "line"),
    [
        ("", "the file is empty", 1),
        ("# nothing\n---\n", "the file is empty", 1),
        ("name: a\n\twindow: b\n", "this is not YAML", 2),
        ("name: [a\nwindow: b\n", "this is not YAML", 2),
        ("name: a\n---\nname: b\n", "expected a single document", 2),
        ("name: *nobody\n", "undefined alias", 1),
        ("name: a\nname2: \x07\n", "is not allowed in a YAML file", 2),
        ("- a\n- b\n", "this must be a mapping", 1),
        ("just words", "this must be a mapping", 1),
        ("name: !!python/object:os.system a\n", "cannot be read", 1),
        ("name: 2020-99-99\n", "cannot be read", 1),
        ("? [a, b]\n: c\n", "a key must be a string", 1),
        ("name: &a [*a]\n", "an anchor contains itself", 1),
        ("<<: 5\n", "`<<` takes a mapping", 1),
    ],
)
def test_texts_that_are_no_pipeline(text: str, rule: str, line: int) -> None:
    assert any(rule in found.rule and found.line == line for found in problems(text))


def test_a_tab_has_its_hint() -> None:
    assert "spaces" in only("name: a\n\twindow: b\n").hint


def test_anchors_cannot_make_a_file_endless() -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "more than 10000 parts" in only("\n".join(lines)).rule


@pytest.mark.parametrize(
    "content",
    [b"\x89PNG\r\n\x1a\n\x00\x00", b"\xff\xfe\x00n", b"PAR1\x00\x01\x02", bytes(range(256))],
)
def test_a_binary_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(content)
    with pytest.raises(ParseError, match=r"p\.yaml"):
        load(tmp_path / "p.yaml")


def test_a_file_that_is_too_large_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("#" * 1_000_001)
    for path, match in (
        (tmp_path / "p.yaml", "larger than"),
        (tmp_path / "none.yaml", "cannot be read"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(ParseError, match=match):
            load(path)


@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from([*WHOLE, "\t", "&a ", "*a", "<<: ", "${A}", "{", "- "]), max_size=60
    ).map("".join)
)
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    assert all(
        problem.line >= 1 and problem.column >= 1 and problem.rule for problem in tried(text)
    )


@given(st.data())
def test_any_change_of_a_line_is_read_or_refused_with_a_place(data: st.DataObject) -> None:
    lines = WHOLE.strip().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(0, len(lines[at])))
    lines[at] = lines[at][:cut] + data.draw(st.sampled_from(JUNK)) + lines[at][cut + 1 :]
    assert all(1 <= problem.line <= len(lines) + 1 for problem in tried("\n".join(lines)))


KAFKA = """{type: kafka, bootstrap_servers: "b:9092", topic: %s, format: text, select: %s,
  time: ts, partition: partition, watermark: "bounded(2 seconds, partitions=%s)"}"""


@pytest.mark.parametrize(
    ("topic", "select", "declared", "names"),
    [
        ("clicks", "[value as ts]", "3", ("clicks-0", "clicks-1", "clicks-2")),
        ("clicks", "[value as ts]", "[0, 1]", ("clicks-0", "clicks-1")),
        ("clicks", "[value as ts]", "[clicks-0]", ("clicks-0",)),
        ('"a, b-c"', "[value as ts]", "[a-0, b-c-0]", ("a-0", "b-c-0")),
        ("clicks", "[substr(partition, 8) AS partition]", "2", ("0", "1")),
    ],
)
def test_declared_partitions_of_kafka_have_the_names_in_the_rows(
    topic: str, select: str, declared: str, names: tuple[str, ...]
) -> None:
    read = parse(part("input", KAFKA % (topic, select, declared)))
    assert read.spec.input.watermark.declared == names


@pytest.mark.parametrize(("topic", "declared"), [("clicks", "[views-0]"), ('"a,b"', "2")])
def test_partitions_of_other_topics_are_refused(topic: str, declared: str) -> None:
    problem = only(part("input", KAFKA % (topic, "[value as ts]", declared)))
    assert "is no partition of" in problem.rule
    assert "Hint" in str(problem) or problem.hint


def test_optional_columns_are_included_by_name() -> None:
    to = "{to: noop, checkpoint: ck, include: %s}"
    assert parse(part("write", to % "time")).output.include == ("time",)
    read = parse(part("write", to % "[time, pane_id]"))
    assert read.output.include == ("time", "pane_id")
    assert read.describe()["include"] == "time, pane_id"
    problem = only(part("write", to % "[pane]"))
    assert "`include` takes pane_nonspeculative, time, pane_id, got 'pane'" in problem.rule


# The command


def write_whole(folder: Path) -> None:
    """The whole file, with the folder and the columns that it reads."""
    columns = "user string, ts timestamp, price double, ms long"
    text = WHOLE.replace("user string, ts timestamp", columns)
    (folder / "p.yaml").write_text(text)
    (folder / "data").mkdir()


def test_dry_run_says_what_would_run_and_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_whole(tmp_path)
    assert main(["run", "--dry-run", str(tmp_path / "p.yaml")]) == 0
    shown = capsys.readouterr().out
    for message in (
        "tumbling(1 minute)",
        'Every("10 seconds")',
        "retracting",
        "parquet(out/panes)",
        str(tmp_path / "out" / "ck"),
        "sum(price)",
    ):
        assert message in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "p.yaml"]


def test_dry_run_speaks_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_whole(tmp_path)
    assert main(["run", "--dry-run", "--json", str(tmp_path / "p.yaml")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["mode"], shown["every"]) == ("clicks", "retracting", "2 seconds")


def test_a_file_with_mistakes_ends_with_status_2_and_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text(part("mode", "retractin").replace("count", "coun"))
    assert main(["run", str(tmp_path / "p.yaml")]) == 2
    message = capsys.readouterr().err
    assert "5 problems" in message, "its folder and two columns are not there either"
    assert "did you mean `retracting`?" in message
    assert "did you mean `count`?" in message


def test_the_example_is_read(repository: Path) -> None:
    assert load(repository / "examples" / "pipeline.yaml").name == "clicks"


def test_the_files_in_the_documentation_are_read(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "columns.py").write_text("event_time = patience = middle = len\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    written = [
        block.code
        for block in blocks((repository / "docs" / "pipelines.md").read_text("utf-8"))
        if block.language == "yaml"
    ]
    assert len(written) > 3
    for code in written:
        # A block that is not a whole file replaces those parts of one.
        document = yaml.safe_load(code)
        text = code
        for line in WHOLE.splitlines():
            if line and line.partition(":")[0] not in document:
                text += f"{line}\n"
        assert parse(text, environment={"DB_PASSWORD": "x"})
