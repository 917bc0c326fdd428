"""Test support: strategies, the reference model, servers, and programs that tests start and kill."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
