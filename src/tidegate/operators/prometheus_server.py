"""An HTTP endpoint `/metrics` with the status of queries and operators."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

from tidegate.errors import InputError, MissingExtraError, SetupError
from tidegate.operators.prometheus import families
from tidegate.operators.status import QueryStatus

DEFAULT_PORT = 9464
"""The port that OpenTelemetry uses for Prometheus exporters."""


class Observed(Protocol):
    """A query on Spark, the state of one, or an embedded operator."""

    def status(self) -> QueryStatus: ...


class MetricsServer:
    """Serves `/metrics` from a thread until it is closed; values are read with each request."""

    def __init__(self, observed: Sequence[Observed], *, port: int, host: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise MissingExtraError(
                "prometheus-client", "metrics", "the endpoint /metrics"
            ) from None
        if not observed:
            raise InputError("nothing to serve. Hint: serve_metrics(query)")
        wrong = next((one for one in observed if not hasattr(one, "status")), None)
        if wrong is not None:
            raise InputError(
                f"metrics are those of queries and embedded operators, got {wrong!r}. Hint:"
                " serve_metrics(query)"
            )
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(observed))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise SetupError(
                f"the endpoint cannot listen on {host}:{port}: {error}. Hint: another port, or"
                " port=0 for a free one"
            ) from error
        self.host = host
        self.port = int(self._server.server_port)

    @property
    def url(self) -> str:
        """The address to scrape."""
        return f"http://{self.host}:{self.port}/metrics"

    def __repr__(self) -> str:
        return f"MetricsServer({self.url!r})"

    def close(self) -> None:
        """Stop serving, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Collector:
    """Collects the metrics of all queries, those of one name together."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        self._observed = observed
        self._names: dict[int, str] = {}
        """The label of each query, by its place: no two are equal."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import Metric

        found: dict[str, Any] = {}
        for place, one in enumerate(self._observed):
            for family in families(self._read(place, one)):
                # The client adds the suffix of counters.
                name = family.name.removesuffix("_total")
                if name not in found:
                    found[name] = Metric(name, family.help, family.kind)
                for labels, value in family.samples:
                    found[name].add_sample(family.name, dict(labels), value)
        yield from found.values()

    def _read(self, place: int, one: Observed) -> QueryStatus:
        """The status under a name of its own; an unreadable one does not hide the others."""
        try:
            status = one.status()
        except Exception as error:  # noqa: BLE001 - a query whose Spark is gone fails in many ways
            name = self._names.get(place, f"query {place}")
            return QueryStatus(
                None, None, time.time_ns() // 1000, name=name, state="ended", problem=str(error)
            )
        if place not in self._names:
            name = status.name or status.query or status.runtime
            taken = [other for other in self._names.values() if other.split(" #")[0] == name]
            self._names[place] = f"{name} #{len(taken) + 1}" if taken else name
        return dataclasses.replace(status, name=self._names[place])


def serve_metrics(
    *observed: Observed, port: int = DEFAULT_PORT, host: str = "127.0.0.1"
) -> MetricsServer:
    """Serve the metrics of queries and embedded operators at `http://HOST:PORT/metrics`.

    `port=0` takes a free one; `url` of the result has it. The endpoint has neither encryption nor
    access control: bind it to another address than loopback only in a network that you trust.
    """
    return MetricsServer(observed, port=port, host=host)
