"""The parser of pipeline files: translates parts to the Python API, and collects all problems."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.api.streams import Stream, Windowed, stream
from tidegate.errors import ParseError, SpecError
from tidegate.pipeline import inputs as sources
from tidegate.pipeline import outputs
from tidegate.pipeline.checks import Draft, check
from tidegate.pipeline.diagnostics import Diagnostics
from tidegate.pipeline.document import Part, read
from tidegate.pipeline.function_calls import Call, Maker, guilty, make, read_call
from tidegate.pipeline.inputs import PipelineInput
from tidegate.pipeline.outputs import OUTPUTS, PipelineOutput
from tidegate.pipeline.pipeline import Pipeline, united
from tidegate.spark.environment.session import session
from tidegate.spec import aggregates, evictors, watermarks, windows
from tidegate.spec.json_form import function_from
from tidegate.spec.operator import AggregateSpec, Options

LARGEST = 1_000_000
PARTS = (
    *(
        "name",
        "input",
        "inputs",
        "stream",
        "window",
        "trigger",
        "mode",
        "allow_lateness",
        "options",
        "retain",
        "evict",
        "aggregate",
        "write",
    ),
    "session",
)
STREAM = ("time", "key", "id", "offset", "partition", "watermark")
MODES = ("accumulating", "discarding", "retracting")
WINDOWS: dict[str, Maker] = {
    **{
        made.__name__: made
        for made in (
            windows.tumbling,
            windows.hopping,
            windows.sliding,
            windows.cumulative,
            windows.session,
            windows.calendar,
        )
    },
    "global": windows.global_window,
}
WATERMARKS: dict[str, Maker] = {
    made.__name__: made
    for made in (
        watermarks.bounded,
        watermarks.ascending,
        watermarks.lagging,
        watermarks.punctuated,
        watermarks.noted,
        watermarks.per_key,
    )
}
# Functions are not data, so aggregates that take functions are available in Python only.
AGGREGATES: dict[str, Maker] = {
    name: getattr(aggregates, name)
    for name in (
        *(
            "count",
            "sum",
            "mean",
            "min",
            "max",
            "variance",
            "stddev",
            "first",
            "last",
            "arg_min",
            "arg_max",
            "any",
            "all",
            "approx_distinct",
        ),
        *("quantile", "approx_quantile", "median", "top_k", "distinct", "count_distinct", "list_"),
    )
}
EVICTORS: dict[str, Maker] = {
    made.__name__: made
    for made in (evictors.evict_count, evictors.evict_time, evictors.evict_delta)
}
RETAIN = ("time", "windows", "messages", "bytes")
SESSION = tuple(name for name in inspect.signature(session).parameters if name != "name")

Verb = Callable[[Windowed], Windowed]


def load(path: str | Path, *, checked: bool = False) -> Pipeline:
    """The pipeline of a file; relative paths are relative to the file.

    `checked`: with the checks of `Pipeline.check`, of the parts that are right if others are not.
    """
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST:
            raise ParseError(
                f"pipeline file `{path}` is larger than {LARGEST} bytes. Hint: is it the right"
                " file?"
            )
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(
            f"pipeline file `{path}` is not UTF-8 text (byte {error.start}). Hint: is it the right"
            " file?"
        ) from None
    except OSError as error:
        raise ParseError(
            f"pipeline file `{path}` cannot be read: {error.strerror}. Hint: check its name"
        ) from None
    return parse(text, name=str(path), folder=path.resolve().parent, checked=checked)


def parse(
    text: str,
    *,
    name: str = "<text>",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    checked: bool = False,
) -> Pipeline:
    """The pipeline of a YAML text.

    `name` is used in errors, `folder` is the base of relative paths. `checked`: see `load`.
    """
    problems = Diagnostics(name)
    root = read(text, problems, environment)
    parser = _PipelineParser(problems, folder or Path.cwd())
    made = parser.pipeline(root, Path(name).stem if name != "<text>" else "pipeline")
    if checked:
        check(parser.draft, problems)
    problems.raise_any()
    assert made is not None, "a pipeline without problems is complete"  # noqa: S101
    return made


class _PipelineParser:
    """One parse; every method reports its problems and continues with the rest."""

    def __init__(self, problems: Diagnostics, folder: Path) -> None:
        self.problems, self.folder = problems, folder
        self.draft = Draft(Part({}, (1, 1)), (), {}, None, None)

    def pipeline(self, root: Part, name: str) -> Pipeline | None:
        parts = self.section(root, "a part of a pipeline", PARTS)
        given = self.inputs(parts, root)
        verbs = self.windowing(parts, root)
        computed = self.aggregates(parts, root, given)
        output = self.output(parts, root)
        words = self.session(parts)
        title = self.text(parts["name"], "`name`") if "name" in parts else name
        spec = None if self.problems.found else self.spec(given, verbs, computed, parts)
        right = {word: one for word, one in computed.items() if one is not None}
        is_whole = spec is not None and not self.problems.found
        window: list[Any] = [verb for part, verb in verbs if part is parts.get("window")]
        drafted = spec if is_whole else _drafted(given, window)
        self.draft = Draft(root, given, right, drafted, output, is_whole)
        if spec is None or output is None:
            return None
        shown = {
            "window": _written(parts["window"]),
            "aggregate": {word: _written(part) for word, part in parts["aggregate"].value.items()},
        }
        windowing = _in_order([verb for _, verb in verbs])
        return Pipeline(
            title or name,
            tuple(given),
            spec,
            windowing,
            computed,
            output,
            self.folder,
            shown,
            words,
            self.problems.name,
            root,
        )

    def section(self, part: Part, what: str, known: tuple[str, ...]) -> dict[str, Part]:
        """The known keys of a mapping; unknown ones are reported and dropped."""
        if not part.is_mapping:
            self.problems.add(
                part,
                f"this must be a mapping (`key: value`), got {_kind(part)}",
                f"its keys are {', '.join(known)}",
            )
            return {}
        for word, inner in part.value.items():
            if word not in known:
                self.problems.unknown(inner.key or inner, word, what, known)
        return {word: inner for word, inner in part.value.items() if word in known}

    def need(self, parts: Mapping[str, Part], word: str, root: Part, hint: str) -> Part | None:
        found = parts.get(word)
        if found is None or found.value is None:
            self.problems.add(
                root if found is None else found, f"the pipeline needs `{word}`", hint
            )
            return None
        return found

    def text(self, part: Part, what: str, hint: str = "") -> str | None:
        if not isinstance(part.value, str) or not part.value.strip():
            self.problems.add(
                part,
                f"{what} must be a string, got {_kind(part)}",
                "put it in quotes" if isinstance(part.value, int | float) else hint,
            )
            return None
        return part.value

    def texts(self, part: Part, what: str) -> tuple[str, ...]:
        """A string, or a list of strings."""
        items = part.value if isinstance(part.value, list) else [part]
        return tuple(text for item in items if (text := self.text(item, what)) is not None)

    def flag(self, part: Part, what: str) -> bool:
        if not isinstance(part.value, bool):
            self.problems.add(part, f"{what} must be true or false, got {_kind(part)}")
        return part.value is True

    def made(self, part: Part, makers: Mapping[str, Maker], what: str) -> Any:
        call = read_call(part, what, self.problems, makers)
        return (
            None if call is None else make(self.placed(call, makers), makers, what, self.problems)
        )

    def placed(self, call: Call, makers: Mapping[str, Maker]) -> Call:
        """The same call with relative paths made absolute."""
        if call.name not in makers:
            return call
        names = [*inspect.signature(makers[call.name]).parameters, *[""] * len(call.values)]
        values = tuple(
            self.path(value) if outputs.is_path(call.name, name) else value
            for name, value in zip(names, call.values, strict=False)
        )
        named = {
            word: (
                dataclasses.replace(part, value=self.path(part.value))
                if outputs.is_path(call.name, word)
                else part
            )
            for word, part in call.named.items()
        }
        return dataclasses.replace(call, values=values, named=named)

    def path(self, value: Any) -> Any:
        return (
            value
            if not isinstance(value, str) or "://" in value
            else str(self.folder / Path(value).expanduser())
        )

    # Inputs

    def inputs(self, parts: Mapping[str, Part], root: Part) -> list[PipelineInput]:
        if "input" in parts and "inputs" in parts:
            self.problems.add(
                parts["inputs"].key or parts["inputs"],
                "the pipeline has both `input` and `inputs`",
                "list all of them in `inputs`",
            )
        given = parts.get("input", parts.get("inputs"))
        shared = (
            self.section(parts["stream"], "a key of `stream`", STREAM) if "stream" in parts else {}
        )
        if given is None or not given.value:
            self.problems.add(
                root if given is None else given,
                "the pipeline needs `input`",
                "for instance `input: {type: parquet, folder: data}`",
            )
            self.stream(shared)
            return []
        items = given.value if isinstance(given.value, list) else [given]
        return [made for item in items if (made := self.input(item, shared)) is not None]

    def input(self, part: Part, shared: Mapping[str, Part]) -> PipelineInput | None:
        call = read_call(part, "an input", self.problems) or Call(part, "")
        own = {
            word: call.named[word]
            for word in (*STREAM, "direct", "where", "select")
            if word in call.named
        }
        rest = dataclasses.replace(
            call, named={word: value for word, value in call.named.items() if word not in own}
        )
        columns = {**shared, **{word: value for word, value in own.items() if word in STREAM}}
        words = self.stream(columns)
        direct = self.flag(own["direct"], "`direct`") if "direct" in own else False
        where = self.text(own["where"], "`where`") if "where" in own else None
        select = self.texts(own["select"], "a column of `select`") if "select" in own else ()
        source = (
            make(self.placed(rest, sources.MAKERS), sources.MAKERS, "an input", self.problems)
            if call.name
            else None
        )
        if source is None:
            return None
        words = self.attempt(
            columns.get("watermark", part), sources.with_partition_names, source, words, select
        )
        if words is None:
            return None
        shown = {
            "from": _written(part),
            **({"direct": True} if direct else {}),
            **{word: _written(value) for word, value in columns.items()},
        }
        return self.attempt(
            own.get("direct", part), PipelineInput, source, words, direct, where, select, shown
        )

    def stream(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for word, part in parts.items():
            if word == "watermark":
                found[word] = self.made(part, WATERMARKS, "a watermark")
            elif word == "key":
                items = part.value if isinstance(part.value, list) else [part]
                found[word] = tuple(self.column(item, "a column of `key`") for item in items)
            else:
                found[word] = self.column(part, f"`{word}`")
        return found

    def column(self, part: Part, what: str) -> Any:
        """The name of a column, or a function over columns: `{function: "module:name"}`."""
        if part.is_mapping:
            known = self.section(part, f"a key of {what}", ("function",))
            if "function" not in known and not part.value:
                self.problems.add(part, f"{what} needs `function`", 'function: "module:name"')
            return self.attempt(part, function_from, part.plain()) if known else None
        return self.text(part, what)

    # Windowing

    def windowing(
        self, parts: Mapping[str, Part], root: Part
    ) -> list[tuple[Part, Verb | Callable[[Stream], Windowed]]]:
        """The API calls for each part, with the part."""
        given = self.need(parts, "window", root, "for instance `window: tumbling(1 minute)`")
        window = None if given is None else self.made(given, WINDOWS, "a window")
        verbs: list[tuple[Part, Any]] = []
        shown = "for instance `AfterWatermark(early=AfterCount(2))`"
        if "trigger" in parts and (text := self.text(parts["trigger"], "`trigger`", shown)):
            verbs.append((parts["trigger"], lambda windowed: windowed.trigger(text)))
        if "mode" in parts and (mode := self.text(parts["mode"], "`mode`")) is not None:
            if mode in MODES:
                verbs.append((parts["mode"], lambda windowed: getattr(windowed, mode)()))
            else:
                self.problems.unknown(parts["mode"], mode, "a mode", MODES)
        if "allow_lateness" in parts:
            lateness = parts["allow_lateness"].plain()
            verbs.append(
                (parts["allow_lateness"], lambda windowed: windowed.allow_lateness(lateness))
            )
        if "evict" in parts:
            evictor = self.made(parts["evict"], EVICTORS, "an evictor")
            verbs.append((parts["evict"], lambda windowed: windowed.evict(evictor)))
        if "retain" in parts:
            bounds = {
                word: part.plain()
                for word, part in self.section(
                    parts["retain"], "a bound of `retain`", RETAIN
                ).items()
            }
            verbs.append((parts["retain"], lambda windowed: windowed.retain(**bounds)))
        if "options" in parts:
            known = ("semantics", *(field.name for field in dataclasses.fields(Options)))
            options = {
                word: part.plain()
                for word, part in self.section(parts["options"], "an option", known).items()
            }
            verbs.append((parts["options"], lambda windowed: windowed.options(**options)))
        # Each verb is tried on a stream of its own, so that each reports its own problem.
        for part, verb in verbs:
            self.attempt(part, _whole, verb, _any_stream())
        return (
            verbs if given is None else [(given, lambda streamed: streamed.window(window)), *verbs]
        )

    def attempt(self, part: Part, action: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """The result of an API call; its error becomes a problem of the part."""
        try:
            return action(*given, **named)
        except (SpecError, TypeError) as error:
            self.problems.add(
                guilty(part, part.value if part.is_mapping else {}, str(error)), str(error)
            )
            return None

    def aggregates(
        self, parts: Mapping[str, Part], root: Part, inputs: Sequence[PipelineInput]
    ) -> dict[str, Any]:
        given = self.need(
            parts, "aggregate", root, "for instance `aggregate: {n: count, total: sum(price)}`"
        )
        if given is None:
            return {}
        if not given.is_mapping:
            self.problems.add(
                given,
                f"`aggregate` must map names to aggregates, got {_kind(given)}",
                "for instance `n: count`",
            )
            return {}
        found = {
            name: self.made(part, AGGREGATES, "an aggregate") for name, part in given.value.items()
        }
        if not found:
            self.attempt(given, _any_stream().aggregate)
        keys = {name for one in inputs for name in one.stream.get("key", ())}
        for name, aggregate in found.items():
            if aggregate is not None:
                tried = _in_any_window(stream(time="time", key=(name,) if name in keys else ()))
                place = Part(None, given.value[name].key or given.place)
                if self.attempt(place, tried.aggregate, **{name: aggregate}) is None:
                    found[name] = None
        return found

    def spec(
        self,
        given: list[PipelineInput],
        verbs: list[tuple[Part, Any]],
        computed: Mapping[str, Any],
        parts: Mapping[str, Part],
    ) -> Any:
        """The complete specification; the API checks rules between parts."""
        where = parts.get("stream", parts.get("input", parts.get("inputs", parts["window"])))
        one = self.attempt(where, lambda: united([stream(**one.stream) for one in given]))
        for part, verb in verbs:
            # A conflict between two parts is reported at the second.
            one = None if one is None else self.attempt(part, _whole, verb, one)
        panes = (
            None
            if one is None
            else self.attempt(parts["aggregate"], lambda: one.aggregate(**computed))
        )
        return None if panes is None else panes.spec

    # Outputs and session

    def output(self, parts: Mapping[str, Part], root: Part) -> PipelineOutput | None:
        given = self.need(
            parts,
            "write",
            root,
            "for instance `write: {to: parquet(out/panes), checkpoint: out/checkpoint}`",
        )
        if given is None:
            return None
        words = self.section(
            given, "a key of `write`", (*OUTPUTS, "checkpoint", "trigger", "shards", "include")
        )
        if given.is_mapping and "to" not in words:
            self.problems.add(
                given,
                "`write` needs `to`, the sink of the panes",
                f"one of {', '.join(outputs.SINKS)}",
            )
        if given.is_mapping and "checkpoint" not in words:
            self.problems.add(
                given,
                "`write` needs `checkpoint`, the folder from which a restart continues",
                "`checkpoint: out/checkpoint`",
            )
        known = outputs.makers()
        read = {name: self.made(words[name], known, "a sink") for name in OUTPUTS if name in words}
        sinks = {name: sink for name, sink in read.items() if sink is not None}
        shown = {name: _written(words[name]) for name in sinks}
        checkpoint = (
            self.text(words["checkpoint"], "`checkpoint`") if "checkpoint" in words else None
        )
        rest: dict[str, Any] = {
            word: words[word].plain() for word in ("trigger", "shards") if word in words
        }
        if "include" in words:
            rest["include"] = self.texts(words["include"], "a column of `include`")
        made = PipelineOutput(sinks, self.path(checkpoint or ""), shown=shown)
        for word, value in rest.items():
            changed = self.attempt(words[word], partial(dataclasses.replace, made, **{word: value}))
            made = changed or made
        return made if checkpoint else None

    def session(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        if "session" not in parts:
            return {}
        words = {
            word: part.plain()
            for word, part in self.section(parts["session"], "a key of `session`", SESSION).items()
        }
        if not isinstance(words.get("conf", {}), dict):
            self.problems.add(
                parts["session"].value["conf"], "`conf` must map Spark settings to values"
            )
        cores = words.get("cores", 1)
        if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
            self.problems.add(
                parts["session"].value["cores"],
                f"`cores` must be a whole number greater than 0, got {cores!r}",
            )
        if isinstance(words.get("packages"), str):
            words["packages"] = [words["packages"]]
        return words


def _drafted(
    given: Sequence[PipelineInput], windowing: Sequence[Callable[[Any], Windowed]]
) -> AggregateSpec | None:
    """A specification over these inputs, with the window if it is right, whatever else is wrong."""
    for windowed in (*windowing, _in_any_window):
        with contextlib.suppress(SpecError, TypeError, IndexError):
            one = windowed(united([stream(**words.stream) for words in given]))
            return one.aggregate(_looked_at=aggregates.count()).spec
    return None


def _any_stream() -> Windowed:
    """A stream to try API calls on."""
    return _in_any_window(stream(time="time"))


def _in_any_window(given: Stream) -> Windowed:
    return given.window(windows.tumbling("1 minute"))


def _whole(verb: Callable[[Any], Windowed], given: Any) -> Windowed:
    """The result of a call, checked as a complete specification: most rules apply to those."""
    made = verb(given)
    made.aggregate(_looked_at=aggregates.count())
    return made


def _in_order(verbs: list[Any]) -> Callable[[Stream], Windowed]:
    """All calls applied in order."""

    def applied(given: Any) -> Any:
        for verb in verbs:
            given = verb(given)
        return given

    return applied


def _written(part: Part) -> str:
    """The part as written, on one line."""
    if not part.is_mapping:
        return (
            ", ".join(map(str, part.shown())) if isinstance(part.value, list) else str(part.shown())
        )
    words = part.shown()
    inside = ", ".join(
        f"{word}={value}"
        for word, value in words.items()
        if word not in ("type", "kind", "direct", *STREAM)
    )
    return f"{words.get('type', words.get('kind'))}({inside})"


def _kind(part: Part) -> str:
    if part.value is None:
        return "nothing"
    return (
        "a mapping"
        if part.is_mapping
        else "a list"
        if isinstance(part.value, list)
        else f"`{part.written or part.value}`"
    )
