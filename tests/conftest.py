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

from support.key_secrets import fix_secrets
from support.services.processes import PATIENT, SHORT_LIVED
from tidegate.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = [
    "support.services.fixtures",
    "support.stream_fixtures",
    "support.stream_local",
    "support.stream_commands",
]

# Inherited by the processes that tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SHORT_LIVED + PATIENT))
# Programs of tests/support import it as a package, as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# No deadlines: times depend on the load of the machine. "ci" runs the same examples every time,
# "dev" fewer and new ones, "nightly" thousands of new ones.
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
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=2000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds",
        type=int,
        default=10,
        help="seconds of random traffic in the soak tests (default: 10)",
    )
    parser.addoption(
        "--torture-kills",
        type=int,
        default=1,
        help="number of driver kills in the torture test (default: 1)",
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
"""Servers that are slow to start: one test process starts one of each."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests on Spark by their folder; tests that share a server run in one process."""
    for item in items:
        for server in SERVERS:
            if item.get_closest_marker(server) is not None:
                item.add_marker(pytest.mark.xdist_group(server))
        if "spark" in Path(item.fspath).parent.name:
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skip tests of direct sources on a Spark without them."""
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


@pytest.fixture(scope="session", autouse=True)
def reproducible_key_secrets() -> Iterator[None]:
    """Every state has the same secret, because the order of panes of one window follows it."""
    with pytest.MonkeyPatch.context() as patch:
        fix_secrets(patch)
        yield
