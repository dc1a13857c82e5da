"""Metrics of the service in the text format of Prometheus. No label holds anything that a user sent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from avcg.auditing.monitor import Monitor

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    r"""Counters of one service, in a registry of its own: nothing is shared between services of one process.

    Args:
        endpoints: Paths that are counted by name; requests to any other path are counted together as ``other``.

    >>> metrics = Metrics(["/health"])
    >>> metrics.observe("/health", 200, 0.0004)
    >>> metrics.observe("/no/such/page", 404, 0.0004)
    >>> print(*(line for line in metrics.text().splitlines() if line.startswith("avcg_requests_total")), sep="\n")
    avcg_requests_total{endpoint="/health",status="200"} 1.0
    avcg_requests_total{endpoint="other",status="404"} 1.0
    """

    def __init__(self, endpoints: Iterable[str]) -> None:
        self._endpoints = frozenset(endpoints)
        self._registry = own = CollectorRegistry()
        self._requests = Counter(
            "avcg_requests", "Requests by endpoint and status.", ["endpoint", "status"], registry=own
        )
        self._seconds = Histogram(
            "avcg_request_seconds",
            "Time from the first byte in to the last byte out.",
            ["endpoint"],
            buckets=_BUCKETS,
            registry=own,
        )
        self._rows = Counter("avcg_rows", "Rows answered.", registry=own)
        self._answers = Counter("avcg_answers", "Answers by status.", ["status"], registry=own)
        started = time.monotonic()
        uptime = Gauge("avcg_uptime_seconds", "Time since the service started.", registry=own)
        uptime.set_function(lambda: time.monotonic() - started)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered or refused.

        Args:
            path: Requested path.
            status: HTTP status of the response.
            seconds: Duration in seconds.
        """
        endpoint = path if path in self._endpoints else "other"
        self._requests.labels(endpoint, status).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def count_answers(self, rows: int, statuses: Sequence[str]) -> None:
        """Count rows that were answered.

        Args:
            rows: Number of rows.
            statuses: Status of every answer, at least one for each row.
        """
        self._rows.inc(rows)
        for status in statuses:
            self._answers.labels(status).inc()

    def watch(self, monitor: Monitor) -> None:
        """Show new models beside the calibration models, one line for each, in the order in which they came.

        Args:
            monitor: What is known of them.
        """
        says = {
            "survival": "Share of the answers to calibration people that a new model accepts.",
            "p_value": "Low if hardly any calibration model accepts as few of the answers as a new model.",
            "evidence": "Evidence that the new models up to this one are unlike the calibration models.",
            "alarm": "1 if the evidence has reached the threshold; its false-alarm rate is that of the monitor.",
        }
        for column, meaning in says.items():
            gauge = Gauge(f"avcg_new_model_{column}", meaning, ["model"], registry=self._registry)
            for name, value in monitor.frame[column].items():
                gauge.labels(str(name)).set(float(value))
        rate = Gauge("avcg_new_model_false_alarms", "Largest chance that an alarm is false.", registry=self._registry)
        rate.set(monitor.false_alarms)

    def text(self) -> str:
        """All metrics in the text format, version 0.0.4."""
        return generate_latest(self._registry).decode()
