"""What people receive, in every state it can be in."""

import json

import numpy as np
import pandas as pd
import pytest
from explained_loans import TOY, denied, loan_model

import avcg
from avcg import Counterfactuals
from avcg.errors import DataError, SettingError
from avcg.explainers.records import MEANING
from avcg.method.config import SearchConfig
from avcg.method.query import choose, quantise, repeated_answers


class TestAnswers:
    def test_most_people_are_told_something_that_flips_the_decision(self, answers):
        assert (answers.status == "ok").mean() > 0.8
        ok = answers.frame[answers.status == "ok"]
        assert (loan_model().predict(ok) == 1).all()

    def test_nothing_forbidden_is_changed(self, recourse, answers):
        assert not recourse.space_.violations(answers.frame, denied()).any()
        assert (answers.frame["months"] >= denied()["months"]).all()

    def test_rows_columns_dtypes_and_index_are_the_users(self, answers):
        assert answers.frame.index.equals(denied().index)
        assert answers.frame.dtypes.equals(denied().dtypes)
        assert answers.status.index.equals(denied().index)
        assert set(answers.statuses) <= set(MEANING)

    def test_changes_list_exactly_the_cells_that_differ(self, answers):
        changes = answers.changes()
        listed = {(row, column) for row, column in zip(changes.index, changes["column"], strict=True)}
        different = (answers.frame.astype(object) != denied().astype(object)).stack()
        assert listed == set(different[different].index)
        for row, column, before, after in changes.itertuples():
            assert before == denied().loc[row, column]
            assert after == answers.frame.loc[row, column]

    def test_the_certificate_counts_models_nobody_trained_on(self, recourse, answers):
        calibration, test = recourse.split_.calibration, recourse.split_.test
        assert answers.certificate.n == len(calibration) + len(test) == 7
        assert answers.certificate.n_test == len(test) == 2
        x = recourse.space_.encode(answers.frame)
        agree, tested = (part.log_probs(x).argmax(-1).numpy() == 1 for part in (calibration, test))
        assert (answers.certificate.agreeing_test == tested.sum(0)).all()
        assert (answers.certificate.agreeing == agree.sum(0) + tested.sum(0)).all()
        robust = answers.certificate.share >= 0.95
        assert ((answers.status == "ok") == (robust & (loan_model().predict(answers.frame) == 1))).all()

    def test_probabilities_are_those_of_the_decoded_row(self, answers):
        np.testing.assert_allclose(answers.probability, loan_model().predict_proba(answers.frame)[:, 1], atol=1e-5)
        np.testing.assert_allclose(answers.probability_before, loan_model().predict_proba(denied())[:, 1], atol=1e-5)

    def test_iteration_goes_row_by_row(self, answers):
        rows = list(answers)
        assert [row.index for row in rows] == denied().index.tolist()
        assert all(row.target == 1 for row in rows)
        first = rows[0]
        assert first.status == answers.status.iloc[0]
        assert dict(first.changes) == {
            column: (before, after)
            for column, before, after in answers.changes().loc[[first.index]].itertuples(index=False)
        }

    def test_what_is_printed_says_it_in_a_sentence(self, answers):
        text = str(answers)
        assert text.startswith("40 rows, 1 answer each: ")
        assert "[ok, accepted by all 7 models held back from training]" in text
        assert "at least" not in text, "what is proven of one answer is for those who ask"
        assert "a reliability of 0.9 needs 9 models held back for calibration, and there are 5" in text
        assert "... and 34 more rows" in text
        assert "&gt;" in answers._repr_html_()


class TestStatuses:
    def test_a_row_that_has_the_decision_already_is_left_alone(self, recourse):
        granted = TOY.X[loan_model().predict(TOY.X) == 1].head(5)
        found = recourse.generate(granted, target=1)
        assert (found.status == "already_target").all()
        pd.testing.assert_frame_equal(found.frame, granted)
        assert found.changes().empty
        assert "the decision is already" in str(found)

    def test_a_row_that_may_change_nothing_is_immovable(self, recourse):
        found = recourse.generate(denied().head(3), max_changes=0)
        assert (found.status == "immovable").all()
        pd.testing.assert_frame_equal(found.frame, denied().head(3))

    def test_a_range_that_leaves_no_way_is_proven_to(self, recourse):
        """Months are whole numbers, so that all that a row may become is tried."""
        now = denied().head(4)
        found = recourse.generate(now, vary=["months"], ranges={"months": (None, now["months"] + 1)})
        assert set(found.status) <= {"infeasible", "ok", "not_robust"}
        poor = denied()[loan_model().predict_proba(denied())[:, 1] < 0.3]
        hopeless = recourse.generate(poor, vary=["months"], ranges={"months": (None, poor["months"] + 1)})
        assert len(hopeless) > 0
        assert (hopeless.status == "infeasible").all()

    def test_mixed_rows_and_directions(self, recourse):
        rows = TOY.X.head(30)
        found = recourse.generate(rows)
        wanted = 1 - loan_model().predict(rows)
        assert (found.target == wanted).all()
        per_row = recourse.generate(rows, target=wanted)
        pd.testing.assert_frame_equal(per_row.frame, found.frame)

    def test_min_prob_is_kept_or_not_found(self, recourse):
        found = recourse.generate(denied(), min_prob=0.9)
        valid = ~found.status.isin(["not_found"])
        assert valid.mean() > 0.7
        assert (found.probability[valid] >= 0.9).all()
        assert (found.probability[~valid] < 0.9).all()


