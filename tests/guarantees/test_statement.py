"""The words of the promise: each sentence once, to the letter."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from avcg.guarantees.statement import Statement, agreement, chance, out_of, summary

MADE = Statement(
    target="granted",
    made=True,
    reason="",
    survival=0.95,
    reliability=0.9,
    guarantee="next_model",
    confidence=0.9,
    n_models=19,
    n_rows=812,
    needed_models=9,
    needed_rows=19,
    reachable=0.97,
    refused_rows=12,
    unanswered_rows=3,
)
NOT_MADE = replace(MADE, made=False, reason="margin", reachable=0.9012)
NONE = "No promise for the target 'granted' that a retrained model accepts 95 of 100 people: "


class TestPromises:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            (
                {},
                "At most a 1 in 10 chance that the next retrained model accepts fewer than 95 of 100 people who"
                " followed this advice; checked with 19 models and 812 people.",
            ),
            (
                {"guarantee": "most_models", "n_models": 22},
                "At least 90 of 100 retrained models accept at least 95 of 100 people who followed this advice, with"
                " 0.9 confidence; checked with 22 models and 812 people.",
            ),
            (
                {"guarantee": "expected", "n_models": 45},
                "At most a 1 in 20 chance that the next person gets advice that the next retrained model refuses;"
                " checked with 45 models and 812 people.",
            ),
            (
                {"survival": 0.999, "reliability": 0.5, "n_models": 1, "n_rows": 1},
                "At most a 1 in 2 chance that the next retrained model accepts fewer than 999 of 1000 people who"
                " followed this advice; checked with 1 model and 1 person.",
            ),
        ],
    )
    def test_what_is_promised(self, changes, sentence):
        assert str(replace(MADE, **changes)) == sentence

    def test_several_targets_alike_are_one_sentence_that_is_about_each(self):
        """Two directions may break at different models, so the chance for both together may be twice as large."""
        others = replace(MADE, target="denied", n_rows=88)
        assert summary([MADE, others]) == [
            "For each target: at most a 1 in 10 chance that the next retrained model accepts fewer than 95 of 100"
            " people who followed this advice; checked with 19 models and 900 people."
        ]
        assert summary([MADE]) == summary([MADE, MADE]) == [str(MADE)]

    def test_others_are_said_one_by_one_and_name_their_target(self):
        refused = replace(NOT_MADE, target="denied")
        target, sentence = repr(MADE.target), str(MADE)
        assert summary([MADE, refused]) == [f"For the target {target}: a{sentence[1:]}", str(refused)]
        assert summary([]) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            (
                {},
                "no margin is enough. At most 0.901 could be promised. The answers to 12 of 812 people are refused by"
                " some model, and 3 more have no answer at all. Let more features change, train longer, or lower the"
                " promise.",
            ),
            (
                {"unanswered_rows": 0},
                "no margin is enough. At most 0.901 could be promised. The answers to 12 of 812 people are refused by"
                " some model. Let more features change, train longer, or lower the promise.",
            ),
            (
                {"reason": "models", "n_models": 8},
                "a reliability of 0.9 needs 9 models held back for calibration, and there are 8. Give more"
                " hypotheses, or ask for less.",
            ),
            (
                {"reason": "models", "n_models": 0},
                "a reliability of 0.9 needs 9 models held back for calibration, and there are none. Give more"
                " hypotheses, or ask for less.",
            ),
            (
                {"reason": "models", "n_models": 1, "guarantee": "expected", "needed_models": 20},
                "a survival of 0.95 needs 20 models held back for calibration, and there is 1. Give more"
                " hypotheses, or ask for less.",
            ),
            (
                {"reason": "rows", "n_rows": 7},
                "it needs at least 19 people to calibrate by, and there are 7. Give more rows, or lower the survival.",
            ),
            (
                {"reason": "weights"},
                "the hypotheses have unequal weights, so a count of them proves nothing about the next model. Draw"
                " hypotheses by their weights first.",
            ),
            ({"reason": "query"}, "it was calibrated for single answers to queries without restrictions."),
        ],
    )
    def test_what_stands_in_the_way(self, changes, why):
        assert str(replace(NOT_MADE, **changes)) == NONE + why

    def test_of_any_target(self):
        assert str(replace(NOT_MADE, target=None)).startswith(
            "No promise that a retrained model accepts 95 of 100 people:"
        )

    def test_a_query_of_another_kind_has_no_promise(self):
        assert MADE.not_for_this_query() == replace(MADE, made=False, reason="query")
        assert NOT_MADE.not_for_this_query() is NOT_MADE


@pytest.mark.parametrize("statement", [MADE, NOT_MADE])
def test_there_and_back(statement):
    entry = statement.to_dict()
    assert entry["sentence"] == str(statement)
    assert Statement.from_dict(entry) == statement


@pytest.mark.parametrize(
    ("agreeing", "n", "words"),
    [
        (24, 24, "accepted by all 24 models held back from training"),
        (23, 24, "accepted by 23 of 24 models held back from training"),
        (0, 24, "accepted by none of 24 models held back from training"),
        (1, 1, "accepted by the one model held back from training"),
        (0, 1, "refused by the one model held back from training"),
    ],
)
def test_what_models_say_of_one_answer(agreeing, n, words):
    assert agreement(agreeing, n) == words


@pytest.mark.parametrize(
    ("share", "broken", "kept"),
    [
        (0.9, "1 in 10", "90 of 100"),
        (0.95, "1 in 20", "95 of 100"),
        (0.93, "7 in 100", "93 of 100"),
        (0.99, "1 in 100", "99 of 100"),
        (0.975, "1 in 40", "975 of 1000"),
    ],
)
def test_shares_in_words(share, broken, kept):
    assert chance(share) == broken
    assert out_of(share) == kept


def test_the_page_for_everybody_quotes_sentences_that_there_are():
    page = Path(__file__).parents[2] / "docs" / "explanation" / "promise-in-plain-words.md"
    quoted = {
        re.sub(r"\n> ?", " ", block[2:]) for block in re.findall(r"^(?:> .*\n?)+", page.read_text(), re.MULTILINE)
    }
    assert {each.strip() for each in quoted} == {
        str(MADE),
        str(replace(MADE, guarantee="most_models", n_models=22)),
        str(replace(MADE, guarantee="expected", n_models=45)),
        str(replace(NOT_MADE, reason="models", n_models=8)),
        agreement(24, 24),
    }
