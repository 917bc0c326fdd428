"""Secrets are hidden wherever a pipeline, an option or an error is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from tidegate.cli import main
from tidegate.errors import SinkError, TidegateError
from tidegate.pipeline import load, parse
from tidegate.redaction import (
    HIDDEN,
    is_secret,
    masked_sql,
    redacted,
    redacted_lines,
    redacted_options,
)
from tidegate.spark.sinks import delta, parquet, postgres

PASSWORDS = (
    "hunter2",
    "hunter2 hunter3",
    "hunter2@hunter3",
    "hunter2&hunter3",
    "hunter2;hunter3",
    "hunter2$hunter3",
    "hunter2/hunter3:hunter4",
    "hunter2'hunter3",
    'hunter2"hunter3',
    "hunter2,hunter3)hunter4",
)
SECRET_NAMES = (
    "password",
    "sasl.password",
    "kafka.sasl.jaas.config",
    "ssl.key.pem",
    "ssl.keystore.password",
    "AWS_SECRET_ACCESS_KEY",
    "accountKey",
    "api-key",
    "delegation.token",
    "fs.s3a.secret.key",
    "fs.azure.sas.container.account.blob.core.windows.net",
    "schema.registry.basic.auth.user.info",
    "sasl.oauthbearer.config",
    "pass",
    "auth",
)


def document(password: str) -> str:
    """A pipeline file with the password in every place that may hold one."""
    return yaml.safe_dump(
        {
            "input": {
                "type": "kafka",
                "bootstrap_servers": "a:9092",
                "topic": "t",
                "format": "text",
                "options": {
                    "kafka.sasl.password": password,
                    "kafka.sasl.jaas.config": f'module required username="u" password="{password}";',
                    "address": f"https://me:{password}@host/path",
                },
            },
            "stream": {"time": "kafka_time"},
            "window": "tumbling(1 minute)",
            "aggregate": {"n": "count()"},
            "write": {
                "to": {
                    "type": "postgres",
                    "dsn": f"postgresql://u:{password}@h/d",
                    "table": "panes",
                },
                "late": {
                    "type": "postgres",
                    "dsn": f"host=h password={password} user=u",
                    "table": "l",
                },
                "metrics": f"parquet(s3://me:{password}@bucket/x)"
                if not set(password) & set(",'\"")
                else "noop",
                "checkpoint": "out/ck",
            },
            "session": {"conf": {"spark.hadoop.fs.s3a.secret.key": password}},
        }
    )


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_is_in_no_description_of_a_pipeline(
    password: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(document(password))
    assert main(["run", "--dry-run", str(file)]) == 0
    assert main(["run", "--dry-run", "--json", str(file)]) == 0
    pipeline = load(file)
    shown = "".join([*capsys.readouterr(), repr(pipeline), json.dumps(pipeline.describe())])
    assert "hunter" not in shown
    assert "panes" in shown
    assert "a:9092" in shown


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_is_in_no_problem_of_a_file(password: str) -> None:
    text = document(password).replace("format: text", "format: texts").replace("1 minute", "1 m1n")
    with pytest.raises(TidegateError) as caught:
        parse(text)
    assert "hunter" not in str(caught.value)
    broken = {"type": "kafka", "bootstrap_servers": "a", "topic": "t", "format": "text"}
    broken["options"] = {"sasl.password": password, "other": [1]}
    with pytest.raises(TidegateError, match="scalar values") as caught:
        parse(yaml.safe_dump({**yaml.safe_load(document("x")), "input": broken}))
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_options_that_hold_secrets_are_known_by_name(name: str) -> None:
    assert is_secret(name)
    assert redacted_options({name: "x", "group.id": "g"}) == {name: HIDDEN, "group.id": "g"}


@pytest.mark.parametrize("name", ["key", "topic", "security.protocol", "sasl.mechanism", "monkey"])
def test_other_options_are_shown(name: str) -> None:
    assert redacted_options({name: "value"}) == {name: "value"}


def test_a_reference_to_a_variable_is_shown_and_its_default_is_not() -> None:
    assert redacted_options({"password": "${PASSWORD}"}) == {"password": "${PASSWORD}"}
    assert redacted("host=h password=${PASSWORD}") == "host=h password=${PASSWORD}"
    assert redacted_options({"password": "${PASSWORD:-hunter2}"}) == {"password": HIDDEN}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("host=h password='a b' user=u", "host=h password=*** user=u"),
        (r"password='a\' b' user=u", "password=*** user=u"),
        ("password=a b user=u", "password=*** user=u"),
        ("postgresql://u:p@ss@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("https://token@h/d?x=a@b", "https://***@h/d?x=a@b"),
        ("HTTP://h/a@b", "HTTP://h/a@b"),
        ("kafka://h:9092/p?sasl.password=a&b=c", "kafka://h:9092/p?sasl.password=***"),
        ("{'sasl.password': 'x', 'group.id': 'g'}", "{'sasl.password': ***, 'group.id': 'g'}"),
        ("run --password a b --user u", "run --password *** --user u"),
        ("ssl.key=-----BEGIN PRIVATE KEY-----\nAbCd\nEfGh== -----END", "ssl.key=***"),
        ("tumbling(1 minute, offset=1 second)", "tumbling(1 minute, offset=1 second)"),
    ],
)
def test_texts_lose_their_secrets_and_keep_the_rest(text: str, shown: str) -> None:
    assert redacted(text) == shown


@given(st.text(min_size=1).map(lambda text: f"\x01{text}\x01"))
@examples(100)
def test_any_password_is_hidden_in_urls_and_at_the_end_of_texts(password: str) -> None:
    assert "\x01" not in redacted(f"postgresql://u:{password}@h/d")
    assert "\x01" not in str(redacted_options({"sasl.password": password}))


def test_lines_are_redacted_one_by_one() -> None:
    assert redacted_lines("a password=x y\nnext") == "a password=***\nnext"


def test_sinks_hide_passwords_of_addresses() -> None:
    for sink in (parquet("s3://me:hunter2@bucket/x"), delta("s3://me:hunter2@bucket/x")):
        assert "hunter2" not in repr(sink)
        assert "bucket" in repr(sink)


@pytest.mark.parametrize("dsn", ["host=h password=my hunter2", "postgresql://u:p@hunter2@h/d"])
def test_an_invalid_address_is_refused_without_its_password(dsn: str) -> None:
    pytest.importorskip("psycopg")
    from support.sink_rows import late_target

    with pytest.raises(SinkError, match="address of the PostgreSQL server is invalid") as caught:
        postgres(dsn, "t").check(late_target("q"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["https://h/f?sv=1&sig=hunter2%3D", "X-Amz-Signature=hunter2", "Authorization: Bearer hunter2"],
)
def test_signatures_and_tokens_of_requests_are_hidden(text: str) -> None:
    assert "hunter2" not in redacted(text)


_OPTIONS = (
    "'properties.sasl.password'='hunter2{odd}'",
    "'password' = 'hunter2{odd}'",
    "'url'='jdbc:postgresql://h/db?user=u&password=hunter2{odd}'",
    "'url'='postgresql://u:hunter2{odd}@h/db'",
    "'password' 'hunter2{odd}'",
    "'password'='hunter2{odd}",
)


@pytest.mark.parametrize("odd", ["", "@", "''", " x", ";", "\\", "é"])
@pytest.mark.parametrize("option", _OPTIONS)
@pytest.mark.parametrize("mistake", ["SELECT * FROM nope", "SELEC", "CREATE TABLE"])
def test_an_error_of_sql_shows_no_secret_of_the_line(mistake: str, option: str, odd: str) -> None:
    table = f"CREATE TABLE t (ts TIMESTAMP(3)) WITH ({option.format(odd=odd)}, 'topic'='t');"
    with pytest.raises(tg.SqlError) as refused:
        tg.sql(f"-- don't\n{table} {mistake}")
    assert "hunter2" not in f"{refused.value}{refused.value!r}"


def test_a_masked_statement_keeps_its_places_and_other_literals() -> None:
    text = "WITH ('topic'='it''s', 'password'='a\nb', 'x'='y') WHERE k IN ('password', 'c')"
    masked = masked_sql(text)
    assert masked == text.replace("'a\nb'", "'*\n*'")
    assert masked_sql("'" * 100_001)
