"""Mistakes that were made once in distributions over predictors."""

import copy

import numpy as np
import pytest
import torch
from distributions import perturbed, rng, rows
from torch import nn

import avcg
from avcg import toys
from avcg.errors import DataError, SettingError
from avcg.hypotheses.predictors import Stacked
from avcg.models.dropout_masks import with_noise
from avcg.models.networks import cnn, mlp


class TestWhatReviewersFound:
    """Each of these once gave a wrong answer or a traceback."""

    def test_a_layer_used_twice(self):
        act, inner = nn.ReLU(), mlp(6, 6, ())[0]
        for network in (
            nn.Sequential(*mlp(4, 6, ()), act, *mlp(6, 6, ()), act, *mlp(6, 2, ())),
            nn.Sequential(*mlp(4, 6, ()), inner, nn.Tanh(), inner, *mlp(6, 2, ())),
        ):
            x = rows(5, 4)
            torch.testing.assert_close(
                avcg.PointMass(network).sample(1).log_probs(x)[0], torch.log_softmax(network(x), -1)
            )

    def test_a_sequential_with_a_mind_of_its_own(self):
        class Residual(nn.Sequential):
            def forward(self, x):
                return x + super().forward(x)

        network = nn.Sequential(Residual(*mlp(4, 4, ())), *mlp(4, 2, ()))
        hooked = mlp(4, 2, (6,))
        hooked[0].register_forward_hook(lambda module, inputs, output: output * 2)
        x = rows(5, 4)
        for one in (network, hooked):
            torch.testing.assert_close(avcg.PointMass(one).sample(1).log_probs(x)[0], torch.log_softmax(one(x), -1))

    def test_dropout_in_two_places_is_two_masks(self):
        drop = nn.Dropout(0.5)
        network = nn.Sequential(*mlp(3, 8, ()), drop, *mlp(8, 5, ()), drop, *mlp(5, 2, ()))
        _, sites = with_noise(network, (3,))
        assert [site.shape for site in sites] == [(8,), (5,)]

        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.drop = mlp(3, 3, ()), nn.Dropout(0.5)

            def forward(self, x):
                return self.drop(self.layer(self.drop(x)))

        with pytest.raises(SettingError, match="'drop' is called 2 times"):
            with_noise(Twice(), (3,))

    def test_an_ensemble_of_networks_that_only_look_alike(self):
        class Either(nn.Module):
            def __init__(self, f):
                super().__init__()
                self.a, self.b, self.f = mlp(4, 6, ()), mlp(6, 2, ()), f

            def forward(self, x):
                return self.b(self.f(self.a(x)))

        members = [Either(torch.relu), mlp(4, 2, (3,)), Either(torch.tanh), mlp(4, 2, (3,), rng=rng(7))]
        x = rows(5, 4)
        found = avcg.DeepEnsemble(members).predictors.log_probs(x)
        for one, expected in zip(found, members, strict=True):  # and in the order given
            torch.testing.assert_close(one, torch.log_softmax(expected(x), -1), atol=1e-5, rtol=1e-5)

    def test_an_ensemble_of_convolutions_with_batch_norm_is_one_stack(self):
        members = []
        for seed in (1, 2, 3):
            body = cnn((1, 6, 6), 2, (3,), units=4, rng=rng(seed))
            members.append(nn.Sequential(body[0], nn.BatchNorm2d(3), *list(body)[1:]).eval())
            members[-1][1].running_mean.add_(0.1 * seed)
        ensemble = avcg.DeepEnsemble(members)
        assert isinstance(ensemble.predictors, Stacked)
        x = rows(4, 1, 6, 6)
        for one, expected in zip(ensemble.predictors.log_probs(x), members, strict=True):
            torch.testing.assert_close(one, torch.log_softmax(expected(x), -1), atol=1e-5, rtol=1e-5)

    def test_an_ensemble_must_read_one_encoding_and_speak_of_the_same_classes(self, toy_model):
        toy, model = toy_model
        other = avcg.Classifier(hidden=(16,), epochs=1).fit(toy.X.assign(x1=toy.X["x1"] * 9), toy.y)
        with pytest.raises(SettingError, match="differ in column 'x1'"):
            avcg.DeepEnsemble([model, other])
        words = avcg.Classifier(hidden=(16,), epochs=1).fit(toy.X, np.where(toy.y, "yes", "no"))
        with pytest.raises(SettingError, match=r"same classes. Got 0, 1 and 'no', 'yes'"):
            avcg.Mixture([avcg.MCDropout(model), avcg.PointMass(words)])

    def test_the_last_layer_is_the_one_that_makes_the_logits(self):
        class HeadFirst(nn.Module):
            def __init__(self):
                super().__init__()
                self.head, self.body = mlp(2, 2, (), rng=rng(1)), mlp(4, 2, (), rng=rng(2))

            def forward(self, x):
                return self.head(torch.tanh(self.body(x)))

        x, y = rows(30, 4), (rows(30, seed=2) > 0).long()
        assert set(avcg.Laplace.fit(HeadFirst(), x, y).mean) == {"head.0.weight", "head.0.bias"}
        attached = avcg.attach_dropout(HeadFirst(), 0.5, event_shape=(4,))
        assert [site.name for site in with_noise(attached, (4,))[1]] == ["body.0.1.mask"]
        with pytest.raises(SettingError, match="Pass event_shape"):
            avcg.attach_dropout(HeadFirst(), 0.5)
        with pytest.raises(SettingError, match="no last layer to vary"):
            avcg.Laplace.fit(nn.Sequential(*mlp(4, 2, ()), nn.Softplus()), x, y)

    def test_one_logit_is_refused(self):
        with pytest.raises(SettingError, match="network has one output"):
            avcg.PointMass(mlp(4, 1, ())).sample(1).log_probs(rows(3, 4))

    def test_members_are_drawn_by_their_weights(self):
        network = mlp(4, 2, ())
        members = avcg.FiniteSet(Stacked(network, perturbed(network, 3), torch.tensor([0.9, 0.1, 0.0])))
        first = members.predictors.overrides["0.bias"]
        counts = np.zeros(3)
        for seed in range(300):
            drawn = members.sample(1, rng=rng(seed))
            counts += [torch.equal(drawn.overrides["0.bias"][0], bias) for bias in first]
            assert drawn.weights.tolist() == [1.0]
        assert counts[0] > 240
        assert counts[2] == 0
        assert torch.isfinite(members.predictors.subset(torch.tensor([2])).weights).all()

    @pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1.0, float("nan"), 1.0]])
    def test_weights_that_cannot_be(self, weights):
        network = mlp(4, 2, ())
        with pytest.raises(SettingError, match="one weight >= 0 for each of 3"):
            Stacked(network, perturbed(network, 3), torch.tensor(weights))

    def test_labels_mean_the_same_for_every_distribution(self):
        toy = toys.linear_logistic(n=200)
        labels = toy.y + 1  # 1 and 2, which are no positions
        model = avcg.Classifier(hidden=(8,), epochs=10).fit(toy.X, labels)
        kept = [
            avcg.rashomon_set(masks, toy.X, labels, 0.5, reference="best", n=5)
            for masks in (avcg.MCDropout(model), avcg.Laplace.fit(model, toy.X, labels))
        ]
        for one in kept:
            torch.testing.assert_close(
                one.predictors.losses(model.space_.encode(toy.X), torch.tensor(toy.y)),
                one.losses[one.kept],
                atol=1e-5,
                rtol=1e-5,
            )

    def test_networks_given_are_left_as_found(self, toy_model):
        toy, model = toy_model
        network = copy.deepcopy(model.network_).double().train()
        before = copy.deepcopy(network.state_dict())
        x = model.space_.encode(toy.X)
        avcg.MeanFieldVI.fit(network, x, toy.y, training=avcg.Training(epochs=1))
        posterior = avcg.SWAG.fit(network, x, toy.y, n_snapshots=2)
        avcg.retrains(network, x.double(), toy.y, n=2, training=avcg.Training(epochs=20))
        avcg.Laplace.fit(network, x, toy.y)
        avcg.MCDropout(network).sample(2).log_probs(x.double())
        assert network.training
        assert next(network.parameters()).dtype == torch.float64
        assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
        assert posterior.network is not network

    def test_estimators_that_cannot_differ_are_called_out(self):
        from sklearn.linear_model import LogisticRegression

        toy = toys.linear_logistic(n=80)
        with pytest.warns(UserWarning, match=r"all 3 models are the same.*use resampling='bootstrap'"):
            avcg.retrains(LogisticRegression(), toy.X, toy.y, n=3, resampling="seed")

    def test_a_resample_with_one_class_left_is_drawn_again(self):
        from sklearn.tree import DecisionTreeClassifier

        toy = toys.linear_logistic(n=40)
        rare = np.zeros(40, int)
        rare[:2] = 1
        members = avcg.retrains(DecisionTreeClassifier(), toy.X, rare, n=8, resampling="bootstrap")
        assert all(len(one.model.classes_) == 2 for one in members.predictors.members)

    def test_rows_and_labels_must_match(self, toy_model):
        toy, model = toy_model
        for call in (
            lambda: avcg.retrains(model, toy.X[:50], toy.y, n=2),
            lambda: avcg.Laplace.fit(model, toy.X, toy.y[:9]),
            lambda: avcg.MeanFieldVI.fit(model, toy.X, toy.y[:9]),
            lambda: avcg.rashomon_set(avcg.MCDropout(model), toy.X, toy.y[:9], 0.1),
        ):
            with pytest.raises(DataError, match="one label per row"):
                call()

    def test_a_table_of_numbers_is_read_everywhere(self):
        toy = toys.linear_logistic(n=60)
        table = toy.X.to_numpy()
        model = avcg.Classifier(hidden=(4,), epochs=2).fit(table, toy.y)
        assert len(avcg.rashomon_set(avcg.MCDropout(model), table, toy.y, 0.8)) == 50
        avcg.Laplace.fit(model, table, toy.y)
