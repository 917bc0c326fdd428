"""What all tests share: the Hypothesis profiles, the length of the soak and of the torture, the
folder of the repository, and one Spark session.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from support.services.processes import SHORT_LIVED
from tidegate.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = [
    "support.services.fixtures",
    "support.stream_fixtures",
    "support.stream_local",
    "support.stream_commands",
]

# Processes that tests start have this too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SHORT_LIVED))
# Programs of tests/support import it as a package, as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Times vary with the load of the machine, so no example has a deadline.
# "ci" tries the same examples on every run; "dev" tries fewer, and new ones each time.
settings.register_profile(
    "dev", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=40,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds",
        type=int,
        default=10,
        help="how long the soak test sends random traffic (default: 10)",
    )
    parser.addoption(
        "--torture-kills",
        type=int,
        default=1,
        help="how many times the torture kills a driver of Spark (default: 1)",
    )


@pytest.fixture(scope="session")
def soak_seconds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--soak-seconds"))


@pytest.fixture(scope="session")
def torture_kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--torture-kills"))


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent


SERVERS = ("kafka", "connect", "cluster")
"""Servers that take long to start: one of each is enough, and one process of the tests has it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Spark are known by their folder, and those that share a server run in one
    process.
    """
    for item in items:
        for server in SERVERS:
            if item.get_closest_marker(server) is not None:
                item.add_marker(pytest.mark.xdist_group(server))
        if "spark" in Path(item.fspath).parent.name:
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Who reads with direct sources is skipped on a Spark that has none."""
    try:
        return (yield)
    except SetupError as error:
        if (
            str(error).startswith("direct sources need Spark")
            and find_spec("pyspark.sql.streaming.datasource") is None
        ):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tidegate.spark.environment.session import session

    found = session(cores=2, memory="2g")
    yield found
    found.stop()
