"""How the service is doing, as text that Prometheus reads. No label holds anything that a user sent."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one service; touched by its event loop alone.

    Args:
        endpoints: The paths there are; requests to any other are counted together as ``other``.

    >>> metrics = Metrics(["/health"])
    >>> metrics.observe("/health", 200, 0.0004)
    >>> metrics.observe("/no/such/page", 404, 0.0004)
    >>> [line for line in metrics.text().splitlines() if line.startswith("avcg_requests_total")]
    ['avcg_requests_total{endpoint="/health",status="200"} 1', 'avcg_requests_total{endpoint="other",status="404"} 1']
    """

    def __init__(self, endpoints: Iterable[str]) -> None:
        self._endpoints = frozenset(endpoints)
        self._started = time.monotonic()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._rows = 0

    def observe(self, path: str, status: int, seconds: float) -> None:
        """One request was dealt with."""
        endpoint = path if path in self._endpoints else "other"
        self._requests[endpoint, status] += 1
        self._times.setdefault(endpoint, [0] * (len(_BUCKETS) + 1))[bisect_left(_BUCKETS, seconds)] += 1
        self._seconds[endpoint] += seconds  # type: ignore[assignment]  # a counter of any number

    def answered(self, rows: int, statuses: Sequence[str]) -> None:
        """Rows were answered, each with one status or more."""
        self._rows += rows
        self._answers.update(statuses)

    def text(self) -> str:
        """In the text format, version 0.0.4."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests by endpoint and status.")
        for (endpoint, code), count in sorted(self._requests.items()):
            yield f'avcg_requests_total{{endpoint="{endpoint}",status="{code}"}} {count}'
        yield from _head("request_seconds", "histogram", "Time from the first byte in to the last byte out.")
        for endpoint, counts in sorted(self._times.items()):
            total = 0
            for bound, count in zip((*map(str, _BUCKETS), "+Inf"), counts, strict=True):
                total += count
                yield f'avcg_request_seconds_bucket{{endpoint="{endpoint}",le="{bound}"}} {total}'
            yield f'avcg_request_seconds_sum{{endpoint="{endpoint}"}} {self._seconds[endpoint]:.9f}'
            yield f'avcg_request_seconds_count{{endpoint="{endpoint}"}} {total}'
        yield from _head("rows_total", "counter", "Rows answered.")
        yield f"avcg_rows_total {self._rows}"
        yield from _head("answers_total", "counter", "Answers by status.")
        for status, count in sorted(self._answers.items()):
            yield f'avcg_answers_total{{status="{status}"}} {count}'
        yield from _head("uptime_seconds", "gauge", "Since the service started.")
        yield f"avcg_uptime_seconds {time.monotonic() - self._started:.3f}"


def _head(name: str, kind: str, words: str) -> tuple[str, str]:
    return f"# HELP avcg_{name} {words}", f"# TYPE avcg_{name} {kind}"
