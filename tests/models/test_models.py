"""Networks, the training loop and the classifier."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from torch import nn

import avcg
from avcg import datasets, toys
from avcg.errors import DataError, SettingError
from avcg.models.autoencoders import ClassAutoencoders
from avcg.models.networks import autoencoder, cnn, conv_autoencoder, draw_state, mlp
from avcg.models.stacked_fit import fit_stacked, mean_cross_entropy
from avcg.models.training import Training, train


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


class TestNetworks:
    def test_first_weights_are_pytorchs(self):
        """Uniform within one over the root of the inputs, as nn.Linear and nn.Conv2d draw them."""
        for network in (mlp(100, 300, ()), nn.Sequential(cnn((3, 8, 8), 2, (200,))[0])):
            bound = 1 / math.sqrt(math.prod(network[0].weight.shape[1:]))
            for parameter in network.parameters():
                assert parameter.abs().max() <= bound
                assert parameter.abs().max() > 0.9 * bound
                assert parameter.mean().abs() < 0.2 * bound

    def test_a_generator_means_the_same_weights(self):
        one, same, other = (mlp(4, 2, rng=rng(seed)) for seed in (1, 1, 2))
        assert torch.equal(one[0].weight, same[0].weight)
        assert not torch.equal(one[0].weight, other[0].weight)

    def test_dropout_is_where_it_should_be(self):
        kinds = [type(layer).__name__ for layer in mlp(4, 2, (8, 8), dropout=0.5)]
        assert kinds == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]

    @pytest.mark.parametrize("size", [(1, 28, 28), (3, 32, 32), (2, 7, 9)])
    def test_pictures_of_any_size(self, size):
        x = torch.zeros(2, *size)
        assert cnn(size, 5, (4, 6), units=8, dropout=0.1).eval()(x).shape == (2, 5)
        assert conv_autoencoder(size, (4, 6))(x).shape == x.shape

    def test_an_autoencoder_mirrors_itself(self):
        widths = [layer.out_features for layer in autoencoder(30) if isinstance(layer, nn.Linear)]
        assert widths == [20, 10, 6, 10, 20, 30]

    def test_normalisation_starts_neutral_and_the_unknown_is_refused(self):
        state = draw_state(nn.Sequential(nn.utils.skip_init(nn.Linear, 3, 4), nn.LayerNorm(4)), 2, rng())
        assert state["1.weight"].eq(1).all()
        assert state["1.bias"].eq(0).all()
        with torch.random.fork_rng(), pytest.raises(SettingError, match="initial weights of a LSTM"):
            draw_state(nn.LSTM(2, 2), 1, rng())

    def test_dropout_that_cannot_be(self):
        with pytest.raises(SettingError, match=r"'dropout' of a network must be in \[0, 1\). Got 1"):
            mlp(3, 2, dropout=1)


class TestTraining:
    def test_it_finds_the_minimum_of_a_parabola(self):
        w = torch.tensor([4.0], requires_grad=True)
        target = torch.linspace(-1, 3, 64)
        history = train(
            [w], lambda b: (w - target[b]).square().mean(), 64,
            Training(epochs=200, batch_size=16, learning_rate=0.05, patience=None), rng=rng(),
        )  # fmt: skip
        assert w.item() == pytest.approx(1.0, abs=0.1)
        assert len(history) == 200
        assert history[-1].loss < history[0].loss

    def test_every_member_keeps_its_own_best(self):
        """Member 0 is best at the start and gets worse, member 1 is best at the end."""
        w = torch.tensor([0.0, 5.0], requires_grad=True)
        scores = []

        def validate():
            scores.append((w.detach() - torch.tensor([0.0, 0.0])).abs())
            return scores[-1]

        seen = []
        train(
            [w], lambda batch: ((w - torch.tensor([3.0, 0.0])) ** 2).sum(), 4,
            Training(epochs=15, batch_size=4, learning_rate=0.3, patience=None), rng=rng(), validate=validate,
            on_epoch=seen.append,
        )  # fmt: skip
        best = torch.stack(scores).min(dim=0).values
        torch.testing.assert_close(w.detach().abs(), best)
        assert scores[0][0] == best[0]
        assert [entry.epoch for entry in seen] == list(range(1, 16))

    def test_clipping_one_member_does_not_touch_another(self):
        x, y = torch.randn(64, 5, generator=rng(1)), torch.randint(2, (64,), generator=rng(2))
        network = mlp(5, 2, (8,))
        start = draw_state(network, 2, rng(3))
        start["0.weight"][1] *= 100
        settings, rows = Training(epochs=3, clip=0.1, patience=None), torch.arange(64).expand(2, -1)
        together, _ = fit_stacked(network, x, y, rows, settings, rng=rng(), start=start)
        alone, _ = fit_stacked(
            network, x, y, rows[:1], settings, rng=rng(), start={name: v[:1] for name, v in start.items()}
        )
        torch.testing.assert_close(together["0.weight"][0], alone["0.weight"][0], atol=1e-6, rtol=1e-5)

    def test_a_loss_that_is_no_number_is_no_best_and_no_end(self):
        w = torch.tensor([0.0], requires_grad=True)
        scores = iter([0.5, float("nan"), 0.3, 0.4])
        values = []

        def validate():
            values.append(w.item())
            return torch.tensor([next(scores)])

        train([w], lambda b: (w - 5).square().sum(), 4, Training(epochs=4), rng=rng(), validate=validate)
        assert w.item() == values[2]

    def test_divergence_is_an_error(self):
        toy = toys.linear_logistic(n=60)
        with pytest.raises(SettingError, match=r"diverged.*Lower the learning rate"):
            avcg.Classifier(hidden=(8, 8), epochs=5, learning_rate=1e30).fit(toy.X, toy.y)

    @pytest.mark.parametrize(
        "options", [{"patience": 0}, {"patience": 2.5}, {"clip": -1}, {"weight_decay": -1}, {"learning_rate": math.inf}]
    )
    def test_settings_that_cannot_be(self, options):
        with pytest.raises(SettingError, match="of Training must be"):
            Training(**options)

    def test_patience_runs_out(self):
        w = torch.tensor([0.0], requires_grad=True)
        history = train(
            [w], lambda batch: (w - 5).square().sum(), 4, Training(epochs=50, patience=3), rng=rng(),
            validate=lambda: w.detach().abs(),
        )  # fmt: skip
        assert len(history) == 4, "one epoch that is best, then three that are not"

    def test_stacked_training_is_separate_training(self):
        """Same first weights and rows, no dropout: each member ends where it ends alone."""
        x, y = torch.randn(96, 5, generator=rng(1)), torch.randint(3, (96,), generator=rng(2))
        network = mlp(5, 3, (8,))
        start = draw_state(network, 4, rng(3))
        rows = torch.stack([torch.randperm(96, generator=rng(s)) for s in range(4)])
        settings = Training(epochs=5, batch_size=32, patience=None)
        together, _ = fit_stacked(network, x, y, rows, settings, rng=rng(9), start=start)
        for s in range(4):
            mine = {name: value[s : s + 1] for name, value in start.items()}
            alone, _ = fit_stacked(network, x, y, rows[s : s + 1], settings, rng=rng(9), start=mine)
            for name in alone:
                torch.testing.assert_close(together[name][s], alone[name][0], atol=1e-5, rtol=1e-4)

    def test_stacked_training_is_plain_pytorch(self):
        x, y = torch.randn(64, 5, generator=rng(1)), torch.randint(3, (64,), generator=rng(2))
        network = mlp(5, 3, (8,))
        start = {name: value.detach().clone()[None] for name, value in network.named_parameters()}
        settings = Training(epochs=3, batch_size=16, learning_rate=1e-2, patience=None)
        found, _ = fit_stacked(network, x, y, torch.arange(64)[None], settings, rng=rng(5), start=start)
        optimizer, order = torch.optim.Adam(network.parameters(), lr=1e-2), rng(5)
        for _ in range(3):
            for batch in torch.randperm(64, generator=order).split(16):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
        for name, value in network.named_parameters():
            torch.testing.assert_close(found[name][0], value.detach(), atol=1e-6, rtol=1e-5)

    def test_convolutions_train_stacked_too(self):
        x = torch.randn(40, 1, 6, 6, generator=rng())
        y = (x.mean(dim=(1, 2, 3)) > 0).long()
        network = cnn((1, 6, 6), 2, (4,), units=8, dropout=0.1)
        state, history = fit_stacked(
            network, x, y, torch.arange(40).expand(3, -1), Training(epochs=30, learning_rate=1e-2), rng=rng(),
            held=torch.arange(40).expand(3, -1),
        )  # fmt: skip
        assert state["0.weight"].shape == (3, 4, 1, 3, 3)
        assert min(history[-1].validation) < 0.5 * max(history[0].validation)

    def test_the_loss_is_cross_entropy(self):
        logits, y = torch.randn(2, 5, 3, generator=rng()), torch.randint(3, (2, 5), generator=rng())
        for s in range(2):
            expected = nn.functional.cross_entropy(logits[s], y[s])
            torch.testing.assert_close(mean_cross_entropy(logits, y)[s], expected)


class TestAutoencoders:
    def test_a_row_fits_its_own_class_best(self):
        data = datasets.load("breast_cancer")
        model = avcg.TabularSpace.fit(data.schema, data.X)
        x, y = model.encode(data.X), torch.tensor((data.y == "benign").astype(int))
        order = torch.randperm(len(x), generator=rng())
        train_rows, test_rows = order[:400], order[400:]
        found = ClassAutoencoders.fit(x[train_rows], y[train_rows], 2)
        errors = found.errors(x[test_rows])
        assert errors.shape == (2, 169)
        assert (errors.argmin(dim=0) == y[test_rows]).float().mean() > 0.8
        assert found.history[-1].loss < found.history[0].loss

    def test_each_is_what_it_would_be_alone(self):
        x = torch.randn(40, 3, generator=rng())
        y = torch.tensor([0] * 30 + [1] * 10)
        network = autoencoder(3, (2,))
        both = ClassAutoencoders.fit(x, y, 2, network=network, training=Training(epochs=3, patience=None))
        expected = (by_hand(network, both.state, 1, x) - x).square().sum(dim=-1)
        torch.testing.assert_close(both.errors(x)[1], expected)

    def test_pictures_and_gradients(self):
        x = torch.rand(20, 1, 8, 8, generator=rng()).requires_grad_()
        y = torch.arange(20) % 3
        found = ClassAutoencoders.fit(x.detach(), y, 3, training=Training(epochs=2, patience=None))
        errors = found.errors(x)
        assert errors.shape == (3, 20)
        errors.sum().backward()
        assert x.grad.abs().sum() > 0

    def test_a_class_without_rows_is_refused(self):
        with pytest.raises(DataError, match="Class 1 of 3 has no rows"):
            ClassAutoencoders.fit(torch.zeros(4, 2), torch.tensor([0, 0, 2, 2]), 3)


def by_hand(network, state, c, x):
    """One member by hand: its parameters loaded into the plain network."""
    network.load_state_dict({name: value[c] for name, value in state.items()})
    with torch.no_grad():
        return network(x)


@pytest.fixture(scope="module")
def loans():
    return toys.loans(n=400)


def quick(**options):
    return avcg.Classifier(hidden=(16,), epochs=15, **options)


class TestClassifier:
    def test_it_learns(self, loans):
        model = avcg.Classifier(epochs=60).fit(loans.X, loans.y)
        assert model.score(loans.X, loans.y) > 0.93
        assert model.history_[-1].loss < model.history_[0].loss
        probabilities = model.predict_proba(loans.X)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)

    @pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [3, 7], [0.5, 1.5]])
    def test_labels_of_any_kind_come_back(self, loans, labels):
        y = np.array(labels)[loans.y]
        model = quick().fit(loans.X, y)
        assert model.classes_.tolist() == sorted(labels)
        assert model.predict(loans.X).dtype == y.dtype

    def test_a_seed_is_a_model(self, loans):
        one, same, other = (quick(random_state=seed).fit(loans.X, loans.y) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one.predict_proba(loans.X), same.predict_proba(loans.X))
        assert not np.array_equal(one.predict_proba(loans.X), other.predict_proba(loans.X))
        again = one.fit(loans.X, loans.y)
        np.testing.assert_array_equal(again.predict_proba(loans.X), same.predict_proba(loans.X))

    def test_it_lives_in_scikit_learn(self, loans):
        copy = clone(quick(dropout=0.3))
        assert copy.get_params()["dropout"] == 0.3
        assert copy.set_params(epochs=2).epochs == 2
        numbers = loans.X[["income", "months"]].to_numpy()
        assert cross_val_score(quick(), numbers, loans.y, cv=2).shape == (2,)
        search = GridSearchCV(quick(), {"hidden": [(4,), (8,)]}, cv=2).fit(loans.X, loans.y)
        assert search.best_params_["hidden"] in [(4,), (8,)]
        pipeline = make_pipeline("passthrough", quick()).fit(loans.X, loans.y)
        assert pipeline.predict(loans.X[:3]).shape == (3,)

    def test_polars_and_columns_in_any_order(self, loans):
        model = quick().fit(loans.X, loans.y)
        expected = model.predict_proba(loans.X)
        turned = loans.X[loans.X.columns[::-1]]
        np.testing.assert_array_equal(model.predict_proba(turned), expected)
        frame = pl.from_pandas(loans.X.assign(rating=loans.X["rating"].astype(str)))
        np.testing.assert_array_equal(model.predict_proba(frame), expected)

    def test_images(self):
        rng_ = np.random.default_rng(0)
        bright = rng_.integers(0, 2, 120)
        images = (rng_.integers(0, 100, (120, 8, 8)) + 120 * bright[:, None, None]).astype(np.uint8)
        model = avcg.Classifier(hidden=(4,), epochs=15, learning_rate=1e-2).fit(images, bright)
        assert model.score(images, bright) > 0.95

    def test_a_schema_is_used(self, loans):
        schema = loans.schema.freeze("owns")
        model = quick(schema=schema).fit(loans.X, loans.y)
        assert model.space_.schema == schema

    def test_real_data(self):
        data = datasets.load("breast_cancer")
        train_part, _, test = data.split(seed=0)
        assert avcg.Classifier(schema=data.schema).fit(train_part.X, train_part.y).score(test.X, test.y) > 0.93

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda toy: quick().fit(toy.X, toy.y[:5]), r"one label per row, 400. Got labels of shape \(5,\)"),
            (lambda toy: quick().fit(toy.X, np.zeros(400)), "at least two classes"),
            (lambda toy: quick().fit(toy.X, pd.Series([None, *toy.y[1:]])), "1 labels are missing"),
            (lambda toy: quick(validation=1.0).fit(toy.X, toy.y), r"'validation' share must be in \[0, 1\)"),
            (
                lambda toy: quick(random_state=None).fit(toy.X, toy.y),
                "'random_state' of Classifier must be a whole number",
            ),
            (
                lambda toy: avcg.Classifier(hidden=(0,)).fit(toy.X, toy.y),
                "'hidden' of Classifier must be a whole number >= 1",
            ),
            (lambda toy: quick(device="gpu").fit(toy.X, toy.y), "'device' of Classifier.*Got 'gpu'"),
            (lambda toy: quick(validation=0.99).fit(toy.X[:3], [0, 1, 1]), "leaves none of 3 rows"),
            (lambda toy: quick(dropout=-1).fit(toy.X, toy.y), "'dropout' of a network"),
            (
                lambda toy: quick().fit(toy.X, toy.y).predict(toy.X.assign(more=1)),
                "'more', which the schema does not know",
            ),
        ],
    )
    def test_bad_input(self, loans, call, message):
        with pytest.raises((DataError, SettingError), match=message):
            call(loans)

    def test_numbers_of_numpy_and_a_single_layer(self, loans):
        search = GridSearchCV(quick(), {"epochs": np.arange(1, 3)}, cv=2).fit(loans.X, loans.y)
        assert search.best_params_["epochs"] in (1, 2)
        model = avcg.Classifier(hidden=8, epochs=np.int64(2), random_state=np.int64(3)).fit(loans.X, loans.y)
        assert model.network_[0].out_features == 8
        assert model.feature_names_in_.tolist() == list(loans.X.columns)

    def test_a_fit_that_fails_changes_nothing(self, loans):
        model = quick().fit(loans.X, loans.y)
        before = model.predict_proba(loans.X)
        with pytest.raises(SettingError):
            model.set_params(dropout=5).fit(loans.X, np.where(loans.y, "u", "v"))
        np.testing.assert_array_equal(model.predict_proba(loans.X), before)
        assert model.classes_.tolist() == [0, 1]

    def test_unfitted(self, loans):
        with pytest.raises(NotFittedError):
            quick().predict(loans.X)
