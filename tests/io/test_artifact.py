"""Explainers as folders: the same bytes after loading, and all that a loaded explainer can do."""

import copy
import json
import math
import pickle
import pickletools
import shutil
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from stored_explainers import (
    CATEGORIES,
    NAMES,
    ZOO,
    X,
    Y,
    classifier,
    contents,
    fitted,
    income_rule,
    made,
    network,
    sign,
    trees,
)

import avcg
from avcg import AVCG, BlackBox, FiniteSet, PointMass, audit, from_models, retrains
from avcg.errors import ArtifactError, SettingError
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Opaque
from avcg.io import artifact
from avcg.io.folder import MANIFEST, VERSION

HANDED_BACK = {
    "forests": 3, "trees that are sure": 3, "tables without names": 1, "a function": 1, "somebody's own networks": 2,
    "gaps in a black box": 1,
}  # fmt: skip


def requests(kind):
    """What is asked of an explainer."""
    if kind == "pictures":
        return [{}, {"n": 2, "vary": np.eye(6, dtype=bool)}]
    if kind not in ("retrains", "xgboost", "dropout at a threshold"):
        return [{}, {"n": 2, "effort": "thorough"}] if kind not in HANDED_BACK else [{"n": 2}]
    limits = {"vary": ["income", "housing"], "ranges": {"income": (20, 60)}, "max_changes": 1}
    return [{}, {"n": 3}, {"effort": "fast"}, {"effort": "thorough"}, limits, {**limits, "min_prob": 0.6}]


NO_PICKLE = (
    (pickle, "load"), (pickle, "loads"), (pickle, "dump"), (pickle, "dumps"), (pickle, "Unpickler"),
    (pickle, "Pickler"), (torch, "load"), (torch, "save"), (joblib, "load"), (joblib, "dump"),
)  # fmt: skip


@pytest.mark.parametrize("kind", ZOO)
class TestTheSameBytes:
    def test_a_loaded_explainer_answers_as_the_saved_one(self, kind, stored):
        explainer, rows = made(kind)
        path, left = stored(kind)
        assert len(left) == HANDED_BACK.get(kind, 0)
        loaded = avcg.load(path, model=left)
        for request in requests(kind):
            assert loaded.generate(rows, **request).to_json() == explainer.generate(rows, **request).to_json()
        assert np.array_equal(loaded.decide(rows), explainer.decide(rows))
        assert loaded.classes_.dtype == explainer.classes_.dtype
        assert loaded.calibration_.frontier.equals(explainer.calibration_.frontier)
        assert str(loaded.calibration_) == str(explainer.calibration_)
        assert np.allclose(loaded.diagnostics_, explainer.diagnostics_, equal_nan=True)
        mine, theirs = loaded.generator_.state_dict(), explainer.generator_.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) and not mine[name].is_meta for name in theirs)

    def test_saved_again_it_is_the_same_folder_and_nothing_is_pickled(self, kind, stored, tmp_path, monkeypatch):
        def never(*_, **__):
            raise AssertionError("pickle")

        path, left = stored(kind)
        for home, name in NO_PICKLE:
            monkeypatch.setattr(home, name, never)
        again = avcg.load(path, model=left).save(tmp_path / "again")
        assert len(again) == len(left)
        assert contents(tmp_path / "again") == contents(path)
        for file in path.iterdir():
            assert file.suffix in (".json", ".safetensors", ".onnx", ".xgboost", ".lightgbm")
            assert not reads_as_pickle(file.read_bytes())


