"""The conformance scenarios that Tidegate does not follow, as `CONTRADICTIONS.md` lists them."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[2] / "conformance"
CONTRADICTIONS = dict(
    re.findall(
        r"^\| `([\w.]+)` \| (fail|unsupported) \| .+ \|$",
        (_FOLDER / "CONTRADICTIONS.md").read_text("utf-8"),
        re.MULTILINE,
    )
)
"""The outcome of each of these scenarios."""
