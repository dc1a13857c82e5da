"""How a generator is trained, pinned by what training is given and by what a generator trained shortly does.

Nothing here says which rule is used, only what any rule must achieve: a test that fails names what was lost.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from avcg import Recipe, Schema, TabularSpace
from avcg.errors import SettingError
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Stacked
from avcg.method.deployed import DeployedModel
from avcg.method.generator import Condition, DiagonalNormal, Generator, Proposal
from avcg.method.multipliers import ConstraintConfig, Multipliers
from avcg.method.objective import Draws, Weights, objective
from avcg.method.recipe import fit_generator
from avcg.method.risk import expected_log_likelihood, lower_log_odds
from avcg.space.relax import inward_clamp

# What differs from a full training is only its length.
SHORT = Recipe(layers=(32, 32), encoder=(16,), n_latent=2, steps=160, batch_size=256, learning_rate=1e-2)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Problem:
    """Two numbers and a few linear models to which the first says twice as much as the second."""

    space: TabularSpace
    x: torch.Tensor
    models: Stacked

    @classmethod
    def of(cls, n=300, n_models=4):
        frame = pd.DataFrame(np.random.default_rng(0).normal(size=(n, 2)), columns=["strong", "weak"])
        space = TabularSpace.fit(Schema.infer(frame), frame)
        slopes = torch.tensor([3.0, 1.5]) + 0.1 * torch.randn(n_models, 2, generator=rng())
        overrides = {
            "weight": torch.stack([torch.zeros_like(slopes), slopes], dim=1),
            "bias": torch.zeros(n_models, 2),
        }
        return cls(space, space.encode(frame), Stacked(nn.utils.skip_init(nn.Linear, 2, 2), overrides))

    @property
    def deployed(self):
        return DeployedModel(self.models)

    def train(self, generator, recipe, *, plausibility=None):
        """The losses of the passes, and the multipliers after the last step."""
        multipliers = recipe.constraint and Multipliers(recipe.constraint, recipe.margins, recipe.weights.nll)
        epochs = fit_generator(
            generator, self.space, self.x, FiniteSet(self.models), self.deployed, recipe, plausibility, rng(1),
            multipliers=multipliers,
        )  # fmt: skip
        return [epoch.loss for epoch in epochs], multipliers


@dataclass
class Seen:
    """What training asked of a generator and what came of it, step by step."""

    requests: list[Condition] = field(default_factory=list)
    answers: list[torch.Tensor] = field(default_factory=list)

    def plausibility(self, answers, target):
        """A term that only looks at the answers."""
        self.answers.append(answers.detach())
        return torch.zeros(len(answers))

    @property
    def x(self):
        return torch.cat([request.x for request in self.requests])

    @property
    def target(self):
        return torch.cat([request.target for request in self.requests])

    @property
    def margin(self):
        return torch.cat([request.margin for request in self.requests])


class Stubborn(Generator):
    """A generator that always proposes the same change, with gates rather open than shut, and notes what it is asked.

    It learns nothing, so that what differs from step to step is due to the training alone.
    """

    def __init__(self, space, seen):
        super().__init__(space, 2, n_latent=2, encoder=(4,), layers=(4,), rng=rng())
        self.seen = seen

    def forward(self, request, z):
        self.seen.requests.append(request)
        idle = 0.0 * super().forward(request, z).raw
        # Toward the middle, so that no bound of the table is in the way.
        return Proposal(0.5 * request.x + idle, torch.ones(*idle.shape[:2], self.n_gates))


def watched(recipe):
    problem, seen = Problem.of(), Seen()
    problem.train(Stubborn(problem.space, seen), recipe, plausibility=seen.plausibility)
    return problem, seen


@pytest.fixture(scope="module")
def usual():
    return watched(SHORT)


class TestWhatTrainingAsks:
    def test_margins_cover_the_whole_range_of_the_recipe(self, usual):
        """A generator is asked for any of them later."""
        _, seen = usual
        low, high = SHORT.margins
        shares = torch.histc((seen.margin - low) / (high - low), bins=4, min=0.0, max=1.0) / len(seen.margin)
        assert (shares > 0.1).all(), "a quarter of the range is hardly ever asked for"
        assert float(shares.sum()) == pytest.approx(1.0), "a margin outside the range is asked for"

    def test_few_rows_are_made_more(self, usual):
        problem, seen = usual
        known = {tuple(row) for row in problem.x.tolist()}
        new = torch.tensor([tuple(row) not in known for row in seen.x.tolist()])
        assert 0.2 < float(new.float().mean()) < 0.8, "as many rows of the table as made-up ones, or thereabouts"
        for column in range(2):
            assert torch.isin(seen.x[:, column], problem.x[:, column]).all(), "every value was seen in the table"

    def test_targets_are_other_than_what_is_decided_of_the_very_rows_shown(self, usual):
        problem, seen = usual
        decided = problem.deployed.decide(problem.deployed.probabilities(seen.x))
        assert (seen.target != decided).all()
        assert len(seen.target.unique()) == 2

    def test_some_rows_come_with_a_request_of_their_own(self, usual):
        """Locked columns above all: without them in training, a locked column is a surprise later."""
        problem, seen = usual
        tighter, locked = [], []
        for request in seen.requests:
            free = problem.space.constraint_features(request.x)
            tighter.append((request.constraint_features < free - 1e-6).any(dim=1))
            falls, rises = request.constraint_features[:, :2], request.constraint_features[:, 2:4]
            locked.append((falls + rises == 0).any(dim=1))
        assert 0.1 < float(torch.cat(tighter).float().mean()) < 0.9
        assert float(torch.cat(locked).float().mean()) > 0.05

    def test_answers_keep_to_these_requests(self):
        _, seen = watched(replace(SHORT, steps=32))
        for request, answers in zip(seen.requests, seen.answers, strict=True):
            shut = request.constraint_features[:, :2] + request.constraint_features[:, 2:4] == 0
            assert torch.equal(answers[shut], request.x[shut])

    def test_chance_in_gates_fades(self):
        """Early on all is tried; in the end answers are what the gates say, as when people ask."""
        _, seen = watched(replace(SHORT, requests=0.0, noise=(1.0, 0.2)))
        moved = [
            (answer != request.x).float().mean() for answer, request in zip(seen.answers, seen.requests, strict=True)
        ]
        tenth = len(moved) // 10
        early, late = (float(torch.stack(part).mean()) for part in (moved[:tenth], moved[-tenth:]))
        assert early < 0.85, "a gate that is somewhat open is often shut at first"
        assert late > 0.95

        assert late > 0.95

    def test_the_relaxation_sharpens(self):
        """Early on a gate that is rather open can still be moved; in the end it is nearly a decision."""
        problem, slopes = Problem.of(), []

        class Felt(Stubborn):
            def forward(self, request, z):
                proposal = super().forward(request, z)
                proposal.gates.requires_grad_().register_hook(lambda slope: slopes.append(float(slope.abs().mean())))
                return proposal

        weights = Weights(nll=0.0, kl=0.0, proximity=1.0)
        recipe = replace(
            SHORT, steps=48, weights=weights, constraint=None, requests=0.0, expected_share=0.0, noise=(0.0, 0.0),
            temperature=(1.0, 0.1),
        )  # fmt: skip
        problem.train(Felt(problem.space, Seen()), recipe)
        tenth = len(slopes) // 10
        assert 0 < np.mean(slopes[-tenth:]) < 0.1 * np.mean(slopes[:tenth])

    @pytest.mark.parametrize("constraint", [None, ConstraintConfig(rate=0.0)], ids=["a weight", "a constraint"])
    def test_hypotheses_press_less_at_first(self, constraint):
        """With a generator that does not learn, the price of not convincing them can only grow by itself."""
        problem = Problem.of()
        weights = Weights(nll=1.0, kl=0.0, proximity=0.0)
        recipe = replace(SHORT, weights=weights, warm_up=0.5, constraint=constraint)
        losses, _ = problem.train(Stubborn(problem.space, Seen()), recipe)
        assert len(losses) >= 8
        assert 0 < losses[0] < 0.5 * losses[-1]
        assert losses[0] < losses[1] < losses[2]


class TestMarginAsAConstraint:
    """What an untaught generator fails to buy becomes dearer, level by level of the margin."""

    CONSTRAINT = ConstraintConfig(levels=5, rate=0.005, highest=120.0)

    def after(self, **changes):
        problem = Problem.of()
        recipe = replace(
            SHORT, **{"steps": 50, "constraint": self.CONSTRAINT, "requests": 0.0, "warm_up": 0.0} | changes
        )
        _, multipliers = problem.train(Stubborn(problem.space, Seen()), recipe)
        return multipliers.values

    def test_what_is_missed_by_more_is_pressed_harder(self):
        values = self.after()
        assert (values.diff() > 0).all(), "the generator gives the same answer at every margin"
        assert values[-1] > 2 * SHORT.weights.nll

    def test_margins_that_are_reached_are_pressed_less(self):
        values = self.after(margins=(-30.0, -20.0))
        assert (values < SHORT.weights.nll).all()
        assert (values >= self.CONSTRAINT.lowest).all()

    def test_rows_that_may_not_do_what_it_takes_press_nobody(self):
        """Of those with locked columns many cannot reach their margin; that is no reason to send others further."""
        torch.testing.assert_close(self.after(requests=0.8), self.after(), rtol=0.12, atol=0.0)

    def test_steps_that_are_otherwise_all_alike_are_no_exception(self):
        values = self.after(temperature=None)
        assert values[-1] > 2 * SHORT.weights.nll

    def test_they_wait_until_the_hypotheses_have_their_full_weight(self):
        torch.testing.assert_close(self.after(warm_up=1.0), torch.full((5,), SHORT.weights.nll), rtol=0.2, atol=0.0)

    def test_a_margin_that_the_weight_alone_does_not_buy_is_bought(self):
        problem = Problem.of()
        recipe = replace(SHORT, weights=replace(SHORT.weights, nll=0.3), constraint=ConstraintConfig(rate=0.05))
        generator = Generator(problem.space, 2, n_latent=2, encoder=(16,), layers=(32, 32), rng=rng())
        problem.train(generator, recipe)
        answers, target = answers_of(problem, generator, problem.space, margin=3.0)
        assert float(convinced(problem, answers, target).median()) > 2.0

    def test_a_step_goes_by_the_mean_shortfall_of_each_level(self):
        config = ConstraintConfig(levels=4, violation=0.5, rate=0.1)
        multipliers = Multipliers(config, (0.0, 4.0), start=10.0)
        level = multipliers.level(torch.tensor([0.5, 0.9, 1.0, 3.5, -2.0, 9.0]))
        assert level.tolist() == [0, 0, 1, 3, 0, 3]
        multipliers.update(level, torch.tensor([1.0, 2.0, 0.5, 0.0, 0.0, 0.0]))
        expected = [10 * np.exp(0.1 * excess) for excess in (0.5, 0.0, 0.0, -0.5)]
        np.testing.assert_allclose(multipliers.values, expected, rtol=1e-6)

    def test_a_margin_that_cannot_be_bought_costs_no_more_than_the_highest(self):
        multipliers = Multipliers(ConstraintConfig(levels=2, highest=5.0), (0.0, 2.0), start=4.0)
        for _ in range(20):
            multipliers.update(torch.tensor([1]), torch.tensor([5.0]))
        assert multipliers.values.tolist() == [4.0, 5.0]
        assert multipliers.to_frame()["multiplier"].tolist() == [4.0, 5.0]

    def test_weights_outside_their_limits_start_at_these(self):
        for start, first in ((0.1, 0.5), (200.0, 15.0)):
            assert Multipliers(ConstraintConfig(levels=2), (0.0, 2.0), start).values.tolist() == [first] * 2

    @pytest.mark.parametrize("wrong", [{"lowest": 0.0}, {"lowest": 200.0}, {"levels": 0}, {"rate": -0.1}])
    def test_settings_that_cannot_be(self, wrong):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            ConstraintConfig(**wrong)


@pytest.fixture(scope="module")
def trained():
    """By share of rows with a request in training: a generator trained shortly, and one that never met a request."""
    problem = Problem.of()
    found = {}
    for share in (0.0, SHORT.requests):
        generator = Generator(
            problem.space, 2, n_latent=SHORT.n_latent, encoder=SHORT.encoder, layers=SHORT.layers, rng=rng()
        )
        problem.train(generator, replace(SHORT, requests=share))
        found[bool(share)] = generator.eval().requires_grad_(False)
    return problem, found


def answers_of(problem, generator, space, margin):
    """What people would receive in one pass, and what was wanted."""
    target = 1 - problem.deployed.decide(problem.deployed.probabilities(problem.x))
    margins, typicality = torch.full((len(target),), margin), torch.zeros(len(target))
    request = Condition(problem.x, target, space.constraint_features(problem.x), margins, typicality)
    proposal = generator.propose(request, torch.zeros(len(target), generator.n_latent))
    return space.finalize(proposal.raw, problem.x, proposal.gates > 0), target


def convinced(problem, answers, target):
    """(N,) the models' mean log-odds of the target, less two deviations."""
    log_p = problem.models.log_probs(answers).gather(-1, target.expand(len(problem.models), -1)[..., None])[..., 0]
    return lower_log_odds(log_p, problem.models.weights, 2.0)


