"""The page of answers, counted again by hand."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from answer_pages import LOANS, Page
from scipy.stats import binomtest

from avcg import AVCG, BlackBox, PointMass
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import DataError, PromiseWarning, SettingError
from avcg.explainers.records import MEANING
from avcg.guarantees.certificate import Certificate
from avcg.guarantees.statement import agreement, proof
from avcg.method.config import DiagnosticsConfig
from avcg.method.diagnostics import collapse
from avcg.method.distillation import Distillation, Fidelity
from avcg.report.answers_page import render
from avcg.report.page import figure, percent, short
from avcg.report.population import by_group, delivered, opinions

TIMES, MINUS = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"
NEEDS_EXPLAINER = {
    "opinions": "How the models decide, before and after",
    "frontier": "Distance against survival",
    "collapse": "Does the generator respond to the rows?",
    "students": "How well students imitate the models",
}
SECTIONS = {
    "columns": "Which columns change",
    "costs": "What it costs",
    "groups": "Cost by group",
    "without": "Who has no answer",
    "sure": "How sure, and on what assumption",
    **NEEDS_EXPLAINER,
    "people": "Who changes what",
}


def good(answers):
    return np.isin(answers.statuses[:: answers.n], ("ok", "not_robust"))


class TestNumbers:
    """Everything is counted from the frames, cell by cell."""

    def test_the_overview(self, page, answers):
        counts = Counter(answers.statuses.tolist())
        lacking = len(answers) - counts["already_target"]
        assert f"{counts['ok']} of {lacking} people who lack the wanted decision" in page.text()
        assert f"120 people. Wanted: 1 (120). {counts['already_target']} have it already." in page.text()
        exact = binomtest(counts["ok"], lacking).proportion_ci(0.95, "exact")
        assert f"{counts['ok']} of {lacking}, {100 * exact.low:.0f} to {100 * exact.high:.0f} %" in page.text()
        for status, count in counts.items():
            assert f"{count} {status.replace('_', ' ')} {MEANING[status]}" in page.text()
        served = answers.distance[good(answers)]
        assert f"{np.median(served):.3g}distance" in page.text().replace(" distance", "distance")

    def test_columns(self, page, answers):
        some = good(answers)
        differs = (answers.frame.astype(object) != answers.factuals.astype(object))[some]
        lines = page.lines("columns")
        assert set(lines) == {name for name in differs if differs[name].any()}
        for name, (share, resampling, _) in lines.items():
            count, n = int(differs[name].sum()), int(some.sum())
            exact = binomtest(count, n).proportion_ci(0.95, "exact")
            expected = f"{percent(count / n)} {count} of {n}; {100 * exact.low:.0f} to {100 * exact.high:.0f} %"
            assert share == expected
            before, after = (part[name][some][differs[name]] for part in (answers.factuals, answers.frame))
            if name in ("income", "months"):
                moved = after - before
                signs = [f"{sign} {n}" for sign, n in (("↑", (moved > 0).sum()), ("↓", (moved < 0).sum())) if n]
                assert resampling.startswith(" · ".join(signs) + ", typically")
                typical = re.search(r"typically (\S+)", resampling).group(1).replace(MINUS, "-")
                assert float(typical) == pytest.approx(moved.median(), rel=1e-3)
            else:
                moves = Counter(zip(before.tolist(), after.tolist(), strict=True))
                shown = re.findall(rf"(\w+) → (\w+) {TIMES} (\d+)", re.sub(r"something else.*", "", resampling))
                assert [int(times) for *_, times in shown] == [times for _, times in moves.most_common(3)]
                assert all(moves[old, new] == int(times) for old, new, times in shown if name != "owns")
                assert sum(map(int, re.findall(rf"{TIMES} (\d+)", resampling))) == count

    def test_columns_that_nobody_changes(self, answers, recourse):
        changed = answers.changed.copy()
        changed[:, 0] = False
        text = Page.of(render(replace(answers, changed=changed), recourse)).text("columns")
        assert "Never changed: income" in text

    def test_what_changes_together(self, page, answers):
        names = answers.factuals.columns
        sets = Counter(tuple(names[row]) for row in answers.changed[good(answers)])
        together, count = sets.most_common(1)[0]
        assert f"{' + '.join(together)} {TIMES} {count}" in page.text("columns")

    def test_histograms(self, page, answers):
        some = good(answers)
        counts = Counter(answers.changed[some].sum(axis=1).tolist())
        said = "; ".join(f"{k}: {counts[k]}" for k in range(min(counts), max(counts) + 1))
        assert said in page.text("costs")
        bars = re.search(r"People by distance(to [^A-Za-z]+?: .*?)(?=People|$)", "".join(page.sections["costs"]))
        numbers = [int(n) for n in re.findall(r"to [\d.]+: (\d+)", bars.group(1))]
        edges = [0.0, *(float(e) for e in re.findall(r"to ([\d.]+): \d+", bars.group(1)))]
        assert sum(numbers) == some.sum()
        assert numbers == np.histogram(answers.distance[some], edges)[0].tolist()

    @pytest.mark.parametrize("column", ["housing", "owns", "rating", "income"])
    def test_groups(self, answers, recourse, column):
        lines = Page.of(render(answers, recourse, by=column)).lines("groups")
        assert sum(int(line[0]) for line in lines.values()) == 120
        assert sum(int(line[1]) for line in lines.values()) == (answers.statuses != "already_target").sum()
        labels = answers.factuals[column].astype(str)
        for label, (rows, lacking, coverage, kept, agree, distance, columns) in lines.items():
            if column == "income":
                low, high = -np.inf, np.inf
                if "to" in (words := label.split()):
                    high = float(words[-1])
                low = float(words[1]) if words[0] == "over" else low
                mine = ((answers.factuals["income"] > low) & (answers.factuals["income"] <= high)).to_numpy()
            else:
                mine = (labels == label).to_numpy()
            served = mine & good(answers)
            asked, n, ok = (
                int((mine & (answers.statuses != "already_target")).sum()),
                int(served.sum()),
                int((mine & (answers.statuses == "ok")).sum()),
            )
            assert (int(rows), int(lacking)) == (mine.sum(), asked)
            for shown, count, of in ((coverage, n, asked), (kept, ok, n)):
                exact = binomtest(count, of).proportion_ci(0.95, "exact")
                assert (
                    shown == f"{percent(count / of)} {count} of {of}; {100 * exact.low:.0f} to {100 * exact.high:.0f} %"
                )
            assert agree == percent(answers.certificate.agreeing[served].mean() / 9, 1)
            low, middle, high = np.quantile(answers.distance[served], [0.25, 0.5, 0.75])
            assert distance == f"{figure(middle)} {figure(low)} to {figure(high)}"
            assert columns == f"{answers.changed[served].sum() / n:.1f}"

    def test_who_has_none(self, page, answers):
        lines = page.tables["without"]
        statuses = [re.sub(r"^\S+ ", "", name).replace(" ", "_") for name in lines[0][2:]]
        assert set(statuses) == set(answers.statuses.tolist()) - {"ok"}
        for label, rows, *cells in lines[1:]:
            mine = np.ones(120, bool) if label == "all" else (answers.factuals["housing"] == label).to_numpy()
            assert int(rows) == mine.sum()
            for status, cell in zip(statuses, cells, strict=True):
                count = int((answers.statuses[mine] == status).sum())
                assert cell == f"{count} ({percent(count / mine.sum())})"

    def test_how_sure(self, page, answers):
        some, sure = good(answers), answers.certificate
        for agreeing, count in Counter(sure.agreeing[some].tolist()).items():
            (people,) = page.lines("sure")[agreement(agreeing, sure.n)]
            assert people == f"{count} ({percent(count / some.sum())})"
        assert "Every answer was judged by 9 models held back from training." in page.text("sure")
        assert "An answer is ok if at least 90 % of these models accept it." in page.text("sure")
        assert Certificate.ASSUMPTION in page.text("sure")

    def test_what_is_proven_is_for_who_opens_it(self, page, answers, recourse):
        """Exact bounds and the rate of false discoveries, counted again, inside an element that is closed."""
        some, sure = good(answers), answers.certificate
        rates = sure.take(np.flatnonzero(some)).false_discovery_rate(0.9)
        for agreeing, count in Counter(sure.agreeing_test[some].tolist()).items():
            exact = binomtest(agreeing, sure.n_test, alternative="greater").proportion_ci(0.95, "exact").low
            bound, rate, people = page.lines("sure")[f"{agreeing} of 2"]
            assert (bound, people) == (f"{int(100 * exact + 1e-6)} %", str(count))
            assert rate == f"{rates[sure.agreeing_test[some] == agreeing][0]:.3f}"
        text = render(answers, recourse)
        closed = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
        assert "Alone they prove" in text
        assert "Clopper and Pearson, 95 %" not in closed
        for words in ("Alone they prove", "false discovery", "at least 22 %", Certificate.ASSUMPTION):
            assert words not in closed
        assert "the same 2 test models judge every answer, so more answers prove no more" in page.text("sure")
        assert "markov" not in text.lower()
        assert "cantelli" not in text.lower()

    def test_the_promise_is_on_top_in_its_own_words(self, page, answers, recourse):
        assert answers.promise.startswith("No promise for the target 1 that a retrained model accepts 90 of 100 people")
        assert answers.promise in page.text()
        with pytest.warns(PromiseWarning, match="No promise for the target 0"):
            promising = recourse.calibrate(survival=0.5, reliability=0.8)
        some = promising.generate(LOANS.X.head(20), target=1)
        assert some.promise.startswith("At most a 1 in 5 chance")
        assert some.promise in Page.of(render(some, promising)).text()
        several = promising.generate(LOANS.X.head(20), target=1, n=2)
        assert "it was calibrated for single answers" in Page.of(render(several, promising)).text()

    def test_what_is_known_of_the_models_is_the_assumption(self, page, answers, recourse):
        assert "the next model is made like these 9" in page.text("sure")
        noted = Page.of(render(answers, recourse, assumption="Next year's <model> is like this year's.")).text("sure")
        assert "The assumption: Next year's <model> is like this year's. A model of another kind" in noted
        assert "made like these" not in noted

    def test_opinions(self, page, answers, recourse):
        some, fresh = good(answers), recourse.split_.held_out
        votes = {}
        for side, frame in (("before", answers.factuals[some]), ("after", answers.frame[some])):
            with torch.no_grad():
                said = fresh.log_probs(recourse.space_.encode(frame)).exp().numpy()
            votes[side] = (said.argmax(-1) == 1).sum(axis=0)
            spread = said[..., 1].max(axis=0) - said[..., 1].min(axis=0)
            place = ("before", "after").index(side)
            lines = page.lines("opinions")
            m = votes[side] / len(fresh)
            assert lines["Models that decide for the target, on average"][place] == percent(m.mean())
            split = int(((m > 0) & (m < 1)).sum())
            assert lines["People that the models disagree about"][place] == str(split)
            differ = "Disagreement of two random models, on average (1: an even split)"
            assert float(lines[differ][place]) == pytest.approx((4 * m * (1 - m)).mean(), abs=1e-3)
            widest = "Difference of the highest and lowest probability, on average"
            assert float(lines[widest][place]) == pytest.approx(spread.mean(), abs=1e-3)
        np.testing.assert_array_equal(votes["after"], answers.certificate.agreeing[some])
        for k, label in enumerate(["0 of 9", *map(str, range(1, 9)), "9 of 9"]):
            counts = [int((votes[side] == k).sum()) for side in ("before", "after")]
            assert f"{label}: {counts[0]} before, {counts[1]} after" in page.text("opinions")

    def test_opinions_obey_a_threshold(self, answers, recourse):
        from avcg.method.deployed import DeployedModel

        strict = replace_attribute(recourse, "deployed_", DeployedModel(recourse.deployed_.predictors, 0.8))
        found, some = opinions(answers, strict), good(answers)
        with torch.no_grad():
            said = recourse.split_.held_out.log_probs(recourse.space_.encode(answers.frame[some])).exp()[..., 1]
        np.testing.assert_array_equal(found.after, (said >= 0.8).sum(dim=0).numpy())
        assert found.after.sum() < opinions(answers, recourse).after.sum()

    def test_frontier(self, page, recourse):
        """A chart for each target, with a line for each effort, a chosen margin, and what is promised."""
        found, words = recourse.calibration_, page.text("frontier")
        assert words.count("asked for: 90 %") == 2
        assert "A promise is made for none of 2 targets." in words
        for (effort, target), lines in found.frontier.groupby(level=["effort", "target"], sort=False):
            assert f"Answers that aim at {target}" in words
            direction = found.of_effort(effort)[target]
            for line in lines[lines["answered"] > 0].to_dict("records"):
                assert f"distance {figure(line['distance'])}: {100 * line['survival']:.1f} %" in words
            chosen = lines.loc[effort, target, direction.margin]
            at = f"{percent(chosen['survival'], 1)} at a mean distance of {figure(chosen['distance'])}."
            assert f"{effort}, no promise {direction.statement(found.promise, found.n_models)} Margin" in words
            assert at in words
        drawn = Counter(value for tag, name, value in page.attributes if name == "class")
        for effort, directions in found.directions.items():
            assert drawn[f"mark {effort}"] == sum(int((each.table.answered > 0).sum()) for each in directions)
            assert drawn[f"joined {effort}"] == 2
        assert drawn["ring"] == 6
        marks = {(tag, value) for tag, name, value in page.attributes if str(value).startswith("mark")}
        # Told apart without colours.
        assert marks == {("circle", "mark fast"), ("rect", "mark standard"), ("polygon", "mark thorough")}

    def test_a_knob_that_does_nothing_is_called_so(self, answers, recourse):
        calibration = recourse.calibration_
        words = Page.of(render(answers, recourse)).text("frontier")
        for direction in sum(calibration.directions.values(), ()):
            survival = direction.table.survival[direction.table.answered > 0]
            rises = survival.max() - survival[0] >= 0.0005
            low, high = percent(survival[0], 1), percent(survival.max(), 1)
            assert (f"raises survival from {low} to {high}" if rises else f"Survival is {low} at the smallest") in words
        table = calibration.of_effort("fast")[0].table
        flat = replace(table, accepted=np.full_like(table.accepted, 3), answered=np.full_like(table.answered, 4))
        dead = replace(calibration, directions={"fast": (replace(calibration.of_effort("fast")[0], table=flat),)})
        words = Page.of(render(answers, replace_attribute(recourse, "calibration_", dead))).text("frontier")
        assert "Survival is 75.0 % at the smallest margin, and a larger one does not raise it." in words

    def test_collapse(self, page, recourse):
        seen = recourse.diagnostics_
        for name in ("personalisation", "kl", "active_units"):
            first, last = seen[name].iloc[[0, -1]]
            assert f"{first:.3g} after the first epoch, {last:.3g} after the last" in page.text("collapse")
        assert f"answers differ {percent(seen['personalisation'].iloc[-1])} as much" in page.text("collapse")

    def test_people(self, page, answers):
        lines = page.lines("people")
        assert set(lines) == {str(label) for label in answers.factuals.index}
        lacking = answers.statuses != "already_target"
        assert list(lines) == [str(at) for at in [*answers.factuals.index[lacking], *answers.factuals.index[~lacking]]]
        for place, (label, row) in enumerate(answers.factuals.iterrows()):
            target, status, what, probability, sure, distance = lines[str(label)]
            assert target == "1"
            assert status.split(maxsplit=1)[1].replace(" ", "_") == answers.statuses[place]
            before = f"{answers.probability_before[place]:.2f}"
            if not lacking[place]:
                assert (what, probability, sure, distance) == (MEANING["already_target"], before, "", "")
                continue
            for name in answers.factuals:
                old, new = row[name], answers.frame[name].iloc[place]
                if old != new:
                    assert f"{name}: {short(old)} → {short(new)}" in what
            assert what.count("→") == answers.changed[place].sum()
            assert probability == f"{before} → {answers.probability[place]:.2f}"
            certificate = answers.certificate
            votes, tested = int(certificate.agreeing[place]), int(certificate.agreeing_test[place])
            bound = proof(tested, 2, float(certificate.lower_bound[place]), 0.95)
            caution = (int(certificate.accepting_unchanged[place]), int(certificate.harmed[place]))
            assert sure == f"{agreement(votes, 9, *caution)}exact bound{bound}"
            assert float(distance) == pytest.approx(answers.distance[place], rel=5e-3)


def replace_attribute(explainer, name, value):
    import copy

    other = copy.copy(explainer)
    setattr(other, name, value)
    return other


class TestSections:
    def test_all_of_a_fitted_generator(self, page):
        assert list(page.tables) == [name for name in SECTIONS if name != "students"] + ["rests"]
        assert "How well students imitate the models: The models have gradients, and need no students." in page.text(
            "rests"
        )
        shown = [at for tag, name, at in page.attributes if (tag, name) == ("a", "href")]
        assert shown == [f"#{name}" for name in SECTIONS if name != "students"]

    def test_without_an_explainer(self, answers):
        page = Page.of(render(answers))
        assert list(page.tables) == ["columns", "costs", "without", "sure", "people", "rests"]
        for title in (*NEEDS_EXPLAINER.values(), "Cost by group"):
            assert f"{title}: " in page.text("rests")

    def test_a_method_without_a_generator(self, recourse):
        other = NearestUnlike(recourse.hypotheses, survival=0.9).fit(LOANS.X)
        page = Page.of(render(other.generate(LOANS.X.head(20), target=1), other))
        assert "opinions" in page.tables
        assert page.text("rests").count("Only AVCG trains a generator; these answers are by NearestUnlike.") == 3

    def test_no_models_set_aside(self):
        rule = BlackBox(lambda rows: (rows["income"] > 50) * 1.0, LOANS.X)
        alone = NearestUnlike(PointMass(rule)).fit(LOANS.X)
        page = Page.of(render(alone.generate(LOANS.X.head(30), target=1), alone, by="owns"))
        assert page.text("rests").count("No models are held back from training.") == 2
        assert {"sure", "opinions"}.isdisjoint(page.tables)
        assert len(page.tables["groups"][0]) == 6
        assert "held back from training accept" not in page.text().replace(MEANING["ok"], "")

    def test_students(self, answers, recourse):
        looks = [Fidelity("training", 0.908, 0.0621, 14), Fidelity("answers", 0.9996, 0.0114, 4000)]
        taught = Distillation.of(recourse.split_.calibration, looks, recourse.recipe_.distillation)
        page = Page.of(render(answers, replace_attribute(recourse, "distillation_", taught)))
        assert page.tables["students"][1:] == [
            ["1", "held-out training rows", "14", "90.8 %", "0.062"],
            ["2", "answers of the generator", "4000", ">99.9 %", "0.011"],
        ]

    @pytest.mark.parametrize(("share", "units", "says"), [
        (0.05, 3, "The answers have collapsed: the generator sends everyone to nearly one profile"),
        (0.6, 0, "The answers have not collapsed, but the latent has"),
        (0.6, 1, "Nothing has collapsed: answers differ 60 % as much as the rows they answer, and 1 latent unit is in"),
    ])  # fmt: skip
    def test_a_collapse_is_called_one(self, answers, recourse, share, units, says):
        seen = recourse.diagnostics_.assign(personalisation=share, active_units=units)
        page = Page.of(render(answers, replace_attribute(recourse, "diagnostics_", seen)))
        assert says in page.text("collapse")
        assert (collapse(seen, DiagnosticsConfig()) is None) == (share > 0.1)

    def test_promises_by_target_and_why_there_is_none(self, answers, recourse):
        """Made for one target and not for the other, since no answer to any calibration row reaches that one."""
        with pytest.warns(PromiseWarning, match="No promise for the target 0"):
            calibration = recourse.calibrate(survival=0.5, reliability=0.8).calibration_
        first, second = calibration.of_effort("fast")
        table = first.table
        nobody = replace(
            table, **{name: np.zeros_like(getattr(table, name)) for name in ("answered", "accepted", "ever_refused")}
        )
        mixed = replace(calibration, directions={"fast": (replace(first, table=nobody), second)})
        mixed = mixed.with_promise(mixed.promise)
        assert str(mixed).startswith("No promise for the target 0 that")
        assert "For the target 1: at most a 1 in 5 chance that" in str(mixed)
        page = Page.of(render(answers, replace_attribute(recourse, "calibration_", mixed)))
        words = page.text("frontier")
        assert "A promise is made for 1 of 2 targets." in words
        assert f"fast, promised {second.statement(mixed.promise, 7)} Margin" in words
        assert "fast, no promise No promise for the target 0 that" in words
        assert "No answer to any row." in words
        assert Counter(page.tags)["desc"] == 6 + 1


class TestGroups:
    def test_by_nothing_is_everyone(self, answers):
        (everyone,) = by_group(answers, None, 0.95)
        assert everyone.rows == 120
        assert everyone.coverage.count == delivered(answers).sum()
        assert everyone.kept.count == (answers.statuses == "ok").sum()


class TestMistakes:
    @pytest.mark.parametrize(
        ("ask", "kind", "says"),
        [
            (lambda a, _: render(a, by="houses"), DataError, "Did you mean 'housing'"),
            (lambda a, _: render(a, LOANS), SettingError, "'explainer' of render must be a fitted method"),
            (lambda a, _: render(replace(a, statuses=a.statuses[:3])), DataError, "it has 3 of 120 'statuses'"),
            (lambda a, _: render(replace(a, survival=1.0)), DataError, "its survival must be in (0, 1). Got 1.0"),
            (
                lambda a, e: render(replace(a, target=np.full(120, "x")), e),
                DataError,
                "must be among the model's classes",
            ),
            (
                lambda a, _: render(replace(a, factuals=a.factuals.assign(x=1))),
                DataError,
                "'x' is in the factuals alone",
            ),
            (
                lambda a, _: render(replace(a, changed=a.changed[:, :2])),
                DataError,
                "'changed' has 2 columns, not 5",
            ),
        ],
    )
    def test_they_are_named(self, answers, recourse, ask, kind, says):
        with pytest.raises(kind, match=re.escape(says)):
            ask(answers, recourse)

    def test_an_explainer_that_has_not_been_fitted(self, answers, recourse):
        with pytest.raises(ValueError, match="not fitted"):
            render(answers, AVCG(recourse.hypotheses))
