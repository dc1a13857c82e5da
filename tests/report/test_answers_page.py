"""The page of answers, counted again by hand; everything a row can hold, and every section there or excused."""

import base64
import re
import struct
import warnings
import zlib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.stats import binomtest
from typer.testing import CliRunner

from avcg import AVCG, BlackBox, Classifier, Counterfactuals, PointMass, Recipe, Schema, retrains, toys
from avcg.baselines.nearest import NearestUnlike
from avcg.cli.report import report_app
from avcg.errors import AvcgError, DataError, SettingError
from avcg.explainers.records import MEANING
from avcg.guarantees.certificate import Certificate
from avcg.method.calibration import Calibration
from avcg.method.config import DiagnosticsConfig
from avcg.method.diagnostics import collapse
from avcg.method.distillation import Distillation, Fidelity
from avcg.report import svg
from avcg.report.answers_page import render
from avcg.report.images import png
from avcg.report.page import at_least, figure, percent, short
from avcg.report.population import by_column, by_group, delivered, number_columns, opinions

LOANS = toys.loans(n=300)
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


@pytest.fixture(scope="module")
def recourse():
    model = Classifier(hidden=(16,), epochs=30, schema=LOANS.schema).fit(LOANS.X, LOANS.y)
    everyone = retrains(model, LOANS.X, LOANS.y, n=16, resampling="bootstrap")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return AVCG(everyone, survival=0.9, recipe=Recipe(steps=150, layers=(32, 32))).fit(LOANS.X)


@pytest.fixture(scope="module")
def answers(recourse):
    return recourse.generate(LOANS.X.head(120), target=1)


@pytest.fixture(scope="module")
def three(recourse):
    return recourse.generate(LOANS.X.head(40), target=1, n=3)


@pytest.fixture(scope="module")
def page(answers, recourse):
    return Page.of(render(answers, recourse, by="housing"))


