"""Models that cannot be stored: handed back at loading, recognised, and refused where they are others."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from stored_explainers import NUMBERS, SHORT, Own, Y, fitted, income_rule, made, network, own_networks
from torch import nn

import avcg
from avcg import AVCG, BlackBox, PointMass, from_models
from avcg.errors import ArtifactError
from avcg.models.networks import mlp


class TestModelsHandedBack:
    def test_in_any_order_and_among_others(self, stored):
        for kind in ("forests", "trees that are sure", "somebody's own networks"):
            explainer, rows = made(kind)
            path, left = stored(kind)
            before = explainer.generate(rows).to_json()
            for handed in (left[::-1], (LogisticRegression(), *left[1:], network(), left[0], "no file")):
                assert avcg.load(path, model=handed).generate(rows).to_json() == before

    def test_models_that_say_the_same_of_most_rows_are_told_apart(self, stored):
        """On rows that all models are sure of, trees grown to the end all say 1."""
        path, left = stored("trees that are sure")
        loaded = avcg.load(path, model=left[::-1])
        mine, theirs = (one.judges_.boxes for one in (loaded, made("trees that are sure")[0]))
        assert {id(box.model) for box in mine} == {id(box.model) for box in theirs}
        mine, theirs = (one.judges_.groups[1].members for one in (loaded, made("trees that are sure")[0]))
        assert all(one.model is other.model for one, other in zip(mine, theirs, strict=True))

    def test_without_them_it_says_which(self, stored):
        with pytest.raises(ArtifactError, match=r"cannot be stored: 3 RandomForestClassifier. Pass them again"):
            avcg.load(stored("forests")[0])
        with pytest.raises(ArtifactError, match=r"cannot be stored: function. Pass"):
            avcg.load(stored("a function")[0], model=[])
        with pytest.raises(ArtifactError, match=r"cannot be stored: 2 Own. Pass them again"):
            avcg.load(stored("somebody's own networks")[0])

    def test_one_missing_is_named(self, stored):
        path, left = stored("forests")
        with pytest.raises(
            ArtifactError,
            match=r"among the 2 passed to load: RandomForestClassifier missing. The probabilities of the closest",
        ):
            avcg.load(path, model=left[:2])

    def test_another_model_is_refused(self, stored):
        path, _ = stored("a function")

        def other(rows):
            return 1 - income_rule(rows)

        with pytest.raises(
            ArtifactError,
            match=r"among the 1 passed to load: function missing. The probabilities of the closest differ",
        ):
            avcg.load(path, model=other)

        def fails(rows):
            raise RuntimeError("out of order")

        tree = DecisionTreeClassifier(random_state=0).fit(NUMBERS, Y)
        for strange in (fails, 3, mlp(2, 2), LogisticRegression(), tree):
            with pytest.raises(ArtifactError, match="among the 1 passed to load: function missing"):
                avcg.load(path, model=strange)

    def test_a_network_that_does_something_else_with_the_same_weights_is_refused(self, stored):
        path, _ = stored("somebody's own networks")
        (other, _), _ = own_networks(temperature=2.0)
        wrong = [other, mlp(2, 2), Own(3), network(), income_rule, nn.Flatten()]
        with pytest.raises(ArtifactError, match="Not all of them are among the 6 passed to load: 2 Own"):
            avcg.load(path, model=wrong)
        (fresh, _), _ = own_networks()
        with torch.no_grad():
            fresh.inner[0].weight.zero_()  # weights come from the file
        explainer, rows = made("somebody's own networks")
        assert avcg.load(path, model=fresh).generate(rows).to_json() == explainer.generate(rows).to_json()

    def test_where_none_is_wanted_none_is_ignored(self, stored):
        with pytest.raises(ArtifactError, match=r"All models of this explainer are stored.*judged_by, or avcg.aud"):
            avcg.load(stored("retrains")[0], model=network())

    def test_a_file_that_is_gone_is_the_callers(self, tmp_path):
        explainer, rows = made("onnx")
        for i, box in enumerate(sorted(explainer.judges_.boxes, key=lambda box: box.model)):
            (tmp_path / f"{i}.onnx").write_bytes(box.model)
        gone, kept = (BlackBox(tmp_path / f"{i}.onnx", NUMBERS, classes=["approve", "reject"]) for i in range(2))
        explainer = fitted(AVCG(from_models([gone, kept], NUMBERS, deployed=kept), recipe=SHORT), NUMBERS)
        content = (tmp_path / "0.onnx").read_bytes()
        (tmp_path / "0.onnx").unlink()
        assert explainer.save(tmp_path / "x") == [tmp_path / "0.onnx"]
        loaded = avcg.load(tmp_path / "x", model=content)
        assert loaded.generate(rows).to_json() == explainer.generate(rows).to_json()

    def test_what_a_library_does_not_store_is_stored_beside(self, tmp_path):
        """A number that XGBoost was told to read as a gap is one of its settings, not of its model."""
        library = pytest.importorskip("xgboost")
        rows = NUMBERS.astype(float)
        rows[::3] = -999.0
        model = library.XGBClassifier(n_estimators=3, max_depth=2, missing=-999.0, n_jobs=1).fit(rows, Y)
        explainer = fitted(AVCG(PointMass(BlackBox(model, rows)), recipe=SHORT), rows)
        assert explainer.save(tmp_path / "x") == []
        (box,) = avcg.load(tmp_path / "x").judges_.boxes
        assert np.array_equal(box.predict_proba(rows), model.predict_proba(rows))
        assert box.model.missing == -999.0
