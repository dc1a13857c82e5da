"""The ruler for trees against every point of small feasible sets, and its reading of trees against XGBoost itself."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import least, problems

from avcg import Schema, TabularSpace
from avcg.bench.models import as_categories
from avcg.bench.ruler import over_optimum
from avcg.bench.tree_ruler import Ensemble, TreeModels, nearest_in_trees, tree_features
from avcg.errors import SettingError

EXAMPLES = settings(max_examples=40)


def fitted(frame, schema, seed, trees=6, depth=2):
    """A small classifier of labels that columns hardly explain."""
    from xgboost import XGBClassifier

    labels = np.random.default_rng(seed).integers(0, 2, len(frame))
    labels[:2] = (0, 1)
    model = XGBClassifier(
        n_estimators=trees, max_depth=depth, enable_categorical=True, n_jobs=1, min_child_weight=0, max_cat_to_onehot=2,
        base_score=0.4, random_state=seed,
    )  # fmt: skip
    return model.fit(as_categories(frame, schema), labels)


@EXAMPLES
@given(problems(), st.sampled_from([0.0, 0.2]))
def test_nothing_that_all_ensembles_accept_is_nearer(problem, margin):
    space, codes, frame, x, target, _ = problem
    target = target % 2
    frame = frame[list(space.schema.names)]
    models = [fitted(frame, space.schema, seed) for seed in range(2)]
    read = [Ensemble.of(model, space.encoding) for model in models]
    features = tree_features(space.encoding, space.encode(frame).numpy())
    for model, ensemble in zip(models, read, strict=True):
        expected = model.predict(as_categories(frame, space.schema), output_margin=True)
        np.testing.assert_allclose(ensemble.log_odds(features), expected, atol=1e-5)

    both = TreeModels(read, space.encoding)

    def accepted(points, aimed):
        return (both.log_odds(points, aimed) >= margin - 1e-6).all(axis=0)

    found = nearest_in_trees(codes, x, target, both, margin=margin)
    best = least(codes, x, target, accepted)
    np.testing.assert_allclose(found.distance, best, atol=1e-4)
    np.testing.assert_allclose(found.bound, best, atol=1e-4)
    there = np.isfinite(best)
    assert accepted(found.answers, target)[there].all()
    answers = space.decode(space.encode(frame.iloc[:3]).new_tensor(found.answers), like=frame.iloc[:3])
    assert not codes.tensors.violations(answers, frame.iloc[:3]).any()


def test_a_number_without_a_step_ends_just_beyond_a_threshold():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"pay": rng.normal(size=40).round(3), "wealth": rng.normal(size=40).round(3)})
    schema = Schema.infer(frame)
    space = TabularSpace.fit(schema, frame)
    x = space.encode(frame).numpy()
    models = TreeModels([Ensemble.of(fitted(frame, schema, 0, trees=12, depth=3), space.encoding)], space.encoding)
    refused = np.flatnonzero(models.log_odds(x, np.ones(len(x)))[0] < 0)
    target = np.ones(len(refused), np.intp)
    found = nearest_in_trees(space.codes, x[refused], target, models)
    assert (models.log_odds(found.answers, target) >= -1e-6).all()
    grid = np.stack(np.meshgrid(*np.linspace(x.min(axis=0), x.max(axis=0), 200).T), axis=-1).reshape(-1, 2)
    good = grid[models.log_odds(grid.astype(np.float32), np.ones(len(grid)))[0] >= 0]
    nearest_on_grid = np.abs(good[None] - x[refused, None]).sum(axis=2).min(axis=1)
    assert (found.distance <= nearest_on_grid + 3e-5).all()
    assert (found.distance >= nearest_on_grid - 2 * np.ptp(x, axis=0).sum() / 199).all()


def test_an_answer_is_measured_by_the_nearest_point_as_robust():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"age": rng.integers(0, 9, 30), "kids": rng.integers(0, 4, 30), "job": rng.choice(list("abc"), 30)}
    )
    space = TabularSpace.fit(Schema.infer(frame), frame)
    read = [Ensemble.of(fitted(frame, space.schema, seed), space.encoding) for seed in range(3)]
    models, x, target = TreeModels(read, space.encoding), space.encode(frame).numpy()[:8], np.ones(8, np.intp)
    nearest = nearest_in_trees(space.codes, x, target, models)
    known = np.flatnonzero(np.isfinite(nearest.distance) & (nearest.distance > 0))
    assert len(known) > 2
    worse = space.codes.project((nearest.answers + (nearest.answers - x) * 2)[None], x)[0]
    for answers in (nearest.answers, worse):
        ratios = over_optimum(space.codes, x, target, answers, models, nearest=nearest_in_trees)
        for row in known:
            needed = models.log_odds(answers[[row]], target[[row]])
            best = least(
                space.codes, x[[row]], target[[row]],
                lambda points, aimed, needed=needed: (models.log_odds(points, aimed) >= needed - 1e-5).all(axis=0),
            )  # fmt: skip
            assert ratios[row] == pytest.approx(space.codes.distance(answers, x)[row] / best[0], rel=1e-3)


def test_other_columns_are_refused():
    frame = pd.DataFrame({"pay": [1.5, 2.5, 3.5, 4.5], "kind": list("abab")})
    schema = Schema.infer(frame)
    other = TabularSpace.fit(replace(schema, features=schema.features[::-1]), frame)
    with pytest.raises(SettingError, match=r"two classes that reads the columns \['kind', 'pay'\]"):
        Ensemble.of(fitted(frame, schema, 0), other.encoding)


def test_what_no_point_reaches_is_infinitely_far():
    frame = pd.DataFrame({"pay": [1.5, 2.5, 3.5, 4.5], "kind": list("abab")})
    space = TabularSpace.fit(Schema.infer(frame), frame)
    models = TreeModels([Ensemble.of(fitted(frame, space.schema, 0), space.encoding)], space.encoding)
    found = nearest_in_trees(space.codes, space.encode(frame).numpy(), np.ones(4, np.intp), models, margin=1e3)
    assert (found.distance == np.inf).all()
    assert (found.bound == np.inf).all()
