"""A search for each row that needs no gradients, beside the generator on XGBoost, in the backtest of real years.

    python benchmarks/tree_search.py [--jobs 2]

From the nearest row that every judge accepts, changes are taken back, moved and combined as with thorough effort, while
most judges stay beyond a margin. It is run with several margins, for the people of each origin of
``benchmarks/years.py``, from 1997 on. ``years_page.py`` sets its distance at equal survival beside the generator's.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray
from years import CONFIG, contestant, loans
from years_page import TREES

from avcg import backtest
from avcg.baselines.nearest import RobustNeighbour
from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.files import write_whole
from avcg.hypotheses.finite import FiniteSet
from avcg.method.query import QueryOptions
from avcg.method.recipe import Recipe

MARGINS, ROWS, FIRST = (0.0, 1.0, 2.0), 4000, 1997


class TakenBack(RobustNeighbour):
    """The nearest row that every judge accepts, brought closer as far as a margin allows."""

    margin = 0.0

    def query(self, X: Any, target: Any, options: QueryOptions) -> Counterfactuals:
        """Answers that are brought closer; see `Explainer.query`."""
        return super().query(X, target, replace(options, effort="thorough"))

    @property
    def _choices(self) -> Recipe:
        return replace(super()._choices, search=replace(super()._choices.search, refined_margin=self.margin))


def taken_back(margin: float, hypotheses: FiniteSet, X: Any, y: NDArray[Any]) -> Explainer:
    """The search with a margin, fitted."""
    search = TakenBack(hypotheses)
    search.fit(X, y)
    search.margin = margin
    return search


def searches(margins: Sequence[float]) -> dict[str, Any]:
    """The search, by margin."""
    return {f"taken back to {margin:g}": partial(taken_back, margin) for margin in margins}


def main() -> None:
    """Run the backtest of the search, and store what it found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    X, y, years, schema = loans(ROWS)
    config = replace(CONFIG, first=FIRST - int(years.min()) - CONFIG.label_delay, horizon=1)
    found = backtest(
        contestant("xgboost", X, schema)[0], X, y, time=years, target=1, methods=searches(MARGINS), config=config,
        folder=TREES.with_suffix(""), n_jobs=options.jobs,
    )  # fmt: skip
    write_whole(TREES, found.to_json())
    print(found)


if __name__ == "__main__":
    main()