class Page(HTMLParser):
    """A page that was read: well-formed, with its tables, its words by section, and what its pictures say."""

    VOID = ("meta", "img")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.tables, self.sections, self.words = [], [], [], {}, {}, []
        self.section, self.cell = None, None

    @classmethod
    def of(cls, text):
        page = cls()
        page.feed(text)
        page.close()
        assert page.open == []
        return page

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *one) for one in attrs]
        if tag == "h2":
            self.section = dict(attrs)["id"]
            self.tables[self.section] = []
        if tag == "tr":
            self.tables[self.section].append([])
        if tag in ("td", "th"):
            self.cell = []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.tables[self.section][-1].append(" ".join("".join(self.cell).split()))
            self.cell = None

    def handle_data(self, data):
        self.words.append(data)
        self.sections.setdefault(self.section, []).append(data)
        if self.cell is not None and "title" not in self.open:
            self.cell.append(data)

    def text(self, section=None):
        return " ".join("".join(self.words if section is None else self.sections[section]).split())

    def lines(self, section):
        """By the first cell, the others, without heads."""
        return {line[0]: line[1:] for line in self.tables[section][1:]}


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
        assert "Changed by nobody: income" in text

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
            assert agree == percent(answers.certificate.agreeing[served].mean() / 4, 1)
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
            exact = binomtest(agreeing, sure.n, alternative="greater").proportion_ci(0.95, "exact").low
            bound, people = page.lines("sure")[f"{agreeing} of {sure.n}"]
            assert bound == f"{int(100 * exact + 1e-6)} %"
            assert people == f"{count} ({percent(count / some.sum())})"
        assert Certificate.ASSUMPTION in page.text("sure")
        assert "29 models would be needed, and all would have to agree" in page.text("sure")
        assert 0.05 ** (1 / 29) >= 0.9 > 0.05 ** (1 / 28)

    def test_what_is_known_of_the_models_is_the_assumption(self, page, answers, recourse):
        assert "the next model is made like these 4" in page.text("sure")
        noted = Page.of(render(answers, recourse, assumption="Next year's <model> is like this year's.")).text("sure")
        assert "The assumption: Next year's <model> is like this year's. A model of another kind" in noted
        assert "made like these" not in noted

    def test_opinions(self, page, answers, recourse):
        some, fresh = good(answers), recourse.split_.test
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
        for k, label in enumerate(["0 of 4", "1", "2", "3", "4 of 4"]):
            counts = [int((votes[side] == k).sum()) for side in ("before", "after")]
            assert f"{label}: {counts[0]} before, {counts[1]} after" in page.text("opinions")

    def test_opinions_obey_a_threshold(self, answers, recourse):
        from avcg.method.deployed import DeployedModel

        strict = replace_attribute(recourse, "deployed_", DeployedModel(recourse.deployed_.predictors, 0.8))
        found, some = opinions(answers, strict), good(answers)
        with torch.no_grad():
            said = recourse.split_.test.log_probs(recourse.space_.encode(answers.frame[some])).exp()[..., 1]
        np.testing.assert_array_equal(found.after, (said >= 0.8).sum(dim=0).numpy())
        assert found.after.sum() < opinions(answers, recourse).after.sum()

    def test_frontier(self, page, recourse):
        found, words = recourse.calibration_, page.text("frontier")
        assert "promised: 90 %" in words
        assert len(found.frontier) == 25
        best = found.frontier.loc[found.margin]
        assert f"chosen: {100 * best['survival']:.1f} % at {best['distance']:.3g}" in words
        for one in found.frontier.to_dict("records"):
            assert f"distance {figure(one['distance'])}: {100 * one['survival']:.1f} %" in words
        assert ("is met" in words) == found.met

    def test_full_points_are_not_beaten(self, page, recourse):
        table = recourse.calibration_.frontier
        points = list(zip(table["distance"], table["survival"], strict=True))
        unbeaten = sum(not any(d <= x and s >= y and (d, s) != (x, y) for d, s in points) for x, y in points)
        assert page.attributes.count(("circle", "class", "best")) == unbeaten

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
            agreeing, bound = answers.certificate.agreeing[place], answers.certificate.lower_bound[place]
            assert sure == f"{agreeing} of 4: at least {at_least(bound)}"
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
        assert page.text("rests").count("There are no held-out models.") == 2
        assert {"sure", "opinions"}.isdisjoint(page.tables)
        assert len(page.tables["groups"][0]) == 6
        assert "held-out models agree with" not in page.text()

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

    def test_a_promise_that_is_not_kept(self, answers, recourse):
        found = recourse.calibration_
        table = pd.DataFrame(
            [{"survival": 0.5, "error": 0.1, "validity": 1.0, "distance": 2.0, "changes": 1.0}],
            index=pd.Index([0.25], name="margin"),
        )
        broken = Calibration(0.25, 0.999, False, 0.5, table, found.n_rows, found.n_hypotheses, found.standard_errors)
        words = Page.of(render(answers, replace_attribute(recourse, "calibration_", broken))).text("frontier")
        assert "The promise of 99.9 % could not be met" in words
        assert "the one that comes closest" in words


