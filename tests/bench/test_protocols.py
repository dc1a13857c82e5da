"""Protocols: what they say, what they may name, and what is told where they are wrong."""

import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from avcg import AVCG, Explainer, PointMass, Recipe, datasets, toys
from avcg.baselines.gradient import Schut
from avcg.bench.methods import make_explainer
from avcg.bench.paths import imported
from avcg.bench.protocol import read_protocol
from avcg.bench.run import cells_of, digest, run
from avcg.bench.store import Store
from avcg.errors import DataError, SchemaError, SettingError
from avcg.models.networks import mlp

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
METHOD = """
[[methods]]
name = "{name}"
kind = "{kind}"
{more}
"""
HEAD = """
title = "Tiny"
datasets = ["breast_cancer"]
seeds = [0]
rows = 4
{more}
[network]
hidden = [4]
epochs = 20
[judges]
surrogates = 2
resampling = "bootstrap"
masks = 0
autoencoder_epochs = 0
"""


def text(*methods, more=""):
    return HEAD.format(more=more) + "".join(methods or [method()])


def method(kind="avcg.baselines.nearest:ClassMean", more="", name="a method"):
    return METHOD.format(name=name, kind=kind, more=more)


@pytest.fixture
def read(tmp_path):
    """Read a protocol of that text."""

    def of(content):
        (tmp_path / "mine.toml").write_text(content)
        return read_protocol(tmp_path / "mine.toml")

    return of


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_protocol_of_the_project_reads(path):
    assert read_protocol(path).methods


