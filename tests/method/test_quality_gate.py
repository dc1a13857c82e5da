"""A generator trained shortly on real data is good enough: what a broken one is not.

The bounds leave room for chance. Measured with seeds 0, 1 and 2 as it is, and with seed 0 alone where it is broken:

                    no request                     every other column locked      98 % wanted
                    survival  validity  distance   survival  validity  distance   validity
    seeds 0 to 2    .96-.98   .99-1     11.7-12.2  .90-.94   .96-.98   13.1-14.8  .99-1
    bound           .90       .95       15         .80       .85       20         .90
    untrained       .05       .01       4.7        .07       .04       2.5        0
    no requests     .98       1         12.3       .42       .59       8.5        1
    lowest margin   .93       1         11.2       .87       .98       14.3       .31
    clamped outward .97       1         18.2       .98       .97       28.1       1
"""

import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch

from avcg import AVCG, Classifier, Recipe, datasets, retrains
from avcg.method.config import ReferenceConfig

SEED = 0
# One pass for each answer: retries and rows of the table to fall back on would hide a generator that does not work.
RECIPE = Recipe(
    layers=(64, 64),
    encoder=(32,),
    reference=ReferenceConfig(max_rows=200),
    steps=300,
    batch_size=256,
    learning_rate=5e-3,
    single_pass=True,
)


class Quality(NamedTuple):
    survival: float
    validity: float
    distance: float


@pytest.fixture(scope="module")
def measured():
    """Answers to the test rows under three kinds of request, judged by retrains that nothing was trained on."""
    data = datasets.load("breast_cancer")
    train, _, test = data.split(SEED)
    model = Classifier(schema=data.schema, random_state=SEED).fit(train.X, train.y)
    known, judges = (
        retrains(model, train.X, train.y, n=n, resampling="bootstrap", random_state=SEED + seed)
        for n, seed in ((12, 0), (10, 100))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether the promise was kept is measured here, not believed
        recourse = AVCG(known, recipe=RECIPE, survival=0.9, random_state=SEED).fit(train.X)
    every_other = list(test.X.columns[::2])
    requests = {"free": {}, "half locked": {"vary": every_other}, "sure": {"min_prob": 0.98}}
    return {name: quality(recourse, judges, test.X, request) for name, request in requests.items()}


def quality(recourse, judges, rows, request):
    answers = recourse.generate(rows, **request)
    wanted = torch.from_numpy(np.searchsorted(recourse.classes_, answers.target))
    with torch.no_grad():
        said = judges.predictors.probabilities(recourse.space_.encode(answers.frame)).argmax(dim=-1)
    return Quality(
        survival=float((said == wanted).float().mean()),
        validity=float(answers.status.isin(["ok", "not_robust"]).mean()),
        distance=float(answers.distance.mean()),
    )


def test_answers_are_valid_survive_and_stay_near(measured):
    found = measured["free"]
    assert found.validity >= 0.95
    assert found.survival >= 0.90
    assert found.distance <= 15


def test_answers_are_as_good_with_half_of_the_columns_locked(measured):
    found = measured["half locked"]
    assert found.validity >= 0.85
    assert found.survival >= 0.80
    assert found.distance <= 20


def test_a_higher_probability_is_reached_where_it_is_asked_for(measured):
    found = measured["sure"]
    assert found.validity >= 0.90
    assert found.distance > measured["free"].distance