class TestRows:
    def test_several_answers_each(self, three, recourse):
        page = Page.of(render(three, recourse, by="housing"))
        assert "There are 3 answers for each; the numbers on this page count the first." in page.text()
        first = Counter(three.statuses[::3].tolist())
        assert f"{first['ok']} of {40 - first['already_target']} people" in page.text()
        asked = int((three.statuses[::3] != "already_target").sum())
        assert len(page.tables["people"][1:]) == 3 * asked + (40 - asked)
        assert (
            page.text("people").count("As above: no other answer was found.")
            == three.repeated[np.repeat(three.statuses[::3] != "already_target", 3)].sum()
        )
        unlucky = np.isin(three.statuses[::3], ("not_robust", "not_valid"))
        rescued = int((unlucky & (three.statuses.reshape(-1, 3) == "ok").any(axis=1)).sum())
        assert (f"For {rescued} of all these, a further answer is ok" in page.text("without")) == bool(rescued)

    def test_taking_some_is_having_asked_about_some(self, three, recourse):
        rows = np.array([7, 3, 30])
        some, asked = three.take(rows, 2), recourse.generate(three.factuals.iloc[rows], target=1, n=3)
        pd.testing.assert_frame_equal(some.factuals, asked.factuals)
        both = asked.answers.iloc[[0, 1, 3, 4, 6, 7]]
        pd.testing.assert_frame_equal(some.answers.reset_index(drop=True), both.reset_index(drop=True))
        assert (some.n, three.take(rows).n) == (2, 3)
        with pytest.raises(SettingError, match=r"'n' of take must be at most 3, as many as there are. Got 4"):
            three.take(rows, 4)
        np.testing.assert_array_equal(some.statuses, asked.statuses[[0, 1, 3, 4, 6, 7]])
        np.testing.assert_array_equal(some.certificate.agreeing, asked.certificate.agreeing[[0, 1, 3, 4, 6, 7]])
        np.testing.assert_allclose(some.probability_before, asked.probability_before, atol=1e-6)
        assert len(some.frame) == 6

    def test_every_status(self, answers, recourse):
        statuses = np.array([list(MEANING)[i % 5] for i in range(120)])
        page = Page.of(render(replace(answers, statuses=statuses), recourse, by="rating"))
        for status, meaning in MEANING.items():
            assert f"24 {status.replace('_', ' ')} {meaning}" in page.text()
        assert "For 48 people no change that flips the decision was found." in page.text("without")
        assert "24 more have a change that too few models agree with." in page.text("without")
        for status in ("infeasible", "already_target"):
            assert page.text("people").count(MEANING[status]) == 24
        assert "Only where the status is infeasible is it certain" in page.text("without")

    @pytest.mark.parametrize("status", ["already_target", "infeasible", "not_valid"])
    def test_nobody_is_told_anything(self, answers, recourse, status):
        page = Page.of(render(replace(answers, statuses=np.full(120, status)), recourse, by="housing"))
        assert {"columns", "costs", "sure", "opinions"}.isdisjoint(page.tables)
        assert page.text("rests").count("No decision flips") == 4
        assert len(page.tables["people"]) == 121
        if status == "already_target":
            assert "All people have the wanted decision already" in page.text()

    def test_all_is_well(self, answers):
        words = Page.of(render(replace(answers, statuses=np.full(120, "ok")))).text("without")
        assert "Every answer is ok." in words

    def test_gaps(self):
        X = LOANS.X.assign(housing=LOANS.X["housing"].astype(object))
        X.loc[X.index[::3], "income"] = np.nan
        X.loc[X.index[::4], "housing"] = None
        schema = Schema.infer(X).allow_missing("income", "housing")
        rule = BlackBox(lambda rows: (rows["income"].fillna(0) > 50) * 1.0, X, schema=schema)
        recourse = NearestUnlike(PointMass(rule)).fit(X)
        answers = recourse.generate(X.head(60), target=1)
        page = Page.of(render(answers, recourse, by="housing"))
        filled = (answers.factuals["income"].isna() & answers.changed[:, 0]).sum()
        assert filled
        assert f"{filled} missing values filled" in page.lines("columns")["income"][1]
        assert page.text("people").count("income: missing → ") == filled
        assert "missing" in page.lines("groups")
        known = answers.changed[:, 0] & answers.factuals["income"].notna()
        moved = (answers.frame["income"] - answers.factuals["income"])[known]
        column = by_column(answers, number_columns(answers, recourse), 0.95)[0]
        assert (column.name, column.number.up, column.filled) == ("income", (moved > 0).sum(), filled)

    def test_an_index_of_several_levels_and_polars(self, answers, recourse):
        index = pd.MultiIndex.from_product([["north", "south"], range(60)], names=["region", "no"])
        nested = replace(answers, factuals=answers.factuals.set_axis(index), answers=answers.answers.set_axis(index))
        page = Page.of(render(nested, recourse))
        assert page.tables["people"][0][0] == "region / no"
        assert "south / 59" in page.lines("people")
        rows = pl.from_pandas(LOANS.X.head(30).reset_index(drop=True))
        own = recourse.generate(rows, target=1, n=2)
        same = recourse.generate(LOANS.X.head(30).reset_index(drop=True), target=1, n=2)
        assert render(own, recourse, by="housing") == render(same, recourse, by="housing")

    def test_what_was_stored_gives_the_same_page(self, answers, recourse):
        stored = Counterfactuals.from_json(answers.to_json())
        assert render(stored, recourse, by="income") == render(answers, recourse, by="income")

    def test_numbers_that_stand_for_categories(self, answers, recourse):
        assert number_columns(answers, recourse) == {"income", "months"}
        coded = answers.factuals.assign(owns=answers.factuals["owns"].astype(int))
        assert number_columns(replace(answers, factuals=coded), None) == {"income", "months", "owns"}

    def test_a_long_list_is_cut_and_says_so(self, answers, recourse):
        place = np.tile(np.arange(120), 3)
        page = Page.of(render(answers.take(place, 1), recourse))
        assert len(page.tables["people"]) == 201
        assert "And 160 more people, whose answers are in the file." in page.text("people")

    def test_many_groups_are_cut_to_the_largest(self, answers, recourse):
        labels = [f"g{i:02d}" if i < 100 else "g99" for i in range(120)]
        shown = replace(answers, factuals=answers.factuals.assign(housing=labels))
        page = Page.of(render(shown, by="housing"))
        assert len(page.tables["groups"]) == 31
        assert page.lines("groups")["g99"][0] == "21"
        assert "And 70 smaller groups." in page.text("groups")

    def test_many_changes_and_answers_are_cut(self):
        X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 20)), columns=[f"c{i}" for i in range(20)])
        rule = BlackBox(lambda rows: (rows["c0"] > 0) * 1.0, X)
        recourse = NearestUnlike(PointMass(rule)).fit(X)
        page = Page.of(render(recourse.generate(X[X["c0"] < 0].head(4), target=1, n=7), recourse))
        assert "and 8 more" in page.text("people")
        assert "And 2 more answers for each of them." in page.text("people")
        assert len(page.tables["people"]) == 1 + 4 * 5
        assert "12 or more: 4" in page.text("costs")

    def test_no_rows(self, answers):
        page = Page.of(render(answers.take(np.array([], np.intp), 1)))
        assert "0 people" in page.text()