class TestWhatIsWrongIsSaid:
    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ("sedes = [0]", "unknown key 'sedes'. Did you mean 'seeds'"),
            ('folder = "x"', "unknown key 'folder'. It is taken from the path of the file"),
            ('reading = "papper"', "the reading 'papper' does not exist. Did you mean 'paper'"),
            ("epsilons_ = 3", "unknown key"),
            ("epsilons = [0.1234567]", "at most five digits"),
            ('reading = "images"', "does not go with the dataset 'breast_cancer'"),
            ('model = "avcg.bench.models:xgbost"', "'avcg.bench.models' has no 'xgbost'. Did you mean 'xgboost'"),
            ('model = "avcg.bench.models:as_categories"', "needs reading = 'schema'"),
            ('model = "avcg.datasets:load"\nreading = "schema"', None),
            ('model = "avcg.datasets:names"', "must name a function of training rows and a seed"),
            ('metrics = ["avcg.metrics.functional:gower"]', "must name an avcg.metrics.table.Metric. Got"),
            ('metrics = "all"', "must be a list of paths. Got 'all'"),
        ],
    )
    def test_in_a_protocol(self, read, more, reason):
        if reason is None:
            assert read(text(method(more='hypotheses = "avcg.hypotheses.finite:PointMass"'), more=more)).model
            return
        with pytest.raises(SettingError) as error:
            read(text(more=more))
        assert reason in str(error.value)

    @pytest.mark.parametrize(
        ("kind", "more", "reason"),
        [
            ("schut", "", "must be a path such as 'package.module:Name'. Got 'schut'"),
            ("avcg.baselines.gradient:Schutt", "", "'avcg.baselines.gradient' has no 'Schutt'. Did you mean 'Schut'"),
            ("avcg.baselines.gradiant:Schut", "", "no module 'avcg.baselines.gradiant'. Did you mean 'gradient'"),
            ("nowhere.at_all:Schut", "", "no module 'nowhere'. Install it, or put it beside the protocol"),
            (
                "avcg.method.recipe:Recipe",
                "",
                "must name a subclass of avcg.Explainer. Got 'avcg.method.recipe:Recipe'",
            ),
            ("avcg:AVCG", "recipe = { stepps = 5 }", "has an unknown key 'stepps'. Did you mean 'steps'"),
            ("avcg:AVCG", "recipe = { weights = { kll = 1.0 } }", "unknown key 'kll'. Did you mean 'kl'"),
            ("avcg:AVCG", 'recipe = { from = "avcg:toys.loans" }', "must be a Recipe. Got a "),
            ("avcg:AVCG", "descent = { steps = 5 }", "takes no 'descent'"),
            ("avcg:AVCG", "survial = 0.9", "takes no 'survial'. Did you mean 'survival'"),
            ("avcg:AVCG", "random_state = 3", "'random_state' is set by the benchmark"),
            (
                "avcg.baselines.gradient:Schut",
                "descent = { steps = 0 }",
                "'steps' of SchutDescent must be a whole number >= 1",
            ),
            ("avcg:AVCG", "hypotheses = 3", "must be a path such as 'package.module:Name', or a table. Got 3"),
            ("avcg:AVCG", "hypotheses = { n = 3 }", "lacks the key 'kind'"),
            ("avcg:AVCG", 'hypotheses = "avcg:MCDropoot"', "has no 'MCDropoot'"),
            ("avcg:AVCG", 'hypotheses = { kind = "avcg:MCDropout", rat = 1 }', "takes no 'rat'. Did you mean 'rate'"),
            ("avcg:AVCG", 'hypotheses = { kind = "avcg:MCDropout", model = 1 }', "'model' is set by the benchmark"),
            ("avcg:AVCG", 'hypotheses = "avcg:DeepEnsemble"', "needs 'members'. Set it in the protocol"),
            ("avcg:AVCG", 'hypotheses = "avcg.bench.hypotheses:rashomon"', "'epsilon': give the protocol 'epsilons'"),
        ],
    )
    def test_in_a_method(self, read, kind, more, reason):
        with pytest.raises(SettingError) as error:
            read(text(method(kind, more)))
        assert reason in str(error.value)
        assert "mine.toml" in str(error.value) or "SchutDescent" in reason

    def test_of_a_model_that_can_only_be_asked(self, read):
        asked = 'reading = "schema"\nmodel = "avcg.bench.models:random_forest"'
        with pytest.raises(SettingError, match="needs 'network': the protocol's model is a black box"):
            read(text(method(more='hypotheses = "avcg.bench.hypotheses:dropout_and_retrained"'), more=asked))
        assert read(text(method(more='hypotheses = "avcg.bench.hypotheses:retrained"'), more=asked)).model

    def test_in_a_file(self, read, tmp_path):
        with pytest.raises(SettingError, match="not a TOML file"):
            read("= =")
        with pytest.raises(SettingError, match="two methods called 'a method' and 'a-method'"):
            read(text(method(), method(name="a-method")))
        with pytest.raises(SettingError, match="no protocol"):
            read_protocol(tmp_path / "none.toml")
        with pytest.raises(DataError, match="no dataset 'brest'"):
            read(text().replace("breast_cancer", "brest"))
        with pytest.raises(SettingError, match=r"must have a list of 'datasets'. Got 'adult'"):
            read(text().replace('["breast_cancer"]', '"adult"'))
        with pytest.raises(SettingError, match="lacks the key 'kind'"):
            read(HEAD.format(more="") + '[[methods]]\nname = "a"')

    def test_a_module_that_fails_says_how(self, read, tmp_path):
        (tmp_path / "broken_part.py").write_text("1 / 0")
        with pytest.raises(SettingError, match="importing 'broken_part' failed: ZeroDivisionError: division by zero"):
            read(text(method("broken_part:Method")))
        (tmp_path / "needs_more.py").write_text("import nothing_such")
        with pytest.raises(SettingError, match="importing 'needs_more' failed: No module named 'nothing_such'"):
            read(text(method("needs_more:Method")))