class TestWhatItLearns:
    def test_answers_are_mostly_valid(self, trained):
        problem, generators = trained
        answers, target = answers_of(problem, generators[True], problem.space, margin=2.0)
        assert float((convinced(problem, answers, target) > 0).float().mean()) > 0.9

    def test_more_margin_is_given_where_more_is_asked_for(self, trained):
        problem, generators = trained
        from_models, spent = [], []
        for margin in (-1.0, 1.0, 3.0):
            answers, target = answers_of(problem, generators[True], problem.space, margin)
            from_models.append(float(convinced(problem, answers, target).median()))
            spent.append(float(problem.space.distance(answers, problem.x).mean()))
        assert from_models[0] + 0.7 < from_models[1] < from_models[2] - 0.7
        assert spent[0] < spent[1] < spent[2], "and it has its price"

    def test_a_locked_column_is_made_up_for_by_the_other(self, trained):
        """The stronger column is the cheaper way: only who has met locks knows another."""
        problem, generators = trained
        space = problem.space.restrict(vary=["weak"])
        valid = {}
        for met, generator in generators.items():
            answers, target = answers_of(problem, generator, space, margin=1.0)
            assert torch.equal(answers[:, 0], problem.x[:, 0])
            valid[met] = float((convinced(problem, answers, target) > 0).float().mean())
        assert valid[True] > valid[False] + 0.1


