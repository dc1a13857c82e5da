"""A network behind a preprocessing of its own."""

import numpy as np
import pytest
import torch
from sklearn_models import TEST, TRAIN, people, usual
from torch import nn

from avcg import PointMass
from avcg.errors import SettingError
from avcg.models.batched import plan_of
from avcg.models.networks import mlp
from avcg.models.sklearn import from_torch


class TestTorch:
    def data(self):
        X, _ = people(gaps=False)
        return X[["age", "rate", "member", "job"]]

    def features(self, rows):
        jobs = np.stack([rows["job"] == name for name in ("clerk", "nurse", "smith", "judge")], axis=1)
        numbers = (rows[["age", "rate"]].to_numpy(np.float32) - [50, 5]) / [20, 2]
        return torch.tensor(np.column_stack([numbers, rows["member"], jobs]), dtype=torch.float32)

    @pytest.mark.parametrize("outputs", [1, 2, 3])
    def test_the_first_layer_takes_in_the_preprocessing(self, outputs):
        X, network = self.data(), mlp(7, outputs, (6,), dropout=0.5).train()
        converted = from_torch(network, self.features, X[TRAIN])
        assert isinstance(converted.network_[0], nn.Linear)
        assert isinstance(converted.network_[1], nn.ReLU)
        assert plan_of(converted.network_) is not None
        assert network.training
        logits = network.eval()(self.features(X[TEST])).detach()
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1) if outputs == 1 else logits
        assert np.abs(converted.predict_proba(X[TEST]) - logits.softmax(dim=-1).numpy()).max() <= 1e-5
        assert converted.classes_.tolist() == list(range(max(outputs, 2)))

    def test_any_other_network_follows_a_layer(self):
        class Sum(nn.Module):
            def forward(self, x):
                return x.sum(dim=-1)

        X = self.data()
        converted = from_torch(Sum().double(), self.features, X[TRAIN], classes=["no", "yes"])
        wanted = torch.sigmoid(self.features(X[TEST]).sum(dim=1)).numpy()
        assert np.abs(converted.predict_proba(X[TEST])[:, 1] - wanted).max() <= 1e-5
        assert set(converted.predict(X)) <= {"no", "yes"}
        assert PointMass(converted).predictors.log_probs(converted.space_.encode(X)).shape == (1, 500, 2)

    def test_a_fitted_transformer_is_preprocessing(self):
        X = people()[0]
        before = usual().fit(X[TRAIN])
        network = mlp(before.transform(X).shape[1], 2, (6,))
        converted = from_torch(network, before, X[TRAIN])
        wanted = network(torch.from_numpy(before.transform(X[TEST])).float()).softmax(dim=-1).detach().numpy()
        assert np.abs(converted.predict_proba(X[TEST]) - wanted).max() <= 1e-5

    def test_a_table_of_numbers(self):
        X = np.random.default_rng(0).normal(size=(50, 3))
        network = mlp(3, 2, ())
        converted = from_torch(network, lambda rows: torch.from_numpy(rows * 2), X)
        wanted = network(torch.from_numpy(2 * X).float()).softmax(dim=-1).detach().numpy()
        assert np.abs(converted.predict_proba(X) - wanted).max() <= 1e-5

    def test_refusals(self):
        X = self.data()
        numbers = X[["age", "rate"]]
        for network, preprocess, match in (
            (mlp(2, 2), lambda rows: np.log(rows.to_numpy(float) + 20), "column '(age|rate)' must be affine"),
            (mlp(2, 2), lambda rows: rows.to_numpy(float)[:, 0], r"return \(N, F\) features for the"),
            (mlp(3, 2), lambda rows: rows.to_numpy(float), "failed on the 2 features that 'preprocess' returns"),
            (nn.Unflatten(1, (2, 1)), lambda rows: rows.to_numpy(float), r"one logit per class, \(N, C\). Got"),
            (mlp(2, 2), None, "'preprocess' of from_torch must be a function"),
            (lambda x: x, lambda rows: rows, "'network' of from_torch must be a torch module"),
        ):
            with pytest.raises(SettingError, match=match):
                from_torch(network, preprocess, numbers)
        with pytest.raises(SettingError, match="'classes' must name each of 2 classes"):
            from_torch(mlp(2, 2), lambda rows: rows.to_numpy(float), numbers, classes=["a", "b", "c"])
