"""Advice of past moments under the models that came: counted again by hand, and on borders that stay, shift or turn."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from avcg import AVCG, FiniteSet, Recipe, toys
from avcg.auditing.backtest import METHODS, BacktestConfig, backtest, searches
from avcg.auditing.past import Backtest
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import DataError, SettingError
from avcg.hypotheses.retrains import retrains
from avcg.io.artifact import load
from avcg.method.query import Query
from avcg.schema.schema import Schema

TOY = toys.drift(n=60, moments=5, shift=0.4)
QUICK = Recipe(steps=200, layers=(32, 32), single_pass=True)
PROMISING = {"avcg": lambda hypotheses, X, y: AVCG(hypotheses, recipe=QUICK).fit(X, y)}
NEAREST = {"nearest": lambda hypotheses, X, y: NearestUnlike(hypotheses).fit(X, y)}


def few(model, X, y):
    return retrains(model, X, y, n=3)


def ran(toy=TOY, model=None, methods=NEAREST, **settings):
    config = BacktestConfig(**settings)
    return backtest(
        model or LogisticRegression(),
        toy.X,
        toy.y,
        time=toy.time,
        target=1,
        methods=methods,
        plausible=few,
        config=config,
    )


class Watched(LogisticRegression):
    """Keeps the rows of every fit, whichever clone is fitted."""

    seen = []  # noqa: RUF012  of all clones together

    def fit(self, X, y):
        Watched.seen.append(X.index)
        return super().fit(X, y)


class TestWhatIsKnown:
    @pytest.mark.parametrize(
        ("settings", "last", "first_row"),
        [({}, 0, 0), ({"label_delay": 1}, -1, 0), ({"window": 2}, 0, -2), ({"window": 1, "label_delay": 2}, -2, -1)],
    )
    def test_models_are_trained_on_rows_whose_outcomes_are_known(self, settings, last, first_row):
        config = BacktestConfig(**settings)
        positions = np.repeat(np.arange(6), 2)
        known = np.unique(positions[config.known(positions, 4)])
        assert known[-1] == 4 + last
        assert known[0] == (0 if first_row == 0 else 4 + last + first_row + 1)

    def test_no_origin_sees_what_comes_later(self):
        Watched.seen.clear()
        ran(model=Watched(), horizon=1)
        for moment in range(1, 5):
            assert any(set(index) == set(TOY.X.index[TOY.time <= moment]) for index in Watched.seen)
        advising = [index for index in Watched.seen if len(index) and TOY.time[index.max()] < 4]
        assert len(advising) >= 3 * 4, "a model and three retrains at each of three origins"

    def test_origins_have_a_moment_before_and_one_after(self):
        assert ran().frame["origin"].unique().tolist() == [1, 2, 3]
        assert ran(first=2, label_delay=1).frame["origin"].unique().tolist() == [3]
        assert ran(horizon=1).frame["later"].tolist() == [2, 2, 3, 3, 4, 4]


class TestLines:
    def test_counted_again_by_hand(self):
        frame = ran().frame
        models = [LogisticRegression().fit(TOY.X[TOY.time <= t], TOY.y[TOY.time <= t]) for t in range(5)]
        people = TOY.X[TOY.time == 2]
        people = people[models[2].predict(people) == 0]
        known = TOY.time <= 2
        method = NearestUnlike(few(models[2], TOY.X[known], TOY.y[known])).fit(TOY.X[known], TOY.y[known])
        answers = method.generate(people, 1)
        for later in (3, 4):
            line = frame[(frame["origin"] == 2) & (frame["later"] == later) & (frame["method"] == "nearest")].iloc[0]
            accepted, before = models[later].predict(answers.frame), models[later].predict(people)
            assert (line["people"], line["answered"], line["horizon"]) == (len(people), 1.0, later - 2)
            assert line["survival"] == pytest.approx((accepted == 1).mean())
            assert line["distance"] == pytest.approx(answers.distance.mean())
            assert line["harmed"] == pytest.approx(((before == 1) & (accepted == 0)).mean())
            nothing = frame[(frame["origin"] == 2) & (frame["later"] == later) & (frame["method"] == "nothing")].iloc[0]
            assert nothing["survival"] == pytest.approx((before == 1).mean())

    def test_harm_is_seen(self):
        """Where each moment decides the other way round, people had better stay as they are."""
        frame = ran(toys.drift(n=120, moments=4, turn=np.pi, noise=0.1), window=1, horizon=1).frame
        assert frame["harmed"].max() > 0.8
        assert (frame[frame["method"] == "nothing"]["harmed"] == 0).all()

    def test_people_without_an_answer_are_left_out(self):
        class Refusing(NearestUnlike):
            def query(self, X, target, options):
                found = super().query(X, target, options)
                statuses = np.where(np.arange(len(found.statuses)) % 2, "not_found", "ok")
                return replace(found, statuses=statuses)

        frame = ran(methods={"half": lambda hypotheses, X, y: Refusing(hypotheses).fit(X, y)}, horizon=1).frame
        half = frame[frame["method"] == "half"]
        assert half["answered"].between(0.4, 0.6).all()
        assert half["survival"].between(0, 1).all()

    def test_where_nobody_has_an_answer_nothing_is_counted(self):
        class Silent(NearestUnlike):
            def query(self, X, target, options):
                found = super().query(X, target, options)
                return replace(found, statuses=np.full(len(found.statuses), "not_found"))

        found = ran(methods={"silent": lambda hypotheses, X, y: Silent(hypotheses).fit(X, y)}, horizon=1)
        lines = found.frame[found.frame["method"] == "silent"]
        assert lines[["survival", "distance", "harmed", "promised"]].isna().all(axis=None)
        assert not lines["kept"].any()
        assert "silent: nobody has an answer." in str(found)
        assert "silent" in found.to_html()

    def test_people_who_may_change_nothing(self):
        X = TOY.X.assign(k=1.0)

        def fixed(hypotheses, X, y):
            return AVCG(hypotheses, recipe=QUICK).fit(X.assign(k=np.arange(len(X)) % 2 * 1.0), y)

        schema = Schema.infer(X.assign(k=np.arange(len(X)) % 2 * 1.0)).freeze("a", "b").only_up("k")
        found = backtest(
            LogisticRegression(), X, TOY.y, time=TOY.time, target=1, methods={"avcg": fixed},
            plausible=lambda model, X, y: retrains(model, X, y, n=20, schema=schema), config=BacktestConfig(horizon=1),
        )  # fmt: skip
        assert (found.frontier["answered"] == 0).all()

    def test_at_most_so_many_people(self):
        assert ran(max_people=7).frame["people"].max() == 7


class TestPromises:
    def found(self, **change):
        toy = toys.drift(n=200, moments=5, **change)
        config = BacktestConfig(horizon=1)
        return backtest(LogisticRegression(), toy.X, toy.y, time=toy.time, target=1, methods=PROMISING, config=config)

    def test_they_are_kept_while_the_border_stays_and_broken_when_it_moves(self):
        calm, moving = self.found(), self.found(shift=0.6)
        for found in (calm, moving):
            assert (found.frame[found.frame["method"] == "avcg"]["promised"] == 0.95).all()
        assert calm.summary().loc[("avcg", 1), ["made", "kept"]].tolist() == [3, 3]
        assert moving.summary().loc[("avcg", 1), "kept"] < 3
        assert moving.summary().loc[("avcg", 1), "survival"] < calm.summary().loc[("avcg", 1), "survival"]
        assert "3 of 3 promises kept (at least 37%, with 95% confidence)" in str(calm)
        assert str(calm).endswith("3 past moments can carry a reliability of 0.75 at most.")


SHIFTING = toys.drift(n=150, moments=6, shift=0.5)


def shifting(**options):
    """A backtest with margins and searches, where the border moves."""
    methods = {**PROMISING, **searches((0.5, 0.99))}
    return backtest(
        LogisticRegression(), SHIFTING.X, SHIFTING.y, time=SHIFTING.time, target=1, methods=methods,
        config=BacktestConfig(horizon=2), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return shifting()


class TestMargins:
    """The advice at every margin, and promises calibrated by it."""

    def test_counted_again_by_hand(self, found):
        toy = SHIFTING
        known, later = toy.time <= 3, toy.time <= 5
        model = LogisticRegression().fit(toy.X[known], toy.y[known])
        recourse = PROMISING["avcg"](retrains(model, toy.X[known], toy.y[known]), toy.X[known], toy.y[known])
        people = toy.X[toy.time == 3]
        people = people[model.predict(people) == 0]
        after = LogisticRegression().fit(toy.X[later], toy.y[later])
        lines = found.frontier[(found.frontier["origin"] == 3) & (found.frontier["horizon"] == 2)]
        x = recourse.space_.encode(people)
        assert len(lines) == len(recourse._ladder("standard"))
        for line in (lines.iloc[0], lines.iloc[5], lines.iloc[-1]):
            # A recipe of a single pass has no other effort that is calibrated.
            query = Query(
                x.numpy(), np.ones(len(x), int), recourse.space_.codes, effort="fast", typicality=recourse.typicality
            )
            answers = recourse.space_.decode(torch.from_numpy(recourse._answer_at(query, line["margin"])))
            valid = model.predict(answers) == 1
            assert (line["people"], line["answered"]) == (len(people), valid.sum())
            assert line["accepted"] == ((after.predict(answers) == 1) & valid).sum()

    def test_past_moments_are_the_columns(self, found):
        past = found.past_moments()
        assert (past.target, past.moments, past.horizon) == (1, (1, 2, 3, 4), 1)
        line = found.frontier[(found.frontier["origin"] == 2) & (found.frontier["horizon"] == 1)].iloc[3]
        assert (past.answered[3, 1], past.accepted[3, 1]) == (line["answered"], line["accepted"])
        assert found.past_moments(horizon=2).moments == (1, 2, 3)

    def test_a_replay_knows_only_what_had_happened(self, found):
        past, lines = found.past_moments(), found.replayed()
        assert lines["moments"].tolist() == [1, 2, 3]
        assert lines["reliability"].tolist() == [1 / 2, 2 / 3, 3 / 4]
        for t, line in enumerate(lines.to_dict("records"), start=1):
            needed = past.critical(0.95)[:t].max()  # T moments and their most: the largest critical margin
            assert line["margin"] == past.margins[needed]
            assert line["survival"] == past.shares[needed, t]
            assert line["kept"] == (past.shares[needed, t] >= 0.95)
        assert found.replayed(horizon=2)[["origin", "moments"]].to_numpy().tolist() == [[3, 1]]

    def test_the_past_keeps_more_promises_than_bootstraps_where_the_border_moves(self, found):
        """At the same moments, from the second on: a single past moment carries no more than an even chance."""
        own = found.frame[(found.frame["method"] == "avcg") & (found.frame["horizon"] == 1)].set_index("origin")
        replayed = found.replayed().set_index("origin")
        replayed = replayed[replayed["moments"] >= 2]
        assert len(replayed) == 2
        assert replayed["survival"].mean() > own.loc[replayed.index, "survival"].mean() + 0.05

    def test_distance_at_equal_survival(self, found):
        frame = pd.DataFrame(
            [
                {"origin": 1, "horizon": 1, "method": name, "survival": survival, "distance": distance, "answered": 1.0}
                for name, survival, distance in [("a", 0.5, 1.0), ("b", 0.9, 2.0), ("c", 0.7, 3.0), ("d", 1.0, 4.0)]
            ]
        )
        given = replace(found, frame=frame)
        points = pd.DataFrame({"origin": [1, 1, 1, 2], "survival": [0.7, 0.95, 0.2, 0.5]})
        at = given.at_equal_survival(points, ["a", "b", "c", "d"])
        assert at.tolist()[:3] == pytest.approx([1.5, 3.0, 1.0])
        assert np.isnan(at[3])
        assert np.isnan(given.at_equal_survival(points, ["a", "b", "c"])[1]), "none of them survives so often"

    def test_it_calibrates_an_explainer(self, found, tmp_path):
        toy = SHIFTING
        hypotheses = retrains(LogisticRegression().fit(toy.X, toy.y), toy.X, toy.y)
        recourse = AVCG(hypotheses, recipe=QUICK, calibrate_on=found).fit(toy.X, toy.y)
        needed = found.past_moments().critical(0.95).max()
        assert recourse.calibration_.margins()[1] == pytest.approx(found.past_moments().margins[needed])
        said = {each.target: each for each in recourse.statements()}
        assert (said[1].made, said[1].basis, said[1].reliability) == (True, "moments", 0.8)
        assert (said[0].made, said[0].reason) == (False, "target")
        assert "1 in 5 chance" in recourse.generate(toy.X[:2], 1).promise
        recourse.save(tmp_path / "saved")
        loaded = load(tmp_path / "saved")
        assert loaded.statements() == recourse.statements()
        assert loaded.calibrate(reliability=0.5).statements()[1].reliability == 0.5
        by_models = AVCG(hypotheses, recipe=QUICK).fit(toy.X, toy.y)
        assert by_models.calibrate(on=found).statements() == recourse.statements()
        again = recourse.calibrate(
            models=retrains(LogisticRegression().fit(toy.X, toy.y), toy.X, toy.y, random_state=9)
        )
        assert {each.basis for each in again.statements()} == {"models"}
        with pytest.raises(SettingError, match=r"asked for a survival of 0\.95, and this explainer asks for 0\.9"):
            recourse.calibrate(survival=0.9)
        assert recourse.generate(toy.X[:2], 1).to_json()
        wrong = AVCG(hypotheses, recipe=Recipe(steps=1, margins=(0.0, 1.0)), calibrate_on=found)
        with pytest.raises(SettingError, match="are not those of this recipe"):
            wrong.fit(toy.X, toy.y)

    def test_json_and_back(self, found):
        again = Backtest.from_json(found.to_json())
        pd.testing.assert_frame_equal(again.frame, found.frame)
        pd.testing.assert_frame_equal(again.frontier, found.frontier)
        assert again.target == found.target

    @pytest.mark.parametrize("text", ["{", "[]", '{"format": "avcg.backtest", "version": 1}', '{"format": "other"}'])
    def test_json_of_something_else(self, text):
        with pytest.raises(
            DataError, match=r"not the JSON of a backtest|reads backtests of format version 2. Got 1. Run it again"
        ):
            Backtest.from_json(text)

    def test_wrong_requests(self, found):
        with pytest.raises(SettingError, match=r"must be one that has margins: 'avcg'\. Got 'search to 0.5'"):
            found.past_moments("search to 0.5")
        with pytest.raises(SettingError, match=r"must be one that the backtest has\. Got 7"):
            found.past_moments(horizon=7)
        with pytest.raises(SettingError, match="No method of this backtest has margins"):
            ran(horizon=1).past_moments()

    def test_two_methods_with_margins(self):
        methods = {"one": PROMISING["avcg"], "two": PROMISING["avcg"]}
        both = ran(methods=methods, horizon=1)
        with pytest.raises(SettingError, match=r"must be one that has margins: 'one', 'two'\. Got None"):
            both.past_moments()
        assert "by the past" not in both.to_html()
        assert "by the past" in both.to_html("two")
        one = both.frontier[both.frontier["method"] == "one"].drop(columns="method").reset_index(drop=True)
        two = both.frontier[both.frontier["method"] == "two"].drop(columns="method").reset_index(drop=True)
        pd.testing.assert_frame_equal(one, two)

    def test_a_label_of_numpy_is_a_plain_one(self, found):
        again = backtest(
            LogisticRegression(), SHIFTING.X, SHIFTING.y, time=SHIFTING.time, target=np.int64(1), methods=NEAREST,
            plausible=few, config=BacktestConfig(horizon=1),
        )  # fmt: skip
        assert type(again.target) is int

    def test_the_page(self, found):
        page = found.to_html()
        assert page.count("<svg") == 2
        assert "by the past" in page
        assert "promises kept, each calibrated by the past of its day" in page
        assert "What became of the advice of 3 past moments" in ran(horizon=1).to_html()
        assert "http" not in page, "it loads nothing"

    def test_in_processes_it_is_the_same(self, found):
        pd.testing.assert_frame_equal(shifting(n_jobs=2).frame, found.frame)


class TestStoring:
    def run(self, folder, calls, **settings):
        def counted(hypotheses, X, y):
            calls.append(len(X))
            return NearestUnlike(hypotheses).fit(X, y)

        return backtest(
            LogisticRegression(), TOY.X, TOY.y, time=TOY.time, target=1, methods={"nearest": counted}, plausible=few,
            config=BacktestConfig(**settings), folder=folder,
        )  # fmt: skip

    def test_what_is_done_is_not_done_again(self, tmp_path):
        calls = []
        first = self.run(tmp_path / "new", calls)
        assert len(calls) == 3
        (tmp_path / "new" / "origin-2.json").unlink()
        again = self.run(tmp_path / "new", calls)
        assert len(calls) == 4
        pd.testing.assert_frame_equal(again.frame, first.frame)

    def test_other_settings_need_another_folder(self, tmp_path):
        self.run(tmp_path, [])
        with pytest.raises(SettingError, match="with other settings or rows: 'horizon' differ"):
            self.run(tmp_path, [], horizon=1)

    def test_other_rows_labels_models_and_methods_do_too(self, tmp_path):
        self.run(tmp_path, [])
        given = {"X": TOY.X, "y": TOY.y, "model": LogisticRegression(), "methods": NEAREST}
        changed = {
            "rows": ({"X": TOY.X + 1e-9}, {"y": 1 - TOY.y}),
            "model": ({"model": LogisticRegression(C=2.0)},),
            "methods": ({"methods": {"another": NEAREST["nearest"]}},),
        }
        for name, changes in changed.items():
            for change in changes:
                now = {**given, **change}
                with pytest.raises(SettingError, match=f"with other settings or rows: {name!r} differ"):
                    backtest(
                        now["model"], now["X"], now["y"], time=TOY.time, target=1, methods=now["methods"],
                        plausible=few, config=BacktestConfig(), folder=tmp_path,
                    )  # fmt: skip

    def test_settings_of_methods_do_too(self, tmp_path):
        def again(**options):
            return backtest(
                LogisticRegression(), TOY.X, TOY.y, time=TOY.time, target=1, methods=NEAREST, plausible=few,
                config=BacktestConfig(max_people=np.int64(9)), folder=tmp_path, **options,
            )  # fmt: skip

        again(settings={"steps": 3})
        again(settings={"steps": 3})
        with pytest.raises(SettingError, match="'settings' differ"):
            again(settings={"steps": 4})

    def test_a_damaged_file_is_named(self, tmp_path):
        self.run(tmp_path, [])
        (tmp_path / "origin-1.json").write_text("{")
        with pytest.raises(DataError, match=r"origin-1.json is damaged"):
            self.run(tmp_path, [])


class TestInputs:
    def test_moments_of_any_kind_and_a_column(self):
        dated = TOY.X.assign(day=pd.to_datetime("2020-01-01") + pd.to_timedelta(TOY.time * 365, "D"))
        found = backtest(
            DecisionTreeClassifier(max_depth=2, random_state=0), TOY.X, TOY.y, time=dated["day"], target=1,
            methods=NEAREST, plausible=few, config=BacktestConfig(horizon=1),
        )  # fmt: skip
        assert found.frame["origin"].str.startswith("20").all()
        with_year = TOY.X.assign(year=2000 + TOY.time)
        by_column = backtest(
            LogisticRegression(), with_year, TOY.y, time="year", target=1, methods=NEAREST, plausible=few,
            config=BacktestConfig(horizon=1),
        )  # fmt: skip
        assert by_column.frame["origin"].unique().tolist() == [2001, 2002, 2003]
        assert by_column.frame["survival"].tolist() == ran(horizon=1).frame["survival"].tolist(), (
            "it is not learnt from"
        )

    def test_training_of_ones_own(self):
        def fit(rows, labels, seed):
            return LogisticRegression(C=0.1, random_state=seed).fit(rows, labels)

        found = backtest(
            None, TOY.X, TOY.y, time=TOY.time, target=1, methods=NEAREST, refit=fit,
            plausible=lambda model, X, y: retrains(model, X, y, n=3, refit=fit), config=BacktestConfig(horizon=1),
        )  # fmt: skip
        assert len(found.frame) == 6

    def test_json(self):
        document = json.loads(ran(horizon=1).to_json())
        assert document["format"] == "avcg.backtest"
        assert len(document["lines"]) == 6
        assert document["lines"][0]["promised"] is None

    @pytest.mark.parametrize(
        ("change", "error", "says"),
        [
            ({"target": 2}, DataError, "'target' must be one of the labels. Got 2"),
            ({"time": np.zeros(300)}, DataError, "needs at least 3 moments: 1 before the first origin"),
            ({"time": "when"}, DataError, "names column 'when'"),
            ({"methods": {"nothing": NEAREST["nearest"]}}, SettingError, "'nothing' is the method of people who stay"),
            ({"y": np.where(TOY.time == 3, 2, TOY.y), "target": 2}, DataError, "known at 1 are never 2. Start later"),
            ({"y": np.where(TOY.time == 4, TOY.y, 0)}, DataError, "The outcomes known at 1 are all the same"),
        ],
    )
    def test_wrong_inputs(self, change, error, says):
        given = {"X": TOY.X, "y": TOY.y, "time": TOY.time, "target": 1, "methods": NEAREST, "plausible": few, **change}
        with pytest.raises(error, match=says):
            backtest(LogisticRegression(), given.pop("X"), given.pop("y"), **given)

    @pytest.mark.parametrize("settings", [{"first": 0}, {"horizon": 0}, {"window": 1.5}, {"max_people": 0}])
    def test_wrong_settings(self, settings):
        with pytest.raises(SettingError, match=f"'{next(iter(settings))}' of BacktestConfig"):
            BacktestConfig(**settings)


def test_the_default_methods_are_those_that_are_described():
    assert list(METHODS) == ["avcg", "nearest unlike", "robust neighbour"]
    hypotheses = few(LogisticRegression().fit(TOY.X, TOY.y), TOY.X, TOY.y)
    assert isinstance(hypotheses, FiniteSet)
    assert isinstance(METHODS["nearest unlike"](hypotheses, TOY.X, TOY.y), NearestUnlike)
