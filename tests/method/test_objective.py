"""The paper's objective against brute force, its chain rules, and finite differences."""

import functools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from avcg import ImageSpace, Schema, TabularSpace, toys
from avcg.errors import SettingError
from avcg.hypotheses.dropout import MCDropout
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Stacked
from avcg.method.config import ReferenceConfig
from avcg.method.deployed import DeployedModel
from avcg.method.generator import Condition, DiagonalNormal, Generator
from avcg.method.objective import Draws, Terms, Weights, objective, sampled_answers, target_log_probs
from avcg.method.recipe import GeneratorLoss, Recipe, draw_targets, mean_squared
from avcg.method.reference_set import ReferenceSet, nearest
from avcg.method.risk import Hinge, expected_log_likelihood, log_odds, worst_case
from avcg.models.networks import draw_state, mlp
from avcg.models.precision import full_precision, lower_precision


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def numbers(n=60, columns=3, seed=0):
    frame = pd.DataFrame(
        np.random.default_rng(seed).normal(size=(n, columns)), columns=[f"x{i}" for i in range(columns)]
    )
    return TabularSpace.fit(Schema.infer(frame), frame), frame


def hypotheses(n_inputs, count=4, seed=0, classes=2):
    network = mlp(n_inputs, classes, (8,))
    state = {name: 3 * value for name, value in draw_state(network, count, rng(seed)).items()}
    return Stacked(network, state, torch.arange(1.0, count + 1))


def ask(space, x, target=None, margin=1.0, typicality=0.0):
    target = torch.zeros(len(x), dtype=torch.long) if target is None else target
    margins, typicality = (torch.full((len(x),), value, dtype=x.dtype) for value in (margin, typicality))
    return Condition(x, target, space.constraint_features(x), margins, typicality)


def even_noise(count):
    """(count, 1, 1) midpoints of a normal's quantiles: a mean over them is an integral over z."""
    return torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None, None]


class TestBound:
    @pytest.mark.parametrize("seed", range(5))
    def test_it_never_exceeds_the_log_evidence(self, seed):
        space, frame = numbers(seed=seed)
        x = space.encode(frame)[:6].double()
        predictors = hypotheses(3, seed=seed)
        generator = Generator(space, 2, decoder="latent", n_latent=1, rng=rng(seed)).double()
        request = ask(space, x, torch.tensor([0, 1, 0, 1, 0, 1]))
        noise = even_noise(801)
        terms = objective(
            generator, space, request, generator.posterior(request), predictors, Draws(noise), expected_log_likelihood
        )
        bound = -(terms.nll + terms.kl)
        # log of the double integral of P_theta(y' | g(x, y', z)) over the prior of z and over theta, by brute force.
        answers = space.relax(generator(request, noise.expand(-1, 6, 1)).raw, x)
        log_p = target_log_probs(predictors, answers, request.target)
        weights = predictors.weights.double()
        evidence = (torch.einsum("s,skb->b", weights, log_p.exp()) / len(noise)).log()
        assert (bound <= evidence + 1e-6).all()
        assert (bound < evidence - 1e-4).any(), "hypotheses that disagree leave a gap"

    def test_it_is_tight_for_one_hypothesis_and_a_posterior_that_is_the_prior(self):
        space, frame = numbers()
        x = space.encode(frame)[:4]
        predictors = hypotheses(3, count=1)
        generator = Generator(space, 2, decoder="latent", n_latent=1)
        with torch.no_grad():
            generator.decoder[0].weight[:, :1] = 0  # the answer does not depend on z
        request = ask(space, x)
        prior = DiagonalNormal(torch.zeros(4, 1), torch.zeros(4, 1))
        terms = objective(generator, space, request, prior, predictors, Draws(torch.randn(7, 4, 1, generator=rng())),
                          expected_log_likelihood)  # fmt: skip
        answer = space.relax(generator(request, torch.zeros(1, 4, 1)).raw, x)
        exact = target_log_probs(predictors, answer, request.target)[0, 0]
        torch.testing.assert_close(-(terms.nll + terms.kl), exact)

    def test_divergence_is_the_closed_form_and_that_of_simulation(self):
        normal = DiagonalNormal(torch.tensor([[0.5, -1.0]]), torch.tensor([[0.3, -0.7]]))
        z = normal.sample(torch.randn(200_000, 1, 2, generator=rng()))
        q = torch.distributions.Normal(normal.mean, (0.5 * normal.log_variance).exp())
        p = torch.distributions.Normal(0.0, 1.0)
        torch.testing.assert_close(normal.kl(), torch.distributions.kl_divergence(q, p).sum(-1))
        assert abs(float((q.log_prob(z) - p.log_prob(z)).sum(-1).mean()) - float(normal.kl())) < 0.02


