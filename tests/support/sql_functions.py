"""Scalar functions of Flink and Spark over one row, with the values that both engines return."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

ROW: dict[str, Any] = {
    "ts": datetime(2020, 4, 15, 8, 5, 30, 123_000, UTC),
    "day": date(2020, 4, 15),
    "name": "Hello World",
    "n": 7,
    "price": 12.345,
    "numbers": [3, 1, 3, 2],
    "counts": {"a": 1, "b": 2},
    "doc": '{"a": {"b": "x"}, "n": [1, 2]}',
}
DEFINITION = """
CREATE TABLE t (ts TIMESTAMP(3), day DATE, name STRING, n INT, price DOUBLE, numbers ARRAY<INT>,
                counts MAP<STRING, INT>, doc STRING);
"""
VALUES: dict[str, Any] = {
    "'it''s'": "it's",
    "name SIMILAR TO '(Hello|Bye)%'": True,
    "'a.c' SIMILAR TO 'a.c' AND 'abc' NOT SIMILAR TO 'a.c'": True,
    "DATE_FORMAT(ts, 'yyyy-MM-dd HH:mm:ss.SSS')": "2020-04-15 08:05:30.123",
    "DATE_FORMAT(ts, 'dd/MM/yy''T''hh a, EEE')": "15/04/20T08 AM, Wed",
    "TO_TIMESTAMP('2020-04-15T08:05:30.123', 'yyyy-MM-dd''T''HH:mm:ss.SSS') = ts": True,
    "TO_TIMESTAMP('2020-04-15 10:05:30.123+02:00', 'yyyy-MM-dd HH:mm:ss.SSSXXX') = ts": True,
    "UNIX_TIMESTAMP('15.04.2020', 'dd.MM.yyyy')": 1586908800,
    "UNIX_TIMESTAMP('2020-04-15 08:05:30')": 1586937930,
    "FROM_UNIXTIME(44, 'yyyy/MM/dd HH')": "1970/01/01 00",
    "DATE_ADD(day, 2)": date(2020, 4, 17),
    "DATE_SUB(ts, 2)": date(2020, 4, 13),
    "EXTRACT(DOW FROM ts)": 4,
    "EXTRACT(EPOCH FROM ts)": 1586937930,
    "EXTRACT(MILLISECOND FROM ts)": 123,
    "WEEK(ts)": 16,
    "ts - INTERVAL '1 8' DAY TO HOUR": datetime(2020, 4, 14, 0, 5, 30, 123_000, UTC),
    "FLOOR(ts TO HOUR)": datetime(2020, 4, 15, 8, tzinfo=UTC),
    "CEIL(ts TO HOUR)": datetime(2020, 4, 15, 9, tzinfo=UTC),
    "CONVERT_TZ('2020-07-01 12:00:00', 'Europe/Berlin', 'UTC')": "2020-07-01 10:00:00",
    "TRUNCATE(price, 2)": 12.34,
    "FROM_BASE64('aGVsbG8=')": "hello",
    "IS_DECIMAL('-1.5') AND NOT IS_DECIMAL('x')": True,
    "BTRIM('  a ')": "a",
    "ELT(2, 'a', 'b')": "b",
    "REGEXP_SUBSTR('abc', 'b.')": "bc",
    "REGEXP_SUBSTR('abc', 'x')": None,
    "SHA256('a')": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
    "ROUND(E(), 3)": 2.718,
    "counts['b']": 2,
    "MAP['x', 8, 'y', 9]['y']": 9,
    "ELEMENT(ARRAY[5])": 5,
    "ROW(n, name)": {"EXPR$0": 7, "EXPR$1": "Hello World"},
    "ARRAY_DISTINCT(numbers)": [3, 1, 2],
    "ARRAY_UNION(numbers, ARRAY[4, 1])": [3, 1, 2, 4],
    "ARRAY_EXCEPT(numbers, ARRAY[1])": [3, 2],
    "ARRAY_REVERSE(numbers)": [2, 3, 1, 3],
    "doc IS JSON AND NOT name IS JSON": True,
    "JSON_VALUE(doc, '$.a.b')": "x",
}
QUERY = "SELECT " + ", ".join(f"{text} AS c{at}" for at, text in enumerate(VALUES)) + " FROM t"


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """The values of a row by expression; instants are in UTC."""
    found = {}
    for at, text in enumerate(VALUES):
        value = row[f"c{at}"]
        if isinstance(value, datetime):
            value = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        found[text] = value
    return found
