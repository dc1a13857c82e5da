"""From encoded answers to what people receive: decoded, checked once more, with a status and a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avcg.explainers.counterfactuals import Counterfactuals
from avcg.guarantees.certificate import Certificate, accepted_by
from avcg.guarantees.statement import Statement
from avcg.hypotheses.split import HypothesisSplit
from avcg.method.delivery import assess, check_delivery, needed_votes
from avcg.method.deployed import DeployedModel
from avcg.method.query import Query
from avcg.space.base import Delivery, Space
from avcg.space.encoding import Codes, Flags
from avcg.space.frames import take_rows


@dataclass(frozen=True, eq=False)
class Packaging:
    """Who says what an answer is worth.

    Attributes:
        deployed: The deployed model, whose decision counts.
        split: The hypotheses; those held out from training vote on each answer.
        classes: Labels of the classes.
        survival: Share of the held-out models that must accept an answer for it to be ``ok``.
        confidence: Confidence of the lower bounds in certificates.
    """

    deployed: DeployedModel
    split: HypothesisSplit
    classes: NDArray[Any]
    survival: float
    confidence: float

    def package(
        self,
        rows: Any,
        read: Any,
        query: Query,
        codes: Codes,
        before: NDArray[Any],
        space: Space,
        statements: Mapping[Any, Statement],
    ) -> Counterfactuals:
        """Answers as people receive them.

        Args:
            rows: B rows in user units.
            read: The same rows as the space reads them.
            query: The same rows encoded, with the classes that answers aim at.
            codes: (n, B, *event) encoded answers.
            before: (B, C) the deployed model's probabilities for the rows.
            space: The space that was restricted for this query.
            statements: What is promised, by target label.
        """
        positions = query.per_answer()[1]
        flat = np.swapaxes(codes, 0, 1).reshape(len(positions), *query.x.shape[1:])
        factuals, factuals_read = rows, read
        if query.n > 1:
            factuals, factuals_read = take_rows(rows, positions), take_rows(read, positions)
        decoded = space.take(torch.from_numpy(positions)).deliver(flat, factuals, factuals_read)
        check_delivery(decoded.broken)
        received = torch.from_numpy(decoded.received)
        after = self.deployed.bind_rows(decoded.answers).probabilities(received).cpu().numpy()
        certificate, robust = self._votes(query, read, decoded)
        assessment = assess(
            query, decoded.received, before, after, robust, self.deployed.rule, self.deployed.unreachable
        )
        aims = self.classes[np.unique(query.target)]
        return Counterfactuals(
            factuals=rows,
            answers=decoded.answers,
            n=query.n,
            target=self.classes[query.target],
            statuses=assessment.statuses,
            probability=assessment.probability,
            probability_before=assessment.probability_before,
            distance=assessment.distance,
            changed=decoded.changed,
            repeated=assessment.repeated,
            certificate=certificate,
            survival=self.survival,
            statements=tuple(statements[label] for label in aims if label in statements),
            groups=() if space.schema is None else space.schema.grouped,
        )

    def _votes(self, query: Query, read: Any, decoded: Delivery) -> tuple[Certificate | None, Flags]:
        """The certificate of the models held out from training, if there are any, and who has votes enough."""
        held_out, threshold = self.split.held_out, self.deployed.rule.threshold
        per_answer, positions = query.per_answer()
        if held_out is None:
            return None, np.ones(len(positions), bool)
        before, after = (
            accepted_by(held_out.bind_rows(bound), torch.from_numpy(x), torch.from_numpy(target), threshold)
            for bound, x, target in ((read, query.x, query.target), (decoded.read, decoded.received, per_answer.target))
        )
        certificate = Certificate.of(after, self.split.n_test, self.confidence, before[:, positions])
        return certificate, certificate.agreeing >= needed_votes(certificate.n, self.survival)
