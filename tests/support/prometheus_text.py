"""A strict reader of Prometheus text: what a collector would refuse is an error here too."""

from __future__ import annotations

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN|\+Inf)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
Labels = frozenset[tuple[str, str]]


def parse(text: str) -> dict[tuple[str, Labels], float]:
    """The samples; each family is described before its samples, which stand together, and a counter
    never falls below zero.
    """
    assert text.endswith("\n")
    assert "\r" not in text
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    found: dict[tuple[str, Labels], float] = {}
    family = ""
    for line in text.removesuffix("\n").split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) (\S.*)", line):
            family = match[1]
            assert family not in helped, f"{family} is described twice, or its samples stand apart"
            helped.add(family)
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            assert match[1] == family
            assert match[1] not in kinds
            kinds[family] = match[2]
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, f"no sample: {line!r}"
            assert match[1] == family
            assert family in kinds, f"{line!r} comes before its type"
            assert (kinds[family] == "counter") == family.endswith("_total"), family
            labels = _labels(match[2] or "")
            assert (family, labels) not in found, f"{line!r} comes twice"
            found[family, labels] = float(match[3])
            assert kinds[family] == "gauge" or found[family, labels] >= 0
    assert kinds.keys() == helped
    return found


def _labels(text: str) -> Labels:
    found, at = [], 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match is not None, f"no labels: {text!r}"
        found.append(
            (
                match[1],
                re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], match[2]),
            )
        )
        at = match.end()
    assert len({name for name, _ in found}) == len(found)
    return frozenset(found)


def by_label(samples: dict[tuple[str, Labels], float], family: str, label: str) -> dict[str, float]:
    """The samples of a family by one of their labels."""
    return {
        dict(labels)[label]: value for (name, labels), value in samples.items() if name == family
    }


def single(samples: dict[tuple[str, Labels], float], family: str) -> float:
    """The one sample of a family."""
    (value,) = [value for (name, _), value in samples.items() if name == family]
    return value