class TestPage:
    def test_it_needs_nothing(self, answers, recourse):
        text = render(answers, recourse, by="housing")
        assert not re.search(r"https?:|//|@import|url\(|src=", text)
        page = Page.of(text)
        assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
        assert not [one for one in page.attributes if one[1].startswith("on")]

    def test_the_same_twice(self, answers, recourse):
        assert render(answers, recourse, by="months") == render(answers, recourse, by="months")

    def test_everything_can_be_read_aloud(self, page):
        assert page.tags.count("svg") == sum(one == ("svg", "role", "img") for one in page.attributes)
        assert page.tags.count("title") == page.tags.count("svg") + 1
        charts = sum(one[:2] == ("svg", "class") and one[2] in ("chart", "half", "small") for one in page.attributes)
        assert page.tags.count("desc") == charts == 7
        heads = sum(tag == "th" for tag in page.tags)
        assert heads == sum(one[:2] == ("th", "scope") for one in page.attributes)
        levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h\d", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert max(np.diff(levels)) <= 1

    def test_what_users_wrote_is_escaped(self, answers):
        nasty = "<b onload=alert(1)>x</b>"
        parts = [
            frame.replace({"housing": {"rent": nasty, "own": "</style><script>"}})
            .rename(columns={"income": "in<i>come", "owns": "<script>"})
            .set_axis([f"<u>{i}" for i in range(120)])
            for frame in (answers.factuals, answers.frame)
        ]
        target = np.full(120, "<em>yes")
        page_of = replace(answers, factuals=parts[0], answers=parts[1], target=target)
        for by in ("housing", "<script>"):
            text = render(page_of, by=by, title="<h1>Hello")
            page = Page.of(text)
            assert not {"b", "i", "u", "em", "script"} & set(page.tags)
            assert page.tags.count("h1") == 1
            assert nasty not in text
            assert {nasty, "in<i>come", "<u>7", "<em>yes", "<h1>Hello"} <= set(map(str.strip, page.words)) | set(
                re.findall(r"<em>yes|in<i>come|<h1>Hello", page.text())
            )

    def test_long_values_are_cut(self, answers):
        rows, stood = (frame.assign(housing="z" * 500) for frame in (answers.factuals, answers.frame))
        text = render(replace(answers, factuals=rows, answers=stood), by="housing")
        assert "z" * 81 not in text
        assert "z" * 79 + "…" in text