class TestSettings:
    def made(self, kind, settings):
        return make_explainer(kind, settings, PointMass(mlp(1, 2)), "the method")

    def test_a_table_changes_fields_of_what_the_class_has(self):
        assert self.made(AVCG, {"recipe": {"steps": 5, "layers": [8, 8]}}).recipe == replace(
            Recipe(), steps=5, layers=(8, 8)
        )
        search = self.made(AVCG, {"recipe": {"search": {"retry_latents": 1}}}).recipe.search
        assert search == replace(Recipe().search, retry_latents=1)
        assert self.made(Schut, {"descent": {"steps": 5}}).descent == replace(Schut.usual, steps=5)

    def test_a_table_may_start_from_what_a_path_makes(self):
        recipe = self.made(AVCG, {"recipe": {"from": "avcg:Recipe.paper", "weights": {"kl": 0.0}}}).recipe
        paper = Recipe.paper()
        assert recipe == replace(paper, weights=replace(paper.weights, kl=0.0))

    def test_what_is_not_set_is_the_classs_own(self):
        assert self.made(AVCG, {}).recipe is None
        assert self.made(AVCG, {"survival": 0.9, "n_test": 0}).n_test == 0

    def test_a_class_of_anyones_own_needs_no_entry(self):
        class Mine(Explainer):
            def __init__(self, hypotheses, schema=None, *, reach=1.0, steps=(1,), device="cpu", random_state=0):
                super().__init__(hypotheses, schema, device=device, random_state=random_state)
                self.reach, self.steps = reach, steps

        made = self.made(Mine, {"reach": 2.0, "steps": [1, 2]})
        assert (made.reach, made.steps) == (2.0, (1, 2))
        with pytest.raises(SettingError, match=r"takes no 'rech'\. Did you mean 'reach'"):
            self.made(Mine, {"rech": 2.0})

    def test_parts_of_names(self):
        assert imported("avcg.method.recipe:Recipe.paper", "it")() == Recipe.paper()
        with pytest.raises(SettingError, match=r"'avcg.method.recipe:Recipe' has no 'papper'\. Did you mean 'paper'"):
            imported("avcg.method.recipe:Recipe.papper", "it")


PARTS = """
import torch
import avcg
from avcg.metrics.table import Metric

class Halfway(avcg.Explainer):
    def __init__(self, hypotheses, schema=None, *, share=0.5, n_test=None, device="cpu", random_state=0):
        super().__init__(hypotheses, schema, n_test=n_test, device=device, random_state=random_state)
        self.share = share

    def _fit(self, x, y, rng):
        self.means_ = torch.stack([x[y == label].mean(dim=0) for label in range(len(self.classes_))])

    def _candidates(self, query):
        moved = query.x + self.share * (self.means_[query.target] - query.x)
        return query.space.project(moved, query.x).expand(query.n, *query.x.shape)

def two_of(estimator, X, y, random_state, count=2):
    return avcg.retrains(estimator, X, y, n=count, resampling="bootstrap", random_state=random_state)

def near(network, epsilon):
    return avcg.PointMass(network)

def forest(X, seed):
    from sklearn.ensemble import ExtraTreesClassifier
    return ExtraTreesClassifier(5, random_state=seed)

twice = Metric("twice", "lower", digits=1, function=lambda case: 2 * case.changes.sum(dim=1), answered_only=True)
"""


