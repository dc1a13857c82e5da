"""NICE (package NICEx): the nearest training row of the wanted class, taken over column by column until it is enough.

It knows nothing of columns that may not change, nor of ranges.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from exchange import Explain, Positions, Task, run_peer
from nice import NICE


def prepare(task: Task, kind: str) -> Explain:
    """An explainer of the task; the kind is what NICE optimises: ``"sparsity"`` or ``"proximity"``."""
    categorical = [j for j, column in enumerate(task.columns) if column.categories is not None]
    explainer = NICE(
        predict_fn=lambda values: task.probabilities(task.encode_values(values)),
        X_train=task.values(task.train),
        y_train=task.labels,
        cat_feat=categorical,
        optimization=kind,
        justified_cf=True,
    )

    def explain(rows: pd.DataFrame, target: Positions) -> pd.DataFrame:
        values = task.values(rows)
        found = [
            explainer.explain(values[i : i + 1].copy(), target_class=[int(wanted)])[0]
            for i, wanted in enumerate(target)
        ]
        return task.frame_of(np.array(found)).set_axis(rows.index)

    return explain


if __name__ == "__main__":
    run_peer(prepare, ["NICEx", "numpy", "pandas"])