@pytest.fixture(scope="module")
def of_images():
    images = np.random.default_rng(0).integers(0, 100, (60, 5, 4), dtype=np.uint8)
    images[::2, :2] += 120
    labels = np.array(["top", "none"] * 30)
    model = Classifier(hidden=(4,), epochs=20).fit(images, labels)
    return NearestUnlike(retrains(model, images, labels, n=4)).fit(images), images


class TestImages:
    def pictures(self, page):
        found = []
        for tag, name, at in page.attributes:
            if (tag, name) == ("img", "src"):
                assert at.startswith("data:image/png;base64,")
                found.append(read_png(base64.b64decode(at.removeprefix("data:image/png;base64,"))))
        return found

    @pytest.mark.parametrize("n", [1, 2])
    def test_before_after_and_difference(self, of_images, n):
        method, images = of_images
        answers = method.generate(images[:9], target="top", n=n)
        page = Page.of(render(answers, method))
        assert "Which columns change: Images have no columns." in page.text("rests")
        changed = [i for i in range(9) if answers.statuses[i * n] != "already_target"]
        found = self.pictures(page)
        assert len(found) == 3 * n * len(changed)
        named = [line[0] for line in page.tables["people"][1:] if len(line) == 7]  # the others are further answers
        assert named[: len(changed)] == [str(i) for i in changed]
        for place, row in enumerate(changed):
            for k in range(n):
                before, after, difference = found[3 * (place * n + k) :][:3]
                assert (before == images[row][..., None]).all()
                own = answers.answers[row * n + k]
                assert (after == own[..., None]).all()
                same = own == images[row]
                assert (difference[same] == 236).all()
                assert not (difference[~same] == 236).all(axis=-1).any()

    @pytest.mark.parametrize("shape", [(6, 8, 8, 3), (6, 3, 8, 8), (6, 1, 8, 8), (6, 300, 200)])
    def test_layouts_and_sizes(self, of_images, shape):
        method, images = of_images
        told_ones = method.generate(images[[1, 3, 5, 7, 9, 11]], target="top")
        rng = np.random.default_rng(1)
        first, second = rng.random((2, *shape))
        page = Page.of(render(replace(told_ones, factuals=first, answers=second)))
        found = self.pictures(page)
        assert len(found) == 18
        assert max(found[0].shape) <= 96
        if shape == (6, 3, 8, 8):
            span = max(first.max(), second.max()) - (low := min(first.min(), second.min()))
            expected = np.round(255 * (np.moveaxis(first[0], 0, -1) - low) / span)
            assert (found[0] == expected).all()

    def test_channels_that_cannot_be_told(self, of_images):
        method, images = of_images
        told_ones = method.generate(images[[1, 3]], target="top")
        odd = np.zeros((2, 4, 4, 4))
        page = Page.of(render(replace(told_ones, factuals=odd, answers=odd)))
        assert "The images are not shown" in page.text("people")
        assert self.pictures(page) == []

    def test_no_columns_to_group_by(self, of_images):
        method, images = of_images
        with pytest.raises(DataError, match="Images have no columns to group by"):
            render(method.generate(images[:3], target="top"), method, by="x0")


