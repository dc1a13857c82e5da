"""The names that protocols may use, and what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from avcg.baselines.cfvae import CFVAE, OwnLabelCFVAE
from avcg.baselines.gradient import QUCE, Batten, EntropicSearch, GradientSearch, Schut, Wachter
from avcg.baselines.nearest import ClassMean, NearestUnlike, RobustNeighbour
from avcg.baselines.robust_search import RobustSearch
from avcg.bench.protocol import Method
from avcg.errors import SettingError, did_you_mean
from avcg.explainers.avcg import AVCG
from avcg.explainers.base import Explainer
from avcg.hypotheses.base import HypothesisDistribution
from avcg.method.recipe import Recipe

Make = Callable[[Method, HypothesisDistribution, int | None, str, int], Explainer]


def _generator(base: Callable[[], Recipe]) -> Make:
    def make(
        method: Method, hypotheses: HypothesisDistribution, n_test: int | None, device: str, seed: int
    ) -> Explainer:
        _refuse(method, "descent")
        recipe = changed_recipe(base(), method)
        return AVCG(
            hypotheses, survival=method.survival, recipe=recipe, n_test=n_test, device=device, random_state=seed
        )

    return make


def _search(kind: type[GradientSearch[Any]]) -> Make:
    def make(
        method: Method, hypotheses: HypothesisDistribution, n_test: int | None, device: str, seed: int
    ) -> Explainer:
        _refuse(method, "recipe")
        descent = _changed(kind.usual, method.descent, f"descent of {method.name!r}")
        return kind(hypotheses, descent=descent, n_test=n_test, device=device, random_state=seed)

    return make


def _plain(kind: type[Explainer]) -> Make:
    def make(
        method: Method, hypotheses: HypothesisDistribution, n_test: int | None, device: str, seed: int
    ) -> Explainer:
        _refuse(method, "recipe")
        _refuse(method, "descent")
        return kind(hypotheses, n_test=n_test, device=device, random_state=seed)

    return make


KINDS: Mapping[str, Make] = {
    "avcg": _generator(Recipe),
    "avcg_paper": _generator(Recipe.paper),
    "mahajan": _generator(Recipe.mahajan),
    "wachter": _search(Wachter),
    "batten": _search(Batten),
    "quce": _search(QUCE),
    "schut": _search(Schut),
    "entropic": _search(EntropicSearch),
    "robust_search": _search(RobustSearch),
    "cfvae": _plain(CFVAE),
    "cfvae_own_label": _plain(OwnLabelCFVAE),
    "class_mean": _plain(ClassMean),
    "nearest_unlike": _plain(NearestUnlike),
    "robust_neighbour": _plain(RobustNeighbour),
}


def _refuse(method: Method, key: str) -> None:
    if getattr(method, key):
        raise SettingError(f"The method {method.name!r} of kind {method.kind!r} takes no {key!r}. Remove it.")


def changed_recipe(recipe: Recipe, method: Method) -> Recipe:
    """A recipe with the changes that a method of a protocol asks for."""
    changes = dict(method.recipe)
    where = f"recipe of {method.name!r}"
    if "weights" in changes:
        changes["weights"] = _changed(recipe.weights, changes["weights"], f"weights in the {where}")
    result: Recipe = _changed(recipe, changes, where)
    return result


def _changed(record: Any, changes: Mapping[str, Any], where: str) -> Any:
    known = [one.name for one in fields(record)]
    for key in changes:
        if key not in known:
            raise SettingError(f"The {where} has an unknown key {key!r}. {did_you_mean(key, known)}")
    return replace(
        record, **{key: tuple(value) if isinstance(value, list) else value for key, value in changes.items()}
    )