class TestPartsOfOnesOwn:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "own_parts.py").write_text(textwrap.dedent(PARTS))
        yield tmp_path
        sys.modules.pop("own_parts", None)

    def test_another_module_of_that_name(self, folder, read, tmp_path_factory):
        read(text(method("own_parts:Halfway")))
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        (elsewhere / "own_parts.py").write_text("")
        with pytest.raises(SettingError, match="'own_parts' is beside the protocol, but one of that name was already"):
            imported("own_parts:Halfway", "it", elsewhere)

    def test_a_method_hypotheses_and_a_metric_beside_the_protocol(self, folder, read):
        mine = method("own_parts:Halfway", 'share = 1.0\nhypotheses = { kind = "own_parts:two_of", count = 3 }', "mine")
        again = method("own_parts:Halfway", 'hypotheses = "own_parts:near"', "by epsilon")
        protocol = read(text(mine, again, more='metrics = ["own_parts:twice"]\nepsilons = [0.0, 0.5]'))
        assert [key[2:] for key in cells_of(protocol)] == [("mine", None), ("by epsilon", 0.0), ("by epsilon", 0.5)]
        rows = Store(run(folder / "mine.toml", folder / "out")).rows()
        assert rows["error"].isna().all(), rows["error"].dropna().tolist()
        np.testing.assert_allclose(rows["twice"], 2 * rows["L1"], rtol=1e-4)
        assert rows["twice"].notna().any()

    def test_a_model_beside_the_protocol(self, folder, read):
        more = 'model = "own_parts:forest"\nreading = "schema"'
        read(text(method(more='hypotheses = "own_parts:two_of"'), more=more))
        rows = Store(run(folder / "mine.toml", folder / "out")).rows()
        assert rows["error"].isna().all(), rows["error"].dropna().tolist()

    def test_two_metrics_of_one_name(self, folder, read):
        with pytest.raises(SettingError, match="two metrics called 'twice'"):
            read(text(more='metrics = ["own_parts:twice", "own_parts:twice"]'))


class TestOwnTables:
    TABLE = '{path = "loans.csv", schema = "loans.json", target = "paid"}'

    @pytest.fixture
    def folder(self, tmp_path):
        loans = toys.loans(n=240)
        loans.X.assign(paid=np.where(loans.y == 1, "yes", "no")).to_csv(tmp_path / "loans.csv", index=False)
        (tmp_path / "loans.json").write_text(loans.schema.to_json())
        return tmp_path

    def protocol(self, table=TABLE):
        own = text(more='reading = "schema"').replace('"breast_cancer"', table)
        return own.replace("epochs = 20", "epochs = 200")  # retrains that learned nothing are left out

    def test_rows_come_back_as_they_were(self, folder, read):
        protocol = read(self.protocol())
        data = protocol.source("loans").load(folder)
        loans = toys.loans(n=240)
        assert protocol.dataset_names == ("loans",)
        assert data.classes == ("no", "yes")
        assert (data.y == np.where(loans.y == 1, "yes", "no")).all()
        pd.testing.assert_frame_equal(data.X, loans.X, check_dtype=False, check_categorical=False)

    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_it_is_run(self, folder, read, suffix):
        if suffix == "parquet":
            pytest.importorskip("pyarrow")
            pd.read_csv(folder / "loans.csv").to_parquet(folder / "loans.parquet")
        named = self.TABLE.replace("loans.csv", f"loans.{suffix}").replace("{", '{name = "my loans", ')
        read(self.protocol(named))
        rows = Store(run(folder / "mine.toml", folder / "out")).rows()
        assert rows["error"].isna().all(), rows["error"].dropna().tolist()
        assert set(rows["dataset"]) == {"my loans"}
        assert (rows["violations"] == 0).all()

    def test_texts_that_look_like_numbers_or_gaps_stay_texts(self, folder, read):
        from avcg import Schema

        X = pd.DataFrame({"code": ["007", "NA", "12"] * 10, "size": np.arange(30)})
        (folder / "loans.json").write_text(Schema.infer(X).to_json())
        X.assign(paid=[0, 1] * 15).to_csv(folder / "loans.csv", index=False)
        data = read(self.protocol()).source("loans").load(folder)
        assert data.X["code"].tolist() == X["code"].tolist()
        assert data.classes == (0, 1)

    def test_a_file_that_changes_makes_other_cells(self, folder, read):
        protocol = read(self.protocol())
        (key,) = cells_of(protocol)
        before = digest(protocol, key)
        assert digest(read(self.protocol()), key) == before
        rows = (folder / "loans.csv").read_text().splitlines()
        (folder / "loans.csv").write_text("\n".join(rows[:-1]))
        assert digest(read(self.protocol()), key) != before

    @pytest.mark.parametrize(
        ("table", "error", "reason"),
        [
            ("3", SettingError, "must be names, or tables with 'path', 'schema' and 'target'. Got 3"),
            ('{path = "loans.csv"}', SettingError, "must have a string under 'schema'. Got None"),
            (TABLE.replace("target", "tarket"), SettingError, "unknown key 'tarket'. Did you mean 'target'"),
            (TABLE.replace("loans.csv", "loan.csv"), DataError, "no file"),
            (TABLE.replace("loans.csv", "loans.txt"), DataError, "must be a file ending in '.csv', '.parquet'"),
            (TABLE.replace("loans.json", "loans.csv"), SchemaError, "loans.csv is not TOML: Expected '=' after a key"),
            (f"{TABLE}, {TABLE}", SettingError, "two datasets called 'loans'"),
        ],
    )
    def test_what_is_wrong_is_said(self, folder, read, table, error, reason):
        with pytest.raises(error) as found:
            read(self.protocol(table))
        assert reason in str(found.value)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda rows: rows.drop(columns="paid"), "loans.csv has no column 'paid'"),
            (lambda rows: rows.rename(columns={"income": "incom"}), "no column 'income'. Did you mean 'incom'"),
            (lambda rows: rows.assign(more=1), "columns that loans.json does not describe: 'more'"),
            (lambda rows: rows.assign(paid="yes"), "must have two labels or more. Got ['yes']"),
            (
                lambda rows: rows.assign(paid=rows["paid"].where(rows.index > 0)),
                "'paid' of loans.csv has missing values",
            ),
        ],
    )
    def test_rows_that_do_not_fit(self, folder, read, change, reason):
        change(pd.read_csv(folder / "loans.csv")).to_csv(folder / "loans.csv", index=False)
        with pytest.raises(DataError) as error:
            read(self.protocol()).source("loans").load(folder)
        assert reason in str(error.value)


