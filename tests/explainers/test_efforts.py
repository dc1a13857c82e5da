"""Effort, typicality, the number of answers and their statuses, on explainers that are trained once."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from avcg import AVCG, Classifier, PointMass, Recipe, Schema, from_sklearn, retrains, toys
from avcg.errors import SettingError
from avcg.explainers.records import MEANING
from avcg.method.acceptance import price
from avcg.method.query import EFFORTS, Query, QueryOptions
from avcg.method.refine import toward_typical

TOY = toys.loans(n=300)
RECIPE = Recipe(steps=300, layers=(32, 32), batch_size=64)


def fitted(model, rows, labels, **settings):
    recipe = settings.pop("recipe", RECIPE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        hypotheses = retrains(model, rows, labels, n=8, resampling="bootstrap")
        return AVCG(hypotheses, recipe=recipe, **settings).fit(rows)


@cache
def two_classes():
    model = Classifier(hidden=(16,), epochs=60, patience=None, schema=TOY.schema).fit(TOY.X, TOY.y)
    return fitted(model, TOY.X, TOY.y)


@cache
def without_steps():
    """Two classes, and incomes of which there are too many to try them all."""
    schema = Schema.infer(TOY.X, kinds={"income": "continuous", "rating": ["poor", "fair", "good"]})
    model = Classifier(hidden=(16,), epochs=60, patience=None, schema=schema).fit(TOY.X, TOY.y)
    return fitted(model, TOY.X, TOY.y)


@cache
def three_classes():
    score = TOY.X["income"] + 0.2 * TOY.X["months"] + 10 * TOY.X["owns"]
    labels = np.digitize(score, np.quantile(score, [1 / 3, 2 / 3]))
    model = Classifier(hidden=(16,), epochs=60, patience=None, schema=TOY.schema).fit(TOY.X, labels)
    return fitted(model, TOY.X, labels, recipe=replace(RECIPE, steps=150))


@cache
def linear():
    """A logistic regression of two numbers, whose reach is known in closed form."""
    rows = TOY.X[["income", "months"]]
    hypotheses = PointMass(from_sklearn(LogisticRegression().fit(rows, TOY.y), rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AVCG(hypotheses, recipe=replace(RECIPE, steps=40)).fit(rows)


def denied(explainer, count=40):
    rows = TOY.X[list(explainer.space_.schema.names)]
    return rows[explainer.decide(rows) == 0].head(count)


def assert_first_of_many(one, many):
    """The first of n answers is the only one, to the last bit, in everything that is said of it."""
    first = many.take(np.arange(len(many)), 1)
    assert first.answers.reset_index(drop=True).equals(one.answers.reset_index(drop=True))
    for name in ("statuses", "target"):
        np.testing.assert_array_equal(getattr(first, name), getattr(one, name))
    for name in ("probability", "distance"):  # other numbers of rows have other last digits
        np.testing.assert_allclose(getattr(first, name), getattr(one, name), atol=1e-6)
    np.testing.assert_array_equal(first.certificate.agreeing, one.certificate.agreeing)


class TestTheFirstOfSeveral:
    @pytest.mark.parametrize("effort", EFFORTS)
    @pytest.mark.parametrize("typicality", [0.0, None, 1.0])
    def test_is_the_only_one(self, effort, typicality):
        explainer = two_classes()
        one = explainer.generate(denied(explainer), effort=effort, typicality=typicality)
        for n in (2, 3, 5):
            many = explainer.generate(denied(explainer), n=n, effort=effort, typicality=typicality)
            assert_first_of_many(one, many)

    @pytest.mark.parametrize("effort", EFFORTS)
    @pytest.mark.parametrize("typicality", [0.0, 0.6])
    def test_is_the_only_one_where_any_other_class_will_do(self, effort, typicality):
        explainer = three_classes()
        one = explainer.generate(TOY.X.head(30), effort=effort, typicality=typicality)
        assert len(set(one.target)) > 1
        for n in (2, 5):
            assert_first_of_many(one, explainer.generate(TOY.X.head(30), n=n, effort=effort, typicality=typicality))

    @pytest.mark.parametrize("effort", EFFORTS)
    def test_any_other_class_is_the_one_that_is_cheapest_to_reach(self, effort):
        explainer, rows = three_classes(), TOY.X.head(40)
        delivered = explainer.generate(rows, effort=effort, typicality=0.0)
        decided = explainer.decide(rows)
        each = [explainer.generate(rows, label, effort=effort, typicality=0.0) for label in range(3)]
        assert (delivered.target != decided).all()
        accepted = np.isin(delivered.statuses, ["ok", "not_robust"])
        for label, towards in enumerate(each):
            other = (decided != label) & np.isin(towards.statuses, ["ok"]) & accepted & (delivered.statuses == "ok")
            assert (delivered.distance[other] <= towards.distance[other] + 1e-3).all()
            mine = delivered.target == label
            np.testing.assert_allclose(delivered.distance[mine], towards.distance[mine], atol=1e-6)

    @pytest.mark.parametrize("effort", ["standard", "thorough"])
    def test_is_the_nearest_of_those_that_are_accepted(self, effort):
        explainer = two_classes()
        delivered = explainer.generate(denied(explainer), n=4, effort=effort, typicality=0.0)
        distance = delivered.distance.reshape(-1, 4)
        ok = (delivered.statuses == "ok").reshape(-1, 4) & ~delivered.repeated.reshape(-1, 4)
        further = ok[:, 1:] & ok[:, :1]
        assert further.mean() > 0.8
        assert (distance[:, 1:] >= distance[:, :1] - 1e-5)[further].all()

    @pytest.mark.parametrize("effort", EFFORTS)
    def test_differs_from_the_others_in_what_it_changes(self, effort):
        explainer = two_classes()
        delivered = explainer.generate(denied(explainer), n=3, effort=effort, typicality=0.0)
        assert delivered.repeated.mean() < 0.05
        changed = delivered.changed.reshape(-1, 3, delivered.changed.shape[1])
        values = delivered.frame.to_numpy().reshape(-1, 3, delivered.changed.shape[1])
        columns_differ = (changed[:, :1] != changed[:, 1:]).any(axis=-1)
        assert columns_differ.mean() > 0.5, "mostly in which columns change, and not only in how far"
        assert columns_differ.any(axis=1).mean() > 0.7
        assert (values[:, :1] != values[:, 1:]).any(axis=-1).mean() > 0.95


class TestMoreEffort:
    @pytest.mark.parametrize("typicality", [0.0, 0.35, 1.0])
    @pytest.mark.parametrize("explainer", [two_classes, three_classes])
    def test_is_never_dearer_at_the_same_margin(self, explainer, typicality):
        search = explainer().search
        x = explainer().space_.encode(TOY.X.head(120)).numpy()
        before = search.acceptance.deployed_probability(search.acceptance.judge(x))
        target = (before.argmax(axis=1) + 1) % before.shape[1]
        query = Query(x, target, explainer().space_.codes, typicality=typicality)
        margin = search.margins(query)
        answers = {effort: search.answers(replace(query, effort=effort))[0] for effort in EFFORTS}
        first = search.propose(query, margin)[0]
        priced = toward_typical(query, first, search.references, search.config, search.n_typical)
        said = {effort: search.acceptance.judged(found, target, None) for effort, found in answers.items()}
        prices = {effort: price(priced, found[None])[0] for effort, found in answers.items()}
        fast = said["fast"]
        floor = np.where(fast.accepted, np.minimum(margin, fast.lower), margin)
        at_once = search.acceptance.judged(first, target, None).accepted
        for less, more in (("fast", "standard"), ("standard", "thorough")):
            kept = said[less].accepted
            assert said[more].accepted[kept].all()
            assert kept.mean() > 0.4
            assert (prices[more] <= prices[less] + 1e-3)[kept].all()
            assert (said[more].lower >= floor - 1e-6)[kept].all()
        gained = prices["fast"] - prices["standard"]
        assert gained[at_once].mean() > 0.02

    def test_is_no_dearer_in_what_people_receive(self):
        """At their own margins, where a promise was made at one for all; here at those of the fastest answers."""
        explainer = linear()
        delivered = [explainer.generate(denied(explainer), effort=effort, typicality=0.0) for effort in EFFORTS]
        for less, more in ((0, 1), (1, 2)):
            valid = delivered[less].statuses == "ok"
            assert (delivered[more].distance <= delivered[less].distance + 1e-3)[valid].all()

    @pytest.mark.parametrize("seconds", [1e-9, 1e-3])
    @pytest.mark.parametrize("effort", EFFORTS)
    @pytest.mark.parametrize("n", [1, 3])
    def test_a_tiny_budget_still_gives_feasible_answers(self, effort, n, seconds):
        explainer, rows = two_classes(), denied(two_classes())
        asked = {"vary": ["income", "months", "housing"], "max_changes": 2}
        delivered = explainer.generate(rows, n=n, effort=effort, time_budget=seconds, **asked)
        assert set(delivered.statuses) <= set(MEANING)
        repeated = rows.loc[rows.index.repeat(n)]
        space = explainer.space_.restrict_rows(asked["vary"], None, asked["max_changes"], len(repeated))
        assert not space.violations(delivered.answers, repeated).any()
        assert np.isin(delivered.statuses, ["ok", "not_robust"]).mean() > 0.5

    def test_a_large_budget_changes_nothing_but_the_promise(self):
        explainer, rows = two_classes(), denied(two_classes())
        plain, timed = explainer.generate(rows), explainer.generate(rows, time_budget=600)
        assert plain.frame.equals(timed.frame)
        assert not any(statement.made for statement in timed.statements)


class TestStatuses:
    def test_ok_and_already(self):
        explainer = two_classes()
        delivered = explainer.generate(TOY.X.head(60), 1)
        already = explainer.decide(TOY.X.head(60)) == 1
        assert (delivered.statuses[already] == "already_target").all()
        assert delivered.frame[already].equals(TOY.X.head(60)[already])
        assert (delivered.statuses[~already] == "ok").mean() > 0.8

    def test_not_robust(self):
        """Ranges that end at one place after the other; at some, rows come just beyond the decision."""
        explainer, rows, seen = two_classes(), denied(two_classes()), 0
        for highest in range(40, 80, 4):
            ranges = {"income": (0, highest)}
            delivered = explainer.generate(rows, vary=["income"], ranges=ranges, effort="fast")
            found = delivered.statuses == "not_robust"
            assert (explainer.decide(delivered.frame)[found] == 1).all()
            accepting, needed = delivered.certificate.agreeing, np.ceil(0.95 * delivered.certificate.n)
            assert (accepting[found] < needed).all()
            assert (accepting[delivered.statuses == "ok"] >= needed).all()
            seen += found.sum()
        assert seen > 3

    @pytest.mark.parametrize("effort", EFFORTS)
    def test_infeasible_is_said_where_it_is_proven(self, effort):
        explainer = linear()
        rows = denied(explainer)
        model = explainer.deployed_
        delivered = explainer.generate(rows, ranges={"income": (20, 40), "months": (0, 60)}, effort=effort)
        best = rows.assign(income=rows["income"].clip(lower=40), months=rows["months"].clip(lower=60))
        reached = model.probabilities(explainer.space_.encode(best))[:, 1].numpy() >= 0.5
        assert 0 < reached.sum() < len(rows)
        np.testing.assert_array_equal(delivered.statuses == "infeasible", ~reached)
        changed = delivered.changed.any(axis=1)
        assert changed[~reached].all(), "the change shown comes close, and is one"

    @pytest.mark.parametrize("effort", EFFORTS)
    def test_not_found_is_said_where_it_is_not_proven(self, effort):
        explainer = without_steps()
        rows = denied(explainer)
        delivered = explainer.generate(rows, vary=["income"], ranges={"income": (20, 20.5)}, effort=effort)
        assert (delivered.statuses == "not_found").mean() > 0.5
        assert "ok" not in delivered.statuses[delivered.statuses == "not_found"]
        assert (explainer.decide(delivered.frame)[delivered.statuses == "not_found"] == 0).all()

    @pytest.mark.parametrize("effort", EFFORTS)
    def test_small_sets_are_searched_whole(self, effort):
        """A yes or no and a category: what no point of theirs reaches is proven, and the others are found."""
        explainer = two_classes()
        rows = denied(explainer)
        delivered = explainer.generate(rows, vary=["owns", "rating"], effort=effort)
        points = [
            rows.assign(owns=owns, rating=rating) for owns in (False, True) for rating in ("poor", "fair", "good")
        ]
        reached = np.any([explainer.decide(each) == 1 for each in points], axis=0)
        assert 0 < reached.sum() < len(rows)
        np.testing.assert_array_equal(delivered.statuses == "infeasible", ~reached)
        assert np.isin(delivered.statuses[reached], ["ok", "not_robust"]).all()

    @pytest.mark.parametrize("effort", EFFORTS)
    @pytest.mark.parametrize("asked", [{"vary": []}, {"max_changes": 0}, {"vary": [], "target": 1}])
    def test_immovable(self, effort, asked):
        explainer = two_classes()
        delivered = explainer.generate(denied(explainer), effort=effort, n=2, **asked)
        assert (delivered.statuses == "immovable").all()
        assert not delivered.changed.any()
        assert (delivered.distance == 0).all()


WRONG = [
    ({"effort": "slow"}, "'effort' .* 'fast', 'standard' or 'thorough'. Got 'slow' instead"),
    ({"effort": "Fast"}, "'effort' .* Got 'Fast' instead"),
    ({"effort": 2}, "'effort' .* Got 2 instead"),
    ({"effort": None}, "'effort' .* Got None instead"),
    ({"effort": ["fast"]}, r"'effort' .* Got \['fast'\] instead"),
    ({"typicality": -0.1}, r"'typicality' .* number in \[0, 1\].* Got -0.1 instead"),
    ({"typicality": 1.01}, "'typicality' .* Got 1.01 instead"),
    ({"typicality": float("nan")}, "'typicality' .* Got nan instead"),
    ({"typicality": True}, "'typicality' .* Got True instead"),
    ({"typicality": "0.5"}, "'typicality' .* Got '0.5' instead"),
    ({"typicality": [0.5]}, r"'typicality' .* Got \[0.5\] instead"),
    ({"time_budget": 0}, "'time_budget' .* number of seconds > 0.* Got 0 instead"),
    ({"time_budget": -1.0}, "'time_budget' .* Got -1.0 instead"),
    ({"time_budget": float("inf")}, "'time_budget' .* Got inf instead"),
    ({"time_budget": float("nan")}, "'time_budget' .* Got nan instead"),
    ({"time_budget": "1s"}, "'time_budget' .* Got '1s' instead"),
    ({"time_budget": True}, "'time_budget' .* Got True instead"),
    ({"n": 0}, "'n' .*>= 1.* Got 0"),
    ({"n": 1.5}, "'n' .* Got 1.5"),
]


@pytest.mark.parametrize(("settings", "says"), WRONG, ids=[str(settings) for settings, _ in WRONG])
def test_wrong_values_are_refused_with_what_is_expected(settings, says):
    with pytest.raises(SettingError, match=says):
        QueryOptions(**settings)
    with pytest.raises(SettingError, match=says):
        linear().generate(denied(linear(), 2), **settings)


@pytest.mark.parametrize("effort", ["slow", None, 1])
def test_wrong_efforts_are_refused_for_codes_too(effort):
    x = linear().space_.encode(denied(linear(), 2))
    with pytest.raises(SettingError, match=f"'effort' .* Got {effort!r} instead"):
        linear().solve(x, x.new_ones(2).long(), effort=effort)


@pytest.mark.parametrize("settings", [{"typicality": 0}, {"typicality": 1}, {"typicality": np.float32(0.5)}, {"n": 10}])
def test_values_at_the_ends_are_taken(settings):
    delivered = linear().generate(denied(linear(), 2), **settings)
    assert len(delivered.statuses) == 2 * settings.get("n", 1)
