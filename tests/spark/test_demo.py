"""`tidegate demo` from its clicks to its picture."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from tidegate.cli import main
from tidegate.cli.demo_clicks import FILES
from tidegate.spark.environment.session import running_session

pytestmark = pytest.mark.slow


def png(data: bytes) -> tuple[int, int, int]:
    """Width, height and how many bytes of pixels; every chunk has the right checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, size, pixels, last = 8, (0, 0), b"", b""
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        content = data[at + 8 : at + 8 + length]
        assert (
            zlib.crc32(kind + content)
            == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        )
        if kind == b"IHDR":
            size = struct.unpack(">II", content[:8])
        if kind == b"IDAT":
            pixels += content
        at, last = at + 12 + length, kind
    assert last == b"IEND"
    return *size, len(zlib.decompress(pixels))


def test_it_shows_panes_corrections_late_rows_and_a_picture(spark, tmp_path, capsys):
    folder = tmp_path / "demo"
    assert main(["demo", "--folder", str(folder)]) == 0
    told = capsys.readouterr().out
    assert running_session() is spark, "a session that was there before stays"
    lines = told.splitlines()
    assert "\x1b" not in told, "colours are for terminals"
    assert sum(line.startswith("  batch ") for line in lines) == FILES
    assert lines[-1].startswith("Emits minus retracts equal a recount of the clicks in all ")
    for word in (
        "early",
        "on_time",
        "late",
        "  - ann",
        "very_late",
        "future",
        "arrived twice",
        "<e-",
        "<O-",
        "|",
    ):
        assert word in told, word
    late = [
        line.split()[0]
        for line in lines
        if line.startswith("  ") and "-" in line.split()[0] and " time " in line
    ]
    assert sorted(late) == [
        "10-lost0",
        "10-lost1",
        "7-future",
        "8-broken",
        "8-null",
    ], "each of them with its reason"
    assert max(map(len, lines[lines.index("") :])) <= 200
    width, height, pixels = png((folder / "picture.png").read_bytes())
    assert (width, height) == (1210, 715)
    assert pixels >= width * height * 3
    assert (folder / "picture.png").stat().st_size > 20_000, "an empty picture is smaller"

    # Again into the same folder, which it knows as its own.
    assert main(["demo", "--json", "--folder", str(folder)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["output"] for row in rows} == {"panes", "late", "metrics"}
    seen = {(row["op"], row["timing"]) for row in rows if row["output"] == "panes"}
    assert (
        seen >= {("+", "early"), ("-", "early"), ("+", "on_time"), ("-", "on_time"), ("+", "late")}
        or ("-", "late") in seen
    )
    net: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["output"] == "panes":
            place = row["user"], row["window_start"]
            net[place] = net.get(place, 0) + (row["clicks"] if row["op"] == "+" else -row["clicks"])
    assert all(clicks > 0 for clicks in net.values())
    counted = [row for row in rows if row["output"] == "metrics"]
    assert sum(row["duplicates"] for row in counted) == 4
    assert (
        sum(row["late_rows"] for row in counted)
        == sum(row["output"] == "late" for row in rows)
        == 5
    )


def test_a_folder_of_somebody_else_is_not_touched(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("keep this")
    assert main(["demo", "--folder", str(tmp_path)]) == 2
    assert "is not empty and was not created by the demo. Hint: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