class TestCohorts:
    def test_of_a_published_dataset(self, read):
        tables = '["breast_cancer", {name = "sba", cohort = 2004}, {name = "sba", cohort = [2005, 2006]}]'
        protocol = read(text().replace('["breast_cancer"]', tables))
        assert protocol.dataset_names == ("breast_cancer", "sba 2004", "sba 2005 2006")
        assert [protocol.source(name).cohorts for name in protocol.dataset_names] == [(), (2004,), (2005, 2006)]
        assert [source.fingerprint(protocol.folder) for source in protocol.datasets] == [
            None, ["2004"], ["2005", "2006"],
        ]  # fmt: skip

    def test_their_rows_are_loaded(self, read):
        if not datasets.available("sba"):
            pytest.skip("the files of sba are not at hand; set AVCG_DATA to their directory")
        protocol = read(text().replace('"breast_cancer"', '{name = "sba", cohort = [1988, 2012]}'))
        data = protocol.source("sba 1988 2012").load(protocol.folder)
        assert len(data) == 1_408 + 3_103

    @pytest.mark.parametrize(
        ("table", "error", "reason"),
        [
            ('{name = "sba", cohort = 2013}', DataError, "no cohort 2013. It has 25"),
            ('{name = "sba", cohort = "2004"}', SettingError, "must be a whole number such as 1988"),
            ('{name = "heart", cohort = 2004}', DataError, "'heart' has no cohorts"),
            ('{name = "sbaa", cohort = 2004}', DataError, "no dataset 'sbaa'. Did you mean 'sba'"),
            ('{nam = "sba", cohort = 2004}', SettingError, "unknown key 'nam'. Did you mean 'name'"),
            ("{cohort = 2004}", SettingError, "must have a text under 'name'. Got None"),
            ('{name = "sba", cohort = 2004}, {name = "sba", cohort = 2004}', SettingError, "two datasets called"),
        ],
    )
    def test_what_is_wrong_is_said(self, read, table, error, reason):
        with pytest.raises(error) as found:
            read(text().replace('"breast_cancer"', table))
        assert reason in str(found.value)
