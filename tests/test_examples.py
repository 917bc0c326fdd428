"""The programs in examples/ run, print what they promise, and are all listed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))

CLICKS = """\
four clicks
  + ann  12:00 to 12:01  early    clicks 2  spent 17
the watermark reaches 12:01
  - ann  12:00 to 12:01  early    clicks 2  spent 17
"""
CORRECTED = """\
a click that is 5 seconds late, and one that is 45 seconds late
  - ann  12:00 to 12:01  on_time  clicks 3  spent 20
  + ann  12:00 to 12:01  late     clicks 4  spent 24
  late: bob 2025-03-14T12:00:15Z price 9, reason very_late, watermark 12:01:00
the end
{'on_time': 4, 'mildly_late': 1, 'very_late': 1, 'windows': 0, 'keys': 0, 'bytes': 0}
"""
MERGED = """\
a page view of 12:12 arrives
  - 12:00 to 12:14  on_time  2 pages: home, shoes
  - 12:20 to 12:30  on_time  1 pages: basket
  + 12:00 to 12:30  late     4 pages: home, shoes, sizes, basket
"""
CHAIN = """\
the watermark reaches 12:01
  + Lyon   on_time  clicks 3  busiest bob
  + Turin  on_time  clicks 1  busiest cid
two late clicks of ann
  - Lyon   on_time  clicks 3  busiest bob
  + Lyon   late     clicks 5  busiest ann
"""
ENRICHED = """\
12:00  ann  orders 1  spent 21  on_time
12:00  bob  orders 2  spent 11  on_time
12:01  ann  orders 1  spent 3  on_time
12:01  bob  orders 1  spent 3  on_time
12:02  ann  orders 1  spent 8  on_time
late: ann ordered a hat, async_failed: KeyError: 'hat'
asked 9 times for 7 orders; 0 came late to the windows
"""
SILENT = """\
south falls silent, north goes on
  north: active, promised 2025-03-14T12:01:05Z
  south: active, promised 2025-03-14T12:00:39Z, holds the watermark back
  the watermark is 2025-03-14T12:00:39Z
south has been silent for 30 seconds
  + 12:00 to 12:01  on_time  n 2
  north: active, promised 2025-03-14T12:01:05Z, holds the watermark back
  south: idle, promised 2025-03-14T12:00:39Z
  the watermark is 2025-03-14T12:01:05Z
"""
BACK = """\
south comes back with what it had kept, and holds the watermark back again
  - 12:00 to 12:01  on_time  n 2
  + 12:00 to 12:01  late     n 3
  north: active, promised 2025-03-14T12:01:05Z
  south: active, promised 2025-03-14T12:00:45Z, holds the watermark back
  the watermark is 2025-03-14T12:01:05Z
"""
STREAM = """\
south falls silent; time waits for it, and goes on without it after 30 seconds
  north has written all up to 12:01:10
  12:01:10 the controller: nothing new
  12:01:41 the controller: all is written up to 12:01:10, cut {'0': 9, '1': 9}
"""
HOT = """\
12:00:00  1. hat  3 bids, best 7
12:00:00  2. cup  2 bids, best 4
12:00:10  1. tea  2 bids, best 9
12:00:20  1. cup  1 bids, best 1
late: tea 99 of 12:00:05, very_late
"""
READ = """\
  12:00 has 24 readings, and that is all of them
  12:01 has 24 readings, and that is all of them
  12:02 has 3 readings, and there may be more
"""
RESUMED = """\
a process that lives, exit status 0:
  from offset 20
"""
PRINTS = {
    "accumulation": ["x: mean price 4.00, favourite tea\n"],
    "chain": [CHAIN],
    "clicks": [
        CLICKS,
        "+ bob  12:00 to 12:01  on_time  clicks 1  spent 2\n",
        "+ ann  12:00 to 12:01  on_time  clicks 3  spent 20\n",
        CORRECTED,
    ],
    "enrich": [ENRICHED],
    "hot_items": [HOT],
    "resume": [
        "a process that dies, exit status -9:\n  from offset 0\n",
        RESUMED,
        "8 panes; spent 780, and the log says 780\n",
    ],
    "sessions": ["open: ['12:00 to 12:14', '12:20 to 12:30']\n", MERGED],
    "streams": [
        STREAM,
        "  r2 read 3 of the segment 1; the group is between 12:01:10 and 12:02:10\n",
        READ,
    ],
    "tuples": [
        *("  a  [0, 3)  n 3, mean 12.0\n", "  b  [0, 3)  n 3, mean 71.0\n"),
        *("  a  [0, 4)  values [10, 12, 14, 11]\n", "  a  [2, 6)  values [14, 11, 9, 13]\n"),
        *(
            "  b  [2, 5)  values [70]\n",
            "  b  [5, 10)  values [72, 71]\n",
            "  a  [0, 11)  values [10, 12, 14, 11, 9, 13]\n",
        ),
    ],
    "watermarks": [
        SILENT,
        BACK,
        "Partition `south` holds the watermark back: ",
        "1 event from the future arrived: ",
    ],
}


def printed(path: Path, folder: Path) -> str:
    """What an example prints when it is run as people run it; it must end well and leave nothing
    behind.
    """
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []
    return done.stdout


def marked(path: Path) -> object:
    return pytest.param(
        path, id=path.stem, marks=[pytest.mark.rocksdb] if path.stem == "resume" else []
    )


@pytest.mark.parametrize("path", [marked(path) for path in EXAMPLES])
def test_example_prints_what_it_promises(path: Path, tmp_path: Path) -> None:
    output = printed(path, tmp_path)
    assert [piece for piece in PRINTS[path.stem] if piece not in output] == []


@pytest.mark.rocksdb
def test_panes_that_come_again_after_a_crash_are_the_same(tmp_path: Path) -> None:
    dies, lives = printed(REPOSITORY / "examples" / "resume.py", tmp_path).split(
        "a process that lives"
    )
    again = [
        line.removesuffix(" (again)") for line in lives.splitlines() if line.endswith(" (again)")
    ]
    assert len(again) == 2
    assert set(again) <= set(dies.splitlines())


def test_every_example_is_tested_and_told_of() -> None:
    assert sorted(PRINTS) == [path.stem for path in EXAMPLES]
    assert "(examples)" in (REPOSITORY / "README.md").read_text("utf-8")
