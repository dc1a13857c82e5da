"""Trees explained from end to end, gaps included; answers are counted again by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from asked_models import NUMBERS, SCHEMA, SHORT, TOY, X, Y, boosted, fitted, income_rule, recount, tree_of_numbers
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from strategies import complaints

from avcg import AVCG, BlackBox, PointMass, from_models, retrains
from avcg.baselines.nearest import NearestUnlike
from avcg.hypotheses.split import HypothesisSplit
from avcg.method.query import Query
from avcg.testing import check_explainer


def explained(kind):
    model = boosted(kind).fit(X, Y)
    hypotheses = retrains(model, X, Y, n=6, resampling="bootstrap", schema=SCHEMA)
    return model, fitted(AVCG(hypotheses, recipe=SHORT), X)


@pytest.fixture(scope="module")
def trees():
    return explained("tree")


@pytest.fixture(scope="module", params=["tree", "xgboost"])
def recourse(request):
    return request.getfixturevalue("trees") if request.param == "tree" else explained(request.param)


class TestTreesFromEndToEnd:
    def test_statuses_certificates_and_constraints(self, recourse):
        model, explainer = recourse
        rows = X.head(60)
        delivered = explainer.generate(rows, target=1)
        assert (delivered.status == "ok").sum() + (delivered.status == "already_target").sum() > 50
        recount(model, explainer, delivered)
        assert complaints(SCHEMA, X, rows, delivered.frame) == []
        assert delivered.frame.dtypes.equals(rows.dtypes)

    def test_the_contract(self, recourse):
        model, explainer = recourse
        check_explainer(explainer, X[model.predict(X) == 0].head(12))

    def test_several_answers(self, trees):
        model, explainer = trees
        rows = X[model.predict(X) == 0].head(20)
        delivered = explainer.generate(rows, n=3)
        recount(model, explainer, delivered)
        assert complaints(SCHEMA, X, rows.loc[rows.index.repeat(3)], delivered.frame) == []
        different = delivered.frame.astype(str).groupby(level=0).apply(lambda three: len(three.drop_duplicates()))
        assert (different == 3).mean() > 0.8

    def test_requests(self, trees):
        model, explainer = trees
        rows = X[model.predict(X) == 0].head(20)
        delivered = explainer.generate(rows, vary=["income", "rating"], ranges={"income": (None, 70)})
        recount(model, explainer, delivered)
        assert set(delivered.changes()["column"]) <= {"income", "rating"}
        assert (delivered.frame["income"] <= np.maximum(70, rows["income"])).all()
        single = explainer.generate(rows, max_changes=1)
        recount(model, explainer, single)
        assert complaints(SCHEMA.at_most(1), X, rows, single.frame) == []

    def test_refined_is_not_dearer(self, trees):
        model, explainer = trees
        rows = X[model.predict(X) == 0].head(20)
        x, target = explainer.space_.encode(rows), np.ones(len(rows), np.intp)
        query = Query(x.numpy(), target, explainer.space_.codes, effort="fast")
        for effort in ("standard", "thorough"):
            search = explainer._search_at(explainer.calibration_.margins(effort))
            first = search.answers(query)
            accepted = ~explainer.acceptance.rejected(explainer.acceptance.costs(query, first)[0])
            assert accepted.mean() > 0.8
            before = explainer.space_.codes.distance(first, query.x)[0]
            delivered = explainer.generate(rows, effort=effort, typicality=0.0)
            recount(model, explainer, delivered)
            at_the_same_margin = delivered.distance[accepted] <= before[accepted] + 1e-5
            assert at_the_same_margin.all()
            assert delivered.distance[accepted].mean() < before[accepted].mean()
            assert complaints(SCHEMA, X, rows, delivered.frame) == []

    def test_the_gap_is_measured_by_the_students(self, trees):
        _, explainer = trees
        gaps = explainer.amortization_gap(X.head(8), steps=5, n_latents=3)
        assert gaps.index.equals(X.head(8).index)
        assert np.isfinite(gaps).all(axis=None)

    def test_the_same_seed_gives_the_same_bytes(self):
        hypotheses, recipe = (
            retrains(tree_of_numbers(), NUMBERS, Y, n=4, resampling="bootstrap"),
            replace(SHORT, steps=20, layers=(16,)),
        )
        one, two, other = (
            fitted(AVCG(hypotheses, recipe=recipe, random_state=seed), NUMBERS).generate(NUMBERS.head(30))
            for seed in (1, 1, 2)
        )
        assert one.to_json() == two.to_json()
        assert one.to_json() != other.to_json()

    def test_a_threshold(self):
        hypotheses = retrains(tree_of_numbers(), NUMBERS, Y, n=6, resampling="bootstrap")
        explainer = fitted(AVCG(hypotheses, threshold=0.25, recipe=SHORT), NUMBERS)
        delivered = explainer.generate(NUMBERS.head(60), target=1)
        granted = tree_of_numbers().predict_proba(delivered.frame)[:, 1] >= 0.25
        assert (granted == delivered.status.isin(["ok", "not_robust", "already_target"])).all()
        held_out = [*explainer.split_.calibration.members, *explainer.split_.test.members]
        agreeing = sum(one.model.predict_proba(delivered.frame)[:, 1] >= 0.25 for one in held_out)
        np.testing.assert_array_equal(delivered.certificate.agreeing, agreeing)

    def test_three_classes(self):
        y = np.where(NUMBERS["income"] > 55, "high", np.where(NUMBERS["months"] > 60, "long", "low"))
        model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS, y)
        explainer = fitted(AVCG(retrains(model, NUMBERS, y, n=6, resampling="bootstrap"), recipe=SHORT), NUMBERS)
        for target in (None, "low"):
            delivered = explainer.generate(NUMBERS.head(40), target)
            recount(model, explainer, delivered)
            assert (delivered.status == "not_found").mean() < 0.2
        assert set(explainer.generate(NUMBERS.head(40)).target) == {"high", "long", "low"}

    def test_learning_from_networks_again_forgets_the_students(self):
        explainer = fitted(
            AVCG(PointMass(BlackBox(tree_of_numbers(), NUMBERS)), recipe=replace(SHORT, steps=5, layers=(8,))), NUMBERS
        )
        assert explainer.distillation_ is not None
        lines = retrains(LogisticRegression(), NUMBERS, Y, n=4, resampling="bootstrap")
        assert fitted(explainer.set_params(hypotheses=lines), NUMBERS).distillation_ is None

    def test_trees_that_agree_on_most_points_are_still_others(self):
        line = pd.DataFrame({"a": np.linspace(-2, 2, 200)})
        model = DecisionTreeClassifier(random_state=0).fit(line, line["a"] > 0.4)
        roles = HypothesisSplit.of(retrains(model, line, line["a"] > 0.4, n=8, resampling="bootstrap"))
        assert len(roles.test) == 1
        assert len(roles.calibration) == 3
        years = [DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS[i::5], Y[i::5]) for i in range(5)]
        for seed in range(10):
            judged = from_models(years, NUMBERS, deployed=years[3])
            fresh = HypothesisSplit.of(judged, torch.Generator().manual_seed(seed)).test
            assert all(box.model is not years[3] for box in fresh.members)
        assert HypothesisSplit.of(from_models([years[0]] * 4, NUMBERS, deployed=years[0])).test is None

    def test_a_plain_function(self):
        box = BlackBox(lambda rows: 1 / (1 + np.exp(-TOY.points(rows))), TOY.X, schema=TOY.schema)
        explainer = fitted(AVCG(PointMass(box), recipe=SHORT), TOY.X)
        denied = TOY.X[TOY.y == 0].head(30)
        delivered = explainer.generate(denied)
        assert delivered.certificate is None
        assert ((TOY.points(delivered.frame) > 0) == (delivered.status == "ok")).all()
        assert (delivered.status == "ok").mean() > 0.8
        assert complaints(TOY.schema, TOY.X, denied, delivered.frame) == []
        short = replace(SHORT, steps=20, layers=(16,))
        trees = retrains(tree_of_numbers(), NUMBERS, Y, n=4, resampling="bootstrap")
        explainer = fitted(AVCG(trees, model=BlackBox(income_rule, NUMBERS), recipe=short), NUMBERS)
        alone = explainer.generate(NUMBERS.head(20))
        assert ((income_rule(alone.frame) > 0.5) == ((alone.target == 1) == (alone.status != "not_found"))).all()


GAPPY = TOY.X.assign(
    income=TOY.X["income"].where(np.arange(300) % 7 != 0),
    months=TOY.X["months"].where(np.arange(300) % 5 != 0),
    housing=TOY.X["housing"].where(np.arange(300) % 6 != 0).astype("category"),
)


def filled():
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    choices = OneHotEncoder(handle_unknown="ignore")
    prepare = make_column_transformer((numbers, ["income", "months"]), (choices, ["housing", "rating", "owns"]))
    return make_pipeline(prepare, LogisticRegression())


@pytest.mark.parametrize("kind", ["boosting", "xgboost", "filled"])
class TestGaps:
    EXPLAINED = {}  # noqa: RUF012  by kind, once for all tests

    @pytest.fixture
    def delivered(self, kind):
        explained = self.EXPLAINED
        if kind not in explained:
            model = (filled() if kind == "filled" else boosted(kind)).fit(GAPPY, Y)
            hypotheses = retrains(model, GAPPY, Y, n=4, resampling="bootstrap")
            schema = hypotheses.space.schema.freeze("months").only_up("rating")
            explainer = fitted(AVCG(hypotheses, schema, recipe=SHORT), GAPPY)
            rows = GAPPY[model.predict(GAPPY) == 0].head(60)
            explained[kind] = model, explainer, rows, explainer.generate(rows)
        return explained[kind]

    def test_gaps_are_read_and_answered(self, kind, delivered):
        model, explainer, rows, answers = delivered
        read = {feature.name for feature in explainer.space_.schema.features if feature.missing != "error"}
        assert read == {"income", "months", "housing"}
        assert explainer.judges_.differentiable is (kind == "filled")
        assert ((model.predict(answers.frame) == 1) == answers.status.isin(["ok", "not_robust"])).all()
        gapped = rows.isna().any(axis=1)
        assert gapped.sum() > 15
        assert answers.status[gapped].isin(["ok", "not_robust"]).mean() > 0.5

    def test_no_gap_is_made_and_a_frozen_one_stays(self, kind, delivered):
        _, explainer, rows, answers = delivered
        assert not (answers.frame.isna() & rows.notna()).any(axis=None)
        pd.testing.assert_series_equal(answers.frame["months"], rows["months"])
        assert rows["months"].isna().any()
        free = ["income", "housing"]
        assert (answers.frame[free].isna() & rows[free].isna()).any(axis=None), "and others may stay"
        assert complaints(explainer.space_.schema, GAPPY, rows, answers.frame) == []

    def test_the_certificate_is_of_rows_with_gaps(self, kind, delivered):
        _, explainer, _, answers = delivered
        x = explainer.space_.encode(answers.frame)
        fresh = explainer.split_.held_out.bind_rows(answers.frame).log_probs(x).argmax(dim=-1).numpy()
        if kind != "filled":
            held_out = [*explainer.split_.calibration.members, *explainer.split_.test.members]
            fresh = np.stack([box.model.predict(answers.frame) for box in held_out])
        np.testing.assert_array_equal(answers.certificate.agreeing, (fresh == 1).sum(axis=0))


def test_a_gap_in_a_column_that_was_trained_without():
    model = boosted("boosting").fit(X, Y)
    box = BlackBox(model, X, schema=SCHEMA.allow_missing("months"))
    rows = X.head(30).assign(months=X["months"].head(30).where(np.arange(30) % 2 == 0))
    np.testing.assert_array_equal(box.predict_proba(rows), model.predict_proba(rows))
    delivered = NearestUnlike(from_models([model, model], X, deployed=model, space=box.space_)).fit(X).generate(rows)
    assert ((model.predict(delivered.frame) == delivered.target) == delivered.status.isin(["ok", "not_robust"])).all()