def reads_as_pickle(data):
    """Whether all bytes are one pickle: the first few of any file may read as one by chance."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [at for *_, at in pickletools.genops(data)][-1] == len(data) - 1
    except (ValueError, UnicodeDecodeError, OverflowError):
        return False


def test_what_is_pickled_is_recognised():
    assert reads_as_pickle(pickle.dumps(income_rule))
    assert reads_as_pickle(pickle.dumps([1, 2], protocol=0))


class TestALoadedExplainer:
    """All that an explainer can do but answer."""

    def test_is_audited_and_gives_replacements(self, stored):
        explainer, rows = made("retrains")
        loaded = avcg.load(stored("retrains")[0])
        later = classifier(hidden=(4,), random_state=5)
        delivered = explainer.generate(rows)
        found = [audit(delivered, later, recourse=one).to_json() for one in (explainer, loaded)]
        assert found[0] == found[1]
        assert audit(delivered, loaded).summary().equals(audit(delivered, explainer).summary())

    @pytest.mark.parametrize("kind", ["retrains", "xgboost"])
    def test_is_judged_by_others(self, kind, stored):
        explainer, rows = made(kind)
        loaded = avcg.load(stored(kind)[0])
        model = network() if kind == "retrains" else trees(kind).fit(CATEGORIES[::2], Y[::2])
        for one in (explainer, loaded):
            judges = retrains(network(), X, NAMES, n=3) if kind == "retrains" else from_models(
                [model], CATEGORIES, deployed=model, space=one.space_
            )  # fmt: skip
            judged = one.judged_by(judges)
            assert judged.generate(rows).certificate is None
        assert loaded.judged_by(judges).generate(rows).to_json() == explainer.judged_by(judges).generate(rows).to_json()

    def test_one_that_was_judged_by_others_can_be_saved(self, tmp_path):
        explainer, rows = made("retrains")
        rule = BlackBox(income_rule, X, classes=["reject", "approve"])
        asked = BlackBoxPredictors(
            [rule.over(explainer.space_, explainer.classes_)]
        )  # which names the classes in another order
        for judges in (retrains(network(), X, NAMES, n=3), FiniteSet(asked, explainer.space_, explainer.classes_)):
            judged = explainer.judged_by(judges)
            left = judged.save(tmp_path / "judged")
            loaded = avcg.load(tmp_path / "judged", model=left)
            assert loaded.generate(rows).to_json() == judged.generate(rows).to_json()
        assert left == [income_rule]

    @pytest.mark.parametrize("kind", ["retrains", "another model in force"])
    def test_is_refitted_to_new_models(self, kind, stored):
        explainer, rows = made(kind)
        new, found = retrains(network(), X, NAMES, n=5, random_state=5), []
        for one in (explainer, avcg.load(stored(kind)[0])):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(one.refit(new, X, steps=4).generate(rows).to_json())
        assert found[0] == found[1]

    @pytest.mark.parametrize("kind", ["retrains", "the paper's", "xgboost", "functions of the package"])
    def test_says_what_a_single_pass_gives_away(self, kind, stored):
        explainer, rows = made(kind)
        loaded = avcg.load(stored(kind)[0])
        few = {"steps": 1, "n_latents": 2}
        assert loaded.amortization_gap(rows, **few).equals(explainer.amortization_gap(rows, **few))
        deep = {"effort": "thorough"}
        assert loaded.generate(rows, **deep).to_json() == explainer.generate(rows, **deep).to_json()

    def test_says_which_function_of_ones_own_it_lacks(self, stored, tmp_path):
        _, rows = made("functions of one's own")
        loaded = avcg.load(stored("functions of one's own")[0])
        with pytest.raises(SettingError, match=r"trained with '(<lambda>|mean_of_absolutes)', a function of your own"):
            loaded.amortization_gap(rows, steps=1)

    @pytest.mark.parametrize("kind", ["another model in force", "xgboost", "a narrower schema"])
    def test_has_its_settings_and_can_be_cloned(self, kind, stored):
        explainer, rows = made(kind)
        loaded = avcg.load(stored(kind)[0])
        mine, theirs = loaded.get_params(deep=False), explainer.get_params(deep=False)
        for name in ("schema", "threshold", "survival", "recipe", "n_test", "device", "random_state"):
            assert mine[name] == theirs[name], name
        assert (mine["model"] is None) is (theirs["model"] is None)
        copied = clone(loaded)
        assert not hasattr(copied, "is_fitted_")
        with pytest.raises(SettingError, match="Only a fitted explainer"):
            copied.save("nowhere")
        assert len(fitted(copied, CATEGORIES if kind == "xgboost" else X).generate(rows)) == len(rows)

    def test_has_students_and_their_report(self, stored):
        explainer, _ = made("xgboost")
        loaded = avcg.load(stored("xgboost")[0])
        assert loaded.distillation_.report().equals(explainer.distillation_.report())

    def test_an_unfitted_one_cannot_be_saved(self, tmp_path):
        with pytest.raises(SettingError, match="Only a fitted explainer can be saved"):
            AVCG(PointMass(network())).save(tmp_path / "x")
        assert not (tmp_path / "x").exists()

    def test_functions_of_codes_cannot_be_saved(self, tmp_path):
        explainer = copy.copy(made("one network")[0])
        explainer.judges_ = Opaque([lambda x: torch.full((len(x), 2), 0.5)])
        with pytest.raises(SettingError, match="class Opaque hold functions"):
            explainer.save(tmp_path / "x")

    def test_labels_that_are_no_texts_or_numbers_cannot_be_saved(self, tmp_path):
        explainer = copy.copy(made("one network")[0])
        explainer.classes_ = np.array(["2020-01-01", "2021-01-01"], "datetime64[D]")
        with pytest.raises(SettingError, match=r"Labels of dtype datetime64\[D\] cannot be stored"):
            explainer.save(tmp_path / "x")

    def test_training_that_went_astray_can_be_saved(self, tmp_path):
        explainer, _ = made("one network")
        astray = copy.copy(explainer)
        astray.diagnostics_ = explainer.diagnostics_.assign(loss=math.inf, kl=math.nan)
        astray.save(tmp_path / "x")
        assert avcg.load(tmp_path / "x").diagnostics_[["loss", "kl"]].isna().all().all()

    def test_the_threshold_is_the_one_in_force(self, tmp_path):
        explainer, rows = made("dropout at a threshold")
        changed = copy.copy(explainer).set_params(threshold=0.9)  # which takes a new fit to be in force
        changed.save(tmp_path / "x")
        loaded = avcg.load(tmp_path / "x")
        assert loaded.threshold == 0.4
        assert np.array_equal(loaded.decide(rows), explainer.decide(rows))

    def test_a_device_that_is_none_is_a_setting(self, stored):
        with pytest.raises(
            SettingError,
            match=r"'device' of AVCG must be the name of a PyTorch device, such as 'cpu' or 'cuda'. Got 'toaster'",
        ):
            avcg.load(stored("one network")[0], device="toaster")
        assert avcg.load(stored("one network")[0], device="cpu:0").device == "cpu:0"

    def test_hypotheses_elsewhere_are_brought_home(self, stored, tmp_path):
        explainer, rows = made("retrains")
        away = copy.copy(explainer)
        away.judges_, away.split_ = OnDevice(explainer.judges_, "cpu"), explainer.split_.on(torch.device("cpu"))
        away.save(tmp_path / "x")
        assert avcg.load(tmp_path / "x").generate(rows).to_json() == explainer.generate(rows).to_json()

    def test_notes_are_kept(self, tmp_path):
        notes = {"by": "someone", 2: [1, None, True], 10: {"share": np.float32(0.5)}}
        made("one network")[0].save(tmp_path / "x", about=notes)
        assert artifact.about(tmp_path / "x") == {"by": "someone", "2": [1, None, True], "10": {"share": 0.5}}
        avcg.load(tmp_path / "x")
        for strange in ({"a": {1, 2}}, {"a": math.nan}, {"a": np.arange(2)}):
            with pytest.raises(SettingError, match="Only texts, finite numbers"):
                made("one network")[0].save(tmp_path / "x", about=strange)
        assert artifact.about(tmp_path / "x")["by"] == "someone"

    @pytest.mark.parametrize(
        ("notes", "says"),
        [
            ({"positive": "maybe"}, "about.positive is 'maybe', which is not a label: there is 'approve', 'reject'"),
            ({"positive": ["approve"]}, r"about.positive is \['approve'\]"),
            ({"dtypes": ["int64"]}, "about.dtypes is"),
            ({"dtypes": {"income": 8}}, "about.dtypes.income is 8"),
            ({"assumption": 3}, "about.assumption is 3"),
        ],
    )
    def test_notes_that_commands_go_by_must_be_what_they_expect(self, stored, tmp_path, notes, says):
        explainer = made("one network")[0]
        with pytest.raises(SettingError, match=says):
            explainer.save(tmp_path / "x", about=notes)
        assert not (tmp_path / "x").exists()
        shutil.copytree(stored("one network")[0], tmp_path / "x")  # as an older avcg would have kept them
        manifest = json.loads((tmp_path / "x" / MANIFEST).read_text())
        sign(tmp_path / "x", {**manifest, "about": notes})
        with pytest.raises(ArtifactError, match=says):
            artifact.about(tmp_path / "x")
        avcg.load(tmp_path / "x")

    def test_a_positive_label_of_numpy_is_as_good(self, tmp_path):
        explainer = made("one network")[0]
        explainer.save(tmp_path / "x", about={"positive": explainer.classes_[0]})
        assert artifact.about(tmp_path / "x") == {"positive": "approve"}

    def test_says_what_it_was_made_with(self, stored):
        manifest = json.loads((stored("one network")[0] / MANIFEST).read_text())
        assert manifest["made_with"]["torch"] == torch.__version__
        assert manifest["made_with"]["avcg"] == avcg.__version__
        assert manifest["version"] == VERSION