class TestJson:
    @pytest.mark.parametrize("n", [1, 2])
    def test_there_and_back(self, recourse, n):
        found = recourse.generate(denied().head(6), n=n)
        back = Counterfactuals.from_json(found.to_json())
        pd.testing.assert_frame_equal(back.frame, found.frame)
        pd.testing.assert_frame_equal(back.factuals, found.factuals)
        pd.testing.assert_series_equal(back.status, found.status)
        pd.testing.assert_frame_equal(back.changes(), found.changes())
        assert str(back) == str(found)
        assert back.to_json() == found.to_json()
        assert json.loads(found.to_json())["version"] == 2

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", "null", '{"format": "else"}', '{"format": "avcg.counterfactuals", "version": 2}']
    )
    def test_anything_else_is_refused(self, text):
        with pytest.raises(DataError, match=r"not a JSON of counterfactuals|incomplete"):
            Counterfactuals.from_json(text)

    def test_an_older_version_is_refused(self, answers):
        older = json.dumps({**json.loads(answers.to_json()), "version": 1})
        with pytest.raises(DataError, match=r"version 1, and this avcg reads version 2\. Make them again"):
            Counterfactuals.from_json(older)

    def test_a_newer_version_is_refused(self, answers):
        newer = json.dumps({**json.loads(answers.to_json()), "version": 99})
        with pytest.raises(DataError, match="version 99"):
            Counterfactuals.from_json(newer)


class TestPicture:
    def test_the_file_is_a_picture_of_its_kind(self, answers, tmp_path):
        from avcg.report.plots import plot_changes

        png, svg = (plot_changes(answers, tmp_path / name) for name in ("a.png", "a.svg"))
        assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert "income" in svg.read_text() or "rating" in svg.read_text() or len(svg.read_text()) > 5000
        with pytest.raises(SettingError, match="'rows' of plot_changes"):
            plot_changes(answers, tmp_path / "b.png", rows=0)
        with pytest.raises(SettingError, match="no folder"):
            plot_changes(answers, tmp_path / "nowhere" / "b.png")
        with pytest.raises(SettingError, match=r"must end in"):
            plot_changes(answers, tmp_path / "b.doc")


class TestChoice:
    def test_cheapest_that_differ(self):
        space = avcg.TabularSpace.fit(avcg.Schema.infer(TOY.X[["income"]]), TOY.X[["income"]]).codes
        candidates = np.float32([[0.0], [1.0], [1.0], [2.0]])[:, None]
        costs = np.array([[4.0], [1.0], [2.0], [3.0]])
        assert choose(space, candidates, costs, 3, SearchConfig())[:, 0, 0].tolist() == [1.0, 2.0, 0.0]

    def test_of_many_all_are_different_and_the_cheapest_is_first(self):
        X = pd.DataFrame({"a": np.linspace(0.0, 10.0, 50), "b": np.linspace(0.0, 1.0, 50)})
        space, rng = avcg.TabularSpace.fit(avcg.Schema.infer(X), X).codes, np.random.default_rng(0)
        candidates = rng.standard_normal((150, 3, 2)).astype(np.float32)
        candidates = np.concatenate([candidates, candidates[:50]])  # a quarter of them twice
        costs = rng.random((150, 3))
        costs = np.concatenate([costs, costs[:50]])
        config = SearchConfig()
        found = choose(space, candidates, costs, 100, config)
        for row in range(3):
            mine = found[:, row]
            assert len(np.unique(mine, axis=0)) == 100
            first = (candidates[:, row] == mine[0]).all(axis=-1).argmax()
            lowest = quantise(costs[:, row], config.cost_quantum).min()
            assert quantise(costs[first, row], config.cost_quantum) == lowest

    def test_answers_that_are_the_same_are_seen_among_few_and_many(self):
        rng = np.random.default_rng(0)
        for n in (1, 2, 5, 40):
            codes = rng.integers(0, 3, (30 * n, 3)).astype(np.float32)
            codes[codes == 2] = -0.0  # which is 0
            each = codes.reshape(-1, n, 3)
            pairs = (each[:, :, None] == each[:, None, :]).all(axis=-1)
            same = np.tril(pairs, -1).any(axis=-1).ravel()
            assert repeated_answers(codes, n).tolist() == same.tolist()
