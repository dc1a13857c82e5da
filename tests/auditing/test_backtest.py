"""Advice of past moments under the models that came: counted again by hand, and on borders that stay, shift or turn."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from avcg import AVCG, FiniteSet, Recipe, toys
from avcg.auditing.backtest import METHODS, BacktestConfig, backtest
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import DataError, SettingError
from avcg.hypotheses.retrains import retrains

TOY = toys.drift(n=60, moments=5, shift=0.4)
QUICK = Recipe(steps=200, layers=(16,), single_pass=True)
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
                statuses = np.where(np.arange(len(found.statuses)) % 2, "not_valid", "ok")
                return replace(found, statuses=statuses)

        frame = ran(methods={"half": lambda hypotheses, X, y: Refusing(hypotheses).fit(X, y)}, horizon=1).frame
        half = frame[frame["method"] == "half"]
        assert half["answered"].between(0.4, 0.6).all()
        assert half["survival"].between(0, 1).all()

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