class TestChainRules:
    def setup_method(self):
        self.space, frame = numbers()
        self.x = self.space.encode(frame)[:5].double()
        self.predictors = hypotheses(3)
        self.generator = Generator(self.space, 2, decoder="full", n_latent=2, rng=rng()).double()
        self.request = ask(self.space, self.x)
        self.noise = torch.randn(3, 5, 2, generator=rng(), dtype=torch.float64)

    def terms(self):
        posterior = self.generator.posterior(self.request)
        return objective(self.generator, self.space, self.request, posterior, self.predictors, Draws(self.noise),
                         expected_log_likelihood)  # fmt: skip

    def test_the_decoder_is_updated_by_the_gradient_in_the_answer_times_that_of_the_answer(self):
        parameters = list(self.generator.decoder.parameters())
        found = torch.autograd.grad(-self.terms().nll.sum(), parameters)
        z = self.generator.posterior(self.request).sample(self.noise).detach()
        answers = self.space.relax(self.generator(self.request, z).raw, self.x)
        leaf = answers.detach().requires_grad_()
        log_p = target_log_probs(self.predictors, leaf, self.request.target)
        risk = expected_log_likelihood(log_p, self.predictors.weights.double()).mean(0).sum()
        (by_answer,) = torch.autograd.grad(risk, leaf)
        for one, other in zip(found, torch.autograd.grad(answers, parameters, by_answer), strict=True):
            torch.testing.assert_close(one, other)

    def test_the_encoder_is_updated_through_z(self):
        parameters = list(self.generator.encoder.parameters())
        found = torch.autograd.grad(-self.terms().nll.sum(), parameters)
        z = self.generator.posterior(self.request).sample(self.noise)
        leaf = z.detach().requires_grad_()
        answers = self.space.relax(self.generator(self.request, leaf).raw, self.x)
        log_p = target_log_probs(self.predictors, answers, self.request.target)
        risk = expected_log_likelihood(log_p, self.predictors.weights.double()).mean(0).sum()
        (by_z,) = torch.autograd.grad(risk, leaf)
        for one, other in zip(found, torch.autograd.grad(z, parameters, by_z), strict=True):
            torch.testing.assert_close(one, other)
        assert all(float(gradient.abs().sum()) > 0 for gradient in found)

    @pytest.mark.parametrize("part", ["encoder", "decoder"])
    def test_gradients_are_those_of_finite_differences(self, part):
        weights = Weights(proximity=2.0)
        parameter = next(getattr(self.generator, part).parameters())

        def total():
            posterior = self.generator.posterior(self.request)
            terms = objective(
                self.generator, self.space, self.request, posterior, self.predictors, Draws(self.noise),
                expected_log_likelihood, distance=mean_squared,
            )  # fmt: skip
            return terms.total(weights).sum()

        (gradient,) = torch.autograd.grad(total(), [parameter])
        for at in ((0, 0), (3, 1), (5, 2)):
            with torch.no_grad():
                parameter[at] += 1e-6
                above = total()
                parameter[at] -= 2e-6
                below = total()
                parameter[at] += 1e-6
            assert float((above - below) / 2e-6) == pytest.approx(float(gradient[at]), abs=1e-5, rel=1e-4)

    def test_the_total_is_the_weighted_sum(self):
        terms = Terms(*(torch.full((2,), float(i)) for i in range(1, 7)))
        weights = Weights(nll=1.0, kl=10.0, proximity=100.0, changes=0.0, plausibility=0.5, sameness=2.0)
        assert terms.total(weights).tolist() == [1 + 20 + 300 + 2.5 + 12] * 2
        assert terms.total(Weights()).tolist() == [1 + 2 + 5 * 3] * 2, "the paper's G by default"

    def test_typicality_weighs_costs_against_plausibility(self):
        terms = Terms(*(torch.full((3,), float(i)) for i in range(1, 7)))
        weights = Weights(nll=1.0, kl=10.0, proximity=100.0, changes=3.0, plausibility=0.5, sameness=2.0)
        typicality = torch.tensor([0.0, 0.5, 1.0])
        others, costs, plausibility = 1 + 20 + 12, 300 + 12, 2.5
        expected = [others + 2 * costs, others + costs + plausibility, others + 2 * plausibility]
        assert terms.total(weights, typicality).tolist() == expected
        plain = replace(weights, plausibility=0.0)
        assert terms.total(plain, typicality).tolist() == [others + costs] * 3, "there is nothing to weigh against"