@dataclass(frozen=True)
class Fixed:
    """In place of a generator: one proposal, whatever is asked."""

    raw: torch.Tensor
    gates: torch.Tensor

    def __call__(self, request, z):
        return Proposal(self.raw, self.gates)


class TestTermsOfTheObjective:
    def setup_method(self):
        self.problem = Problem.of(n=40)
        x = self.problem.x
        self.raw = (0.5 * x)[None].clone().requires_grad_()
        self.gates = torch.zeros(1, *x.shape).requires_grad_()

    def terms(self, drawn, **settings):
        """With a chance that opens (> 0) or shuts (< 0) all gates."""
        x, space = self.problem.x, self.problem.space
        posterior = DiagonalNormal(torch.zeros(len(x), 2), torch.zeros(len(x), 2))
        target, none = torch.ones(len(x), dtype=torch.long), torch.zeros(len(x))
        request = Condition(x, target, space.constraint_features(x), none, none)
        draws = Draws(torch.zeros(1, len(x), 2), torch.full((1, *x.shape), drawn))
        return objective(
            Fixed(self.raw, self.gates), space, request, posterior, self.problem.models, draws,
            expected_log_likelihood, temperature=0.5, **settings,
        )  # fmt: skip

    def test_a_change_that_is_likely_costs_even_where_it_was_not_drawn(self):
        """An answer equal to the factual has no slope: by it alone a gate would not be told what it costs if open."""
        proximity = self.terms(drawn=-20.0).proximity
        assert (proximity > 0).all()
        raw, gates = torch.autograd.grad(proximity.sum(), (self.raw, self.gates))
        assert (gates > 0).all(), "descent shuts the gate"
        assert (raw * (self.raw - self.problem.x) > 0).all(), "and brings the number back"

    def test_a_change_that_was_drawn_costs_more_than_one_that_was_not(self):
        drawn, spared = self.terms(drawn=20.0).proximity, self.terms(drawn=-20.0).proximity
        assert (drawn > spared).all()

    def test_terms_that_are_not_asked_for_are_nothing(self):
        terms = self.terms(drawn=20.0)
        assert terms.plausibility.tolist() == [0.0] * 40
        assert terms.sameness.tolist() == [0.0] * 40
        paid = self.terms(drawn=20.0, plausibility=lambda answers, target: torch.full((len(answers),), 2.5))
        assert paid.plausibility.tolist() == [2.5] * 40

    def test_every_answer_to_a_row_counts_alike(self):
        """With several latents for a row, each term is the mean over its answers."""
        x, found = self.problem.x, []
        for answers in ([x, 0.5 * x], [x], [0.5 * x]):
            self.raw = torch.stack(answers)
            found.append(self.terms(drawn=20.0, plausibility=lambda answers, target: answers.square().sum(dim=1)))
        for name in ("nll", "proximity", "changes", "plausibility"):
            both, first, second = (getattr(terms, name) for terms in found)
            torch.testing.assert_close(both, (first + second) / 2)
            assert not torch.allclose(first, second)


