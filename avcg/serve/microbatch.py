"""Answering concurrent requests in one call: an engine takes hardly longer for four rows than for one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from avcg.explainers.records import Row
from avcg.serve.engine import Engine

_MAX_WAIT = 0.0003  # seconds that a request waits for others, a fraction of what an answer takes


@dataclass(frozen=True, eq=False)
class _Request:
    rows: Sequence[Mapping[str, Any]]
    target: Any
    n: int
    answer: asyncio.Future[list[Row]]


class MicroBatcher:
    """Collects requests that arrive at the same time and answers them in one call.

    A single request is answered at once. While several arrive at a time, the first waits until there are as many as in
    the last batch, but never longer than a fraction of what an answer takes.

    Args:
        engine: Engine whose answer to a row does not depend on the other rows.
        max_answers: Largest number of answers in one call, so that the event loop serves others in between.
    """

    def __init__(self, engine: Engine, max_answers: int) -> None:
        self._engine = engine
        self._max_answers = max_answers
        self._waiting: list[_Request] = []
        self._last_size = 1  # requests in the last batch
        self._timer: asyncio.TimerHandle | None = None

    async def answer(self, rows: Sequence[Mapping[str, Any]], target: Any, n: int) -> list[Row]:
        """Answer a request without restrictions; see `Engine.answer`.

        Args:
            rows: A few rows.
            target: Label of the decision wanted; None: any other than the present one.
            n: Number of answers for each row.
        """
        loop = asyncio.get_running_loop()
        request = _Request(rows, target, n, loop.create_future())
        self._waiting.append(request)
        if len(self._waiting) == 1:
            self._timer = loop.call_later(_MAX_WAIT if self._last_size > 1 else 0.0, self._next_batch, loop)
        elif len(self._waiting) == self._last_size and self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_later(0.0, self._next_batch, loop)
        return await request.answer

    def _next_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer the first request and those with the same target and n, as many as fit; schedule the others."""
        batch: list[_Request] = []
        later: list[_Request] = []
        size = 0
        for request in self._waiting:
            if request.answer.done():  # the client has disconnected
                continue
            same = not batch or (request.target, request.n) == (batch[0].target, batch[0].n)
            if same and (not batch or size + len(request.rows) * request.n <= self._max_answers):
                batch.append(request)
                size += len(request.rows) * request.n
            else:
                later.append(request)
        self._waiting, self._last_size = later, len(batch)
        if later:
            loop.call_soon(self._next_batch, loop)
        if batch:
            self._answer_batch(batch)

    def _answer_batch(self, batch: list[_Request]) -> None:
        try:
            rows = [row for request in batch for row in request.rows]
            answers = self._engine.answer(rows, batch[0].target, n=batch[0].n)
        except Exception as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            for request in batch:  # an invalid request must not fail the others
                self._answer_batch([request])
            return
        for request in batch:
            request.answer.set_result(answers[: len(request.rows)])
            answers = answers[len(request.rows) :]