class TestHinge:
    def test_nothing_is_paid_once_the_margin_is_reached(self):
        log_p = torch.tensor([[0.97], [0.99]]).log().requires_grad_()
        value = Hinge.at(0.9)(log_p, torch.tensor([0.5, 0.5]))
        assert value.tolist() == [0.0]
        value.sum().backward()
        assert log_p.grad.tolist() == [[0.0], [0.0]]

    def test_the_mean_less_some_deviations_falls_short(self):
        odds = torch.tensor([0.0, math.log(4.0)])
        log_p, weights = torch.nn.functional.logsigmoid(odds), torch.tensor([0.25, 0.75])
        mean = 0.75 * math.log(4.0)
        deviation = math.sqrt(0.25 * mean**2 + 0.75 * (math.log(4.0) - mean) ** 2)
        value = Hinge(math.log(9.0), spread=1.5)(log_p, weights)
        assert float(value) == pytest.approx(-(math.log(9.0) - (mean - 1.5 * deviation)), abs=1e-5)

    def test_hypotheses_without_weight_do_not_count(self):
        log_p = torch.tensor([0.95, 1e-30]).log()
        assert float(Hinge.at(0.9)(log_p, torch.tensor([1.0, 0.0]))) == 0.0

    def test_each_row_has_its_own_margin(self):
        log_p = torch.full((3, 2, 4), 0.5).log()
        margin = torch.tensor([0.0, 1.0, 2.0, 3.0])
        found = Hinge(margin, spread=0.0)(log_p, torch.full((3,), 1 / 3))
        torch.testing.assert_close(found, -margin.expand(2, 4))

    def test_log_odds_stay_finite_at_certainty_and_exact_near_zero(self):
        found = log_odds(torch.tensor([0.0, -1e-9, -200.0]))
        assert torch.isfinite(found).all()
        assert found[2] == -200.0

    @pytest.mark.parametrize("wrong", [lambda: Hinge(spread=-1.0), lambda: Hinge.at(1.0), lambda: Hinge.at(0.0)])
    def test_settings_that_cannot_be(self, wrong):
        with pytest.raises(SettingError, match="of Hinge must be"):
            wrong()