class TestBounds:
    """What lies outside its bounds is led back in, and nothing is led further out."""

    LOW, HIGH = torch.tensor(-1.0), torch.tensor(2.0)

    def slope(self, start, goal):
        value = torch.tensor(start, requires_grad=True)
        clamped = inward_clamp(value, self.LOW, self.HIGH)
        (found,) = torch.autograd.grad((clamped - goal).square(), value)
        return float(found)

    @pytest.mark.parametrize("start", [-0.9, 0.0, 1.9])
    @pytest.mark.parametrize("goal", [-3.0, 0.5, 4.0])
    def test_inside_gradients_pass_unchanged(self, start, goal):
        assert self.slope(start, goal) == pytest.approx(2 * (start - goal), abs=1e-5)

    @pytest.mark.parametrize(("start", "goal", "sign"), [(-5.0, 0.0, -1), (5.0, 0.0, 1)])
    def test_from_outside_descent_leads_in(self, start, goal, sign):
        assert np.sign(self.slope(start, goal)) == sign

    @pytest.mark.parametrize(("start", "goal"), [(-5.0, -9.0), (5.0, 9.0)])
    def test_from_outside_nothing_leads_further_out(self, start, goal):
        assert self.slope(start, goal) == 0.0

    @pytest.mark.parametrize("start", [-30.0, 0.0, 30.0])
    def test_descent_on_what_training_sees_reaches_its_goal_from_anywhere(self, start):
        problem = Problem.of(n=40)
        space, x = problem.space, problem.x[:1]
        raw = torch.full_like(x, start).requires_grad_()
        optimizer = torch.optim.Adam([raw], lr=0.5)
        for _ in range(300):
            optimizer.zero_grad()
            (space.relax(raw, x) - 0.3).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(space.relax(raw, x).detach(), torch.full_like(x, 0.3), atol=0.05, rtol=0.0)
