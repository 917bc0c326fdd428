"""Key secrets of tests: the order of the panes of one window follows them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidegate.operators import key_secret


def fix_secrets(patch: pytest.MonkeyPatch) -> None:
    """Give every new state the same secret."""
    patch.setattr(key_secret, "secrets", SimpleNamespace(token_bytes=bytes))