class TestAnswersInTraining:
    def setup_method(self):
        toy = toys.loans(n=80)
        self.space = TabularSpace.fit(toy.schema, toy.X)
        self.x = self.space.encode(toy.X)
        self.generator = Generator(self.space, 2, n_latent=4, rng=rng(1))
        self.request = ask(self.space, self.x)
        self.draws = Draws.draw(self.generator, self.space, 3, self.x, rng(), hard=True)
        posterior = self.generator.posterior(self.request)
        self.proposal = self.generator(self.request, posterior.sample(self.draws.latent))

    def test_the_forward_pass_is_what_people_receive(self):
        answers, expected = sampled_answers(self.space, self.x, self.proposal, self.draws, 0.5)
        for k in range(3):
            assert torch.equal(self.space.project(answers[k], self.x), answers[k])
        assert expected.shape == answers.shape
        assert float(self.space.count_changes(answers.detach(), self.x).mean()) > 0

    def test_gradients_reach_numbers_gates_and_categories(self):
        answers, _ = sampled_answers(self.space, self.x, self.proposal, self.draws, 0.5)
        raw, gates = torch.autograd.grad(answers.square().sum(), (self.proposal.raw, self.proposal.gates))
        assert (raw[..., : self.space.n_gates].abs().sum((0, 1)) > 0).all()
        assert (raw[..., self.space.n_gates :].abs().sum((0, 1)) > 0).any()
        assert (gates.abs().sum((0, 1)) > 0).all()

    def test_the_expectation_is_that_of_many_draws(self):
        far = self.space.is_logit.logical_not() * 3.0  # so that no number is rounded back to where it was
        self.proposal = replace(self.proposal, raw=self.proposal.raw + far)
        counts = []
        for seed in range(200):
            draws = replace(
                Draws.draw(self.generator, self.space, 3, self.x, rng(seed), hard=True), latent=self.draws.latent
            )
            answers, expected = sampled_answers(self.space, self.x, self.proposal, draws, 1.0)
            counts.append(self.space.count_changes(answers.detach(), self.x).mean())
        likely = torch.sigmoid(self.proposal.gates)
        assert float(torch.stack(counts).mean()) == pytest.approx(
            float(self.space.count_changes(expected, self.x, likely).detach().mean()), rel=0.02
        )

    def test_answers_of_a_row_that_are_the_same_are_paid_for(self):
        predictors = hypotheses(self.x.shape[1])
        posterior = self.generator.posterior(self.request)
        one = Draws.draw(self.generator, self.space, 1, self.x, rng(), hard=True)
        same = Draws(one.latent.expand(2, -1, -1), one.gates.expand(2, -1, -1), one.categories.expand(2, -1, -1))
        apart = Draws.draw(self.generator, self.space, 2, self.x, rng(), hard=True)
        found = [
            objective(
                self.generator, self.space, self.request, posterior, predictors, draws, worst_case, temperature=1.0
            )
            for draws in (one, same, apart)
        ]
        assert found[0].sameness.tolist() == [0.0] * 80, "one answer cannot repeat itself"
        assert found[1].sameness.tolist() == [1.0] * 80
        assert float(found[2].sameness.detach().mean()) < 0.7


class TestGenerator:
    @pytest.mark.parametrize("decoder", ["latent", "full", "residual"])
    def test_images_go_through_the_same_class(self, decoder):
        pixels = np.random.default_rng(0).integers(0, 255, (6, 9, 11), dtype=np.uint8)
        space = ImageSpace.fit(pixels)
        x = space.encode(pixels)
        generator = Generator(space, 3, decoder=decoder, n_latent=4, encoder=(4,), layers=(4, 6))
        request = ask(space, x)
        posterior = generator.posterior(request)
        proposal = generator(request, posterior.sample(torch.randn(2, 6, 4, generator=rng())))
        assert proposal.raw.shape == (2, 6, 1, 9, 11)
        assert proposal.gates is None
        proposal.raw.sum().backward()
        assert all(parameter.grad is not None for parameter in generator.parameters())

    def test_a_latent_decoder_sees_neither_the_row_nor_its_leeway(self):
        space, frame = numbers()
        x = space.encode(frame)[:4]
        generator = Generator(space, 2, decoder="latent", n_latent=2)
        z = torch.randn(1, 4, 2, generator=rng())
        first, second = (generator(ask(space, rows), z).raw for rows in (x, x + 1))
        assert torch.equal(first, second)
        typical = generator(ask(space, x, typicality=1.0), z).raw
        assert torch.equal(first, typical), "nor how typical answers are to be"

    @pytest.mark.parametrize("decoder", ["full", "residual"])
    def test_others_read_how_typical_answers_are_to_be(self, decoder):
        space, frame = numbers()
        x = space.encode(frame)[:4]
        generator = Generator(space, 2, decoder=decoder, n_latent=2, rng=rng())
        z = torch.randn(1, 4, 2, generator=rng())
        first, second = (ask(space, x, typicality=typicality) for typicality in (0.0, 1.0))
        assert not torch.equal(generator(first, z).raw, generator(second, z).raw)
        assert not torch.equal(generator.posterior(first).mean, generator.posterior(second).mean)

    def test_a_residual_decoder_starts_near_the_factual(self):
        toy = toys.loans(n=200)
        space = TabularSpace.fit(toy.schema, toy.X)
        x = space.encode(toy.X)
        generator = Generator(space, 2)
        with torch.no_grad():
            raw = generator(ask(space, x), torch.zeros(1, 200, 8)).raw
        stays = space.project(space.relax(raw, x), x)[0][:, space.is_logit] == x[:, space.is_logit]
        assert float(stays.float().mean()) > 0.99

    def test_the_same_seed_makes_the_same_networks(self):
        space, _ = numbers()
        one, two, other = (Generator(space, 2, rng=rng(seed)) for seed in (3, 3, 4))
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
        assert not torch.equal(next(one.parameters()), next(other.parameters()))

    def test_a_decoder_of_another_name_is_refused(self):
        with pytest.raises(SettingError, match="'decoder' must be"):
            Generator(numbers()[0], 2, decoder="residul")