def read_png(data):
    """Pixels of an unfiltered PNG, every checksum checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body, size = 8, b"", None
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + content)
        if kind == b"IHDR":
            size = struct.unpack(">II", content[:8])
            assert content[8:] == bytes([8, 2, 0, 0, 0])
        body += content if kind == b"IDAT" else b""
        at += 12 + length
    lines = np.frombuffer(zlib.decompress(body), np.uint8).reshape(size[1], 1 + 3 * size[0])
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:].reshape(size[1], size[0], 3).astype(int)


class TestDrawing:
    def test_a_png_is_read_back(self):
        pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
        assert (read_png(png(pixels)) == pixels).all()

    @pytest.mark.parametrize(("low", "high"), [(0, 1), (0.031, 0.97), (-3, 12), (5, 5), (0, 0), (1e-9, 2e-9), (0, 9e7)])
    @pytest.mark.parametrize("most", [3, 5, 8])
    def test_ticks_are_round_and_hold_everything(self, low, high, most):
        found = svg.ticks(low, high, most)
        assert found[0] <= low + 1e-12
        assert found[-1] >= high - 1e-12
        assert 2 <= len(found) <= most + 3
        steps = np.diff(found)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
        assert f"{steps[0]:.2e}"[:4] in ("1.00", "2.00", "2.50", "5.00")

    def test_a_bar_is_as_long_as_its_share(self):
        drawn = str(svg.share_bar(0.25, 0.1, 0.5, "a <quarter>"))
        assert "<title>a &lt;quarter&gt;</title>" in drawn
        assert re.search(r'class="holds" x="0" y="2" width="60"', drawn)
        assert re.search(r'class="whisker" x1="24" y1="8" x2="120"', drawn)
        assert 'class="holds" x="0" y="2" width="0"' in str(svg.share_bar(float("nan"), 0.0, 1.0, "none"))

    def test_parts_fill_the_whole(self):
        drawn = str(svg.stacked_bar([svg.Part("ok", 3, "three"), svg.Part("lost", 1, "one")], "x"))
        found = [
            (float(x), float(w)) for x, w in re.findall(r'<rect class="\w+" x="([\d.]+)" y="0" width="([\d.]+)"', drawn)
        ]
        assert found == [(0, 748), (750, 248)]

    def test_a_curve_with_holes_and_of_many_epochs(self):
        words = svg.Words("loss", "it falls")
        drawn = str(svg.curve([float("nan"), 2.0, 1.0], words))
        assert drawn.count(",") == 2
        assert str(svg.curve([1.0] * 5000, words)).count(",") <= 202
        assert "polyline" not in str(svg.curve([float("nan")], words))


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
            (lambda a, _: render(replace(a, survival=1.0)), DataError, "a survival of 1.0 is no share"),
            (lambda a, e: render(replace(a, target=np.full(120, "x")), e), DataError, "none of the model's classes"),
            (
                lambda a, _: render(replace(a, factuals=a.factuals.assign(x=1))),
                DataError,
                "'x' is in the factuals alone",
            ),
            (
                lambda a, _: render(replace(a, changed=a.changed[:, :2])),
                DataError,
                "'changed' speaks of 2 of 5 columns",
            ),
        ],
    )
    def test_they_are_named(self, answers, recourse, ask, kind, says):
        with pytest.raises(kind, match=re.escape(says)):
            ask(answers, recourse)

    def test_an_explainer_that_has_not_been_fitted(self, answers, recourse):
        with pytest.raises(ValueError, match="not fitted"):
            render(answers, AVCG(recourse.hypotheses))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, answers, recourse):
    folder = tmp_path_factory.mktemp("report")
    recourse.save(folder / "recourse")
    (folder / "answers.json").write_text(answers.to_json())
    return folder


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(report_app, list(map(str, arguments)))

    def test_it_writes_the_page(self, folder, tmp_path, answers, recourse):
        out = tmp_path / "page.html"
        result = self.run(
            folder / "recourse", folder / "answers.json", "--out", out, "--by", "housing", "--title", "Loans"
        )
        assert result.exit_code == 0, result.output
        assert result.output.splitlines() == [str(answers).split("\n")[0], f"Written to {out}"]
        assert out.read_text(encoding="utf-8") == render(answers, recourse, by="housing", title="Loans")
        assert [path.name for path in tmp_path.iterdir()] == [out.name]

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["recourse", "answers.json", "--out", "page.pdf"], "--out must end in '.html'. Got 'page.pdf'"),
            (["recourse", "answers.json", "--out", "nowhere/page.html"], "There is no folder 'nowhere'"),
            (["recourse", "none.json"], "There is no file 'none.json'"),
            (["nowhere", "answers.json"], "nowhere"),
            (["recourse", "answers.json", "--by", "hosing"], "Did you mean 'housing'"),
        ],
    )
    def test_mistakes_leave_no_file(self, folder, tmp_path, monkeypatch, arguments, says):
        monkeypatch.chdir(folder)
        before = sorted(folder.rglob("*"))
        result = self.run(*arguments)
        assert isinstance(result.exception, AvcgError)
        assert says in str(result.exception)
        assert sorted(folder.rglob("*")) == before