class TestBank:
    def test_distance_is_that_of_brute_force_and_its_gradient_too(self):
        generator = rng()
        rows = tuple(torch.randn(20, 4, generator=generator, dtype=torch.float64) for _ in range(2))
        bank = ReferenceSet(rows, k=3)
        x = torch.randn(6, 4, generator=generator, dtype=torch.float64).requires_grad_()
        target = torch.tensor([0, 1, 0, 1, 1, 0])
        found = bank(x, target)
        for i in range(6):
            distances = (x[i] - rows[target[i]]).norm(dim=1).sort().values[:3]
            assert found[i].item() == pytest.approx(distances.mean().item(), abs=1e-6)
        assert torch.autograd.gradcheck(lambda points: bank(points, target), x)

    def test_rows_are_those_on_which_hypotheses_agree(self):
        one = hypotheses(3, count=1).overrides
        shaken = {name: value + 0.1 * torch.randn(4, *value.shape[1:], generator=rng()) for name, value in one.items()}
        predictors = Stacked(mlp(3, 2, (8,)), shaken)
        x = 4 * torch.randn(500, 3, generator=rng())
        y = torch.randint(2, (500,), generator=rng())
        bank = ReferenceSet.robust(predictors, x, y, ReferenceConfig(), rng())
        for label, rows in enumerate(bank.rows):
            assert (predictors.log_probs(rows).exp()[..., label] >= 0.6).all()
            expected = (predictors.log_probs(x).exp()[..., label] >= 0.6).all(0) & (y == label)
            assert len(rows) == int(expected.sum())

    def test_where_none_qualify_the_surest_are_taken(self):
        network = mlp(2, 2, ())
        coin = Stacked(network, {"0.weight": torch.zeros(1, 2, 2), "0.bias": torch.zeros(1, 2)})
        bank = ReferenceSet.robust(coin, torch.randn(9, 2, generator=rng()), None, ReferenceConfig(max_rows=100), rng())
        assert [len(rows) for rows in bank.rows] == [5, 5]

    def test_nearest_is_brute_force_in_either_norm(self):
        x, rows = torch.randn(7, 3, generator=rng()), torch.randn(30, 3, generator=rng(1))
        for p, apart in ((1.0, functools.partial(torch.cdist, p=1.0)), (2.0, torch.cdist)):
            expected = torch.stack([(point - rows).norm(p=p, dim=1).argsort()[:4] for point in x])
            assert torch.equal(nearest(x, rows, 4, apart), expected)


class TestSteps:
    @pytest.mark.parametrize("drawn", [False, True])
    def test_steps_that_are_all_alike_have_the_loss_of_any_other(self, drawn):
        """What is recorded on a GPU is the objective; here it is computed, and must be the same to the last bit."""
        loans = toys.loans(n=200)
        space = TabularSpace.fit(loans.schema, loans.X)
        x = space.encode(loans.X)
        network = mlp(x.shape[1], 2, (8,), dropout=0.2, rng=rng())
        train = MCDropout(network) if drawn else FiniteSet(Stacked(network, draw_state(network, 4, rng())))
        losses = []
        for steady in (True, False):
            generator = Generator(space, 2, decoder="latent", n_latent=3, encoder=(8,), layers=(8,), rng=rng())
            recipe = replace(Recipe.paper(), n_hypotheses=4, n_latents=2)
            deployed = DeployedModel(Stacked(network, {}), None)
            lesson = GeneratorLoss(generator, space, x, train, deployed, recipe, None, rng(1))
            assert lesson.steady is not None
            lesson.steady = lesson.steady if steady else None
            each = [lesson(torch.arange(start, start + 32)) for start in (0, 32, 64)]
            sum(each).backward()
            gradients = [parameter.grad.clone() for parameter in generator.parameters()]
            losses.append((torch.stack(each).detach(), gradients))
        assert torch.equal(losses[0][0], losses[1][0])
        assert all(torch.equal(a, b) for a, b in zip(losses[0][1], losses[1][1], strict=True))

    @pytest.mark.parametrize("more", [{"temperature": (1.0, 0.3)}, {"requests": 0.4}, {"warm_up": 0.2}])
    def test_steps_that_are_not_alike_are_not_recorded(self, more):
        loans = toys.loans(n=50)
        space = TabularSpace.fit(loans.schema, loans.X)
        x, network = space.encode(loans.X), mlp(space.event_shape[0], 2, (4,), rng=rng())
        generator = Generator(space, 2, decoder="latent", n_latent=2, encoder=(4,), layers=(4,), rng=rng())
        recipe, one = replace(Recipe.paper(), **more), Stacked(network, {})
        lesson = GeneratorLoss(generator, space, x, FiniteSet(one), DeployedModel(one, None), recipe, None, rng())
        assert lesson.steady is None
        assert torch.isfinite(lesson(torch.arange(8)))

    def test_precision_is_a_matter_of_gpus(self):
        x = torch.randn(4, 3, generator=rng())
        with full_precision(x.device), lower_precision(x.device, enabled=True):
            assert (x @ x.T).dtype == torch.float32


class TestRecipe:
    def test_targets_other_are_never_the_rows_own_and_all_are_any(self):
        current = torch.arange(4).repeat(500)
        other, every = (draw_targets(current, 4, kind, rng()) for kind in ("other", "all"))
        assert (other != current).all()
        assert all(int(((other == t) & (current == c)).sum()) > 100 for t in range(4) for c in range(4) if t != c)
        assert all(int(((every == t) & (current == c)).sum()) > 80 for t in range(4) for c in range(4))

    def test_by_default_hypotheses_come_in_gradually_and_chance_fades(self):
        recipe = Recipe()
        assert 0 < recipe.warm_up < 1
        assert 0 < recipe.warm_up_start < 1
        assert recipe.noise[0] > recipe.noise[1] > 0
        assert recipe.temperature[0] > recipe.temperature[1] > 0

    def test_by_default_half_of_the_distance_is_that_of_expected_answers(self):
        assert Recipe().expected_share == 0.5

    def test_the_papers_configuration_is_what_the_paper_says(self):
        recipe = Recipe.paper()
        assert (recipe.n_hypotheses, recipe.n_latents, recipe.targets, recipe.decoder) == (50, 5, "all", "latent")
        assert recipe.risk is expected_log_likelihood
        assert recipe.weights == Weights(1.0, 1.0, 3.0)
        assert recipe.temperature is None

    @pytest.mark.parametrize(
        "wrong",
        [{"steps": 0}, {"requests": 1.5}, {"temperature": (0.0, 1.0)}, {"margins": (2.0, 1.0)}, {"targets": "none"}],
    )
    def test_settings_that_cannot_be(self, wrong):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            Recipe(**wrong)
