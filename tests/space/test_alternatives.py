"""Alternatives to an answer: every one is feasible and changes one unit, none is forgotten; and their combinations."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import codes, tables

from avcg import ImageSpace, Schema, TabularSpace
from avcg.space.alternatives import Alternatives, owners
from avcg.space.nearest import at_special, missing_numbers
from avcg.space.project import allowed_entries

EXAMPLES = settings(max_examples=40)


@st.composite
def answered(draw, always_restricted=False):
    """A space, exact and encoded factuals, feasible answers to them, and a step."""
    table, rng = draw(tables()), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    space = TabularSpace.fit(table.schema, table.frame)
    codespace = space.codes
    factuals = space.read(table.frame)
    x = space.encode(factuals).numpy()
    if always_restricted or draw(st.booleans()):
        free = rng.random((len(x), len(table.schema))) < 0.7
        caps = rng.integers(0, 4, len(x)) if draw(st.booleans()) else None
        codespace = codespace.restrict(free, None, caps)
    raw = np.where(rng.random(x.shape) < 0.5, x, codes(draw, x.shape))
    answers = codespace.project(raw[None], x)[0]
    return codespace, factuals, x, answers, draw(st.sampled_from([0.125, 0.5, 1.0])), rng


def differing(space, one, other):
    """(N, features) which units of change differ between codes."""
    owner = owners(space.encoding, space.feasible)
    return np.stack([((one != other) & (owner == unit)).any(axis=1) for unit in range(len(space.encoding.schema))], 1)


def leaders(space):
    return [position for position, leader in enumerate(space.feasible.unit) if position == leader]


def units_of(encoding, position):
    span = encoding.slices[position]
    return np.arange(span.start, span.stop)


def wanted_one_by_one(space, x_cf, x, step, units=None):
    """Codes that each answer is to be offered, before they are made feasible: row, unit and codes, in plain loops."""
    encoding, owner = space.encoding, owners(space.encoding, space.feasible)
    numbers = dict(zip(encoding.numeric_columns.tolist(), range(len(encoding.numeric_columns)), strict=True))
    for row in range(len(x)):
        for unit in leaders(space):
            own = owner == unit
            if (x_cf[row, own] != x[row, own]).any():
                yield row, unit, np.where(own, x[row], x_cf[row])
                if unit in numbers:
                    half = x_cf[row] + np.float32(0.5) * (x[row] - x_cf[row])
                    yield row, unit, np.where(own, half, x_cf[row])
            if units is not None and not units[row, unit]:
                continue
            span = units_of(encoding, unit)
            if unit in numbers:
                at, flag = encoding.number_at[numbers[unit]], encoding.missing_at[numbers[unit]]
                for sign in (1, -1):
                    moved = x_cf[row].copy()
                    if flag >= 0 and moved[flag] > 0.5:
                        moved[at], moved[flag] = 0.0, 0.0
                    elif at_special(encoding, x_cf[[row]])[0, numbers[unit]]:
                        moved[at] = 0.0
                    moved[at] += np.float32(sign * step)
                    yield row, unit, moved
            else:
                for at in span:
                    moved = x_cf[row].copy()
                    moved[span] = 0.0
                    moved[at] = 1.0
                    yield row, unit, moved


def expected(space, x_cf, x, step, units=None):
    """The set of (row, unit, codes) that the alternatives are to be, each made feasible by itself."""
    found = set()
    for row, unit, wanted in wanted_one_by_one(space, x_cf, x, step, units):
        part = space.take(np.array([row]))
        feasible = part.project(wanted[None, None], x[[row]])[0, 0]
        entered = allowed_entries(space.encoding, part.feasible, x[[row]])[0]
        wants = wanted[space.encoding.slot_at] > 0.5
        if (wants & ~entered & (x_cf[row, space.encoding.slot_at] < 0.5)).any():
            continue  # a category that may not be entered is not offered, and so nothing else in its place
        if (feasible != x_cf[row]).any():
            found.add((row, unit, (feasible + np.float32(0)).tobytes()))
    return found


def as_set(moves):
    return {
        (int(row), int(unit), (point + np.float32(0)).tobytes())
        for row, unit, point in zip(moves.rows, moves.units, moves.codes, strict=True)
    }


class TestAlternatives:
    @EXAMPLES
    @given(answered())
    def test_are_those_that_plain_loops_find(self, drawn):
        space, _, x, answers, step, rng = drawn
        assert as_set(space.alternatives(answers, x, step)) == expected(space, answers, x, step)
        units = rng.random((len(x), len(space.encoding.schema))) < 0.5
        assert as_set(space.alternatives(answers, x, step, units)) == expected(space, answers, x, step, units)

    @EXAMPLES
    @given(answered())
    def test_are_feasible_by_codes_and_by_exact_values(self, drawn):
        space, factuals, x, answers, step, _ = drawn
        moves = space.alternatives(answers, x, step)
        each = space.take(moves.rows)
        np.testing.assert_array_equal(each.project(moves.codes[None], x[moves.rows])[0], moves.codes)
        own = factuals.take(moves.rows)
        assert not each.violations(each.restore(moves.codes, own), own).any()

    @EXAMPLES
    @given(answered())
    def test_each_changes_its_own_unit_and_may_take_others_back(self, drawn):
        space, _, x, answers, step, _ = drawn
        moves = space.alternatives(answers, x, step)
        assert moves.n_units == len(space.encoding.schema)
        assert set(moves.units.tolist()) <= set(leaders(space))
        differs = differing(space, moves.codes, answers[moves.rows])
        assert differs.any(axis=1).all(), "none is the answer itself"
        others = differs.copy()
        others[np.arange(len(moves)), moves.units] = False
        if space.feasible.max_changes is None:
            assert not others.any()
        back = ~differing(space, moves.codes, x[moves.rows])
        assert (back | ~others).all(), "what else differs was taken back, because of the limit on changes"

    @EXAMPLES
    @given(answered())
    def test_all_changes_taken_back_are_among_them(self, drawn):
        space, _, x, answers, step, _ = drawn
        owner = owners(space.encoding, space.feasible)
        nothing = np.zeros((len(x), len(space.encoding.schema)), bool)
        for units in (None, nothing):
            offered = as_set(space.alternatives(answers, x, step, units))
            for row, unit in zip(*np.nonzero(differing(space, answers, x)), strict=True):
                undone = np.where(owner == unit, x[row], answers[row]) + np.float32(0)
                assert (int(row), int(unit), undone.tobytes()) in offered

    @EXAMPLES
    @given(answered())
    def test_every_other_category_that_may_be_entered_is_there(self, drawn):
        space, _, x, answers, step, _ = drawn
        encoding, moves = space.encoding, space.alternatives(answers, x, step)
        entered = allowed_entries(encoding, space.feasible, x)
        changed = differing(space, answers, x)
        caps = np.full(len(x), 99) if space.feasible.max_changes is None else space.feasible.max_changes
        for position, block in zip(encoding.categorical_columns, encoding.slots, strict=True):
            if space.feasible.unit[position] != position:
                continue
            slots = encoding.slot_at[block]
            for row in range(len(x)):
                has_room = changed[row, position] or changed[row].sum() < np.broadcast_to(caps, len(x))[row]
                if not has_room:
                    continue
                there = moves.codes[(moves.rows == row) & (moves.units == position)][:, slots] > 0.5
                for slot in np.flatnonzero(entered[row, block] & (answers[row, slots] < 0.5)):
                    assert there[:, slot].any()

    @EXAMPLES
    @given(answered())
    def test_units_that_may_not_be_changed_further_are_only_taken_back(self, drawn):
        space, _, x, answers, step, rng = drawn
        units = rng.random((len(x), len(space.encoding.schema))) < 0.5
        every, some = space.alternatives(answers, x, step), space.alternatives(answers, x, step, units)
        assert as_set(some) <= as_set(every)
        kept = {entry for entry in as_set(every) if units[entry[:2]]}
        assert kept <= as_set(some), "units that may be changed have all their alternatives"
        for row, unit, point in as_set(some) - kept:
            owner = owners(space.encoding, space.feasible) == unit
            change, left = answers[row] - x[row], np.frombuffer(point, np.float32) - x[row]
            at = owner.copy()
            at[space.encoding.slot_at] = False
            assert (np.abs(left[at]) <= np.abs(change[at]) * (1 + 1e-5) + 1e-5).all() or len(space.feasible.links)

    @EXAMPLES
    @given(answered(always_restricted=True))
    def test_each_row_has_those_of_its_own_constraints(self, drawn):
        space, _, x, answers, step, rng = drawn
        order = rng.permutation(len(x))
        whole = as_set(space.alternatives(answers, x, step))
        turned = as_set(space.take(order).alternatives(answers[order], x[order], step))
        assert {(int(order[row]), unit, point) for row, unit, point in turned} == whole
        for row in range(len(x)):
            one = np.array([row])
            alone = as_set(space.take(one).alternatives(answers[one], x[one], step))
            assert {(row, unit, point) for _, unit, point in alone} == {entry for entry in whole if entry[0] == row}

    @EXAMPLES
    @given(answered())
    def test_around_points_are_those_toward_them(self, drawn):
        """Of all alternatives: changes taken back, numbers toward the mean, categories that a point has."""
        space, _, x, answers, step, rng = drawn
        encoding, m = space.encoding, 3
        around = rng.normal(size=(len(x), m, x.shape[1])).astype(np.float32)
        slots = encoding.slot_at
        around[..., slots] = rng.random((len(x), m, len(slots))) < 0.3
        nothing = np.zeros((len(x), len(encoding.schema)), bool)
        back = expected(space, answers, x, step, nothing)
        wanted = set(back)
        for row, unit, raw in wanted_one_by_one(space, answers, x, step):
            point = space.take(np.array([row])).project(raw[None, None], x[[row]])[0, 0] + np.float32(0)
            entered = (raw[slots] > 0.5) & (answers[row, slots] < 0.5)
            barred = ~allowed_entries(encoding, space.take(np.array([row])).feasible, x[[row]])[0]
            if (entered & (barred | ~(around[row][:, slots] > 0.5).any(axis=0))).any():
                continue
            if unit in encoding.numeric_columns.tolist():
                number = encoding.numeric_columns.tolist().index(unit)
                at = encoding.number_at[number]
                start = 0.0 if at_special(encoding, answers[[row]])[0, number] else answers[row, at]
                toward = around[row, :, at].astype(np.float64).mean() - start
                flat = answers[row, at] == x[row, at]
                if flat and (raw[at] - start) * toward <= 0:
                    continue
            if (point != answers[row]).any():
                wanted.add((row, unit, point.tobytes()))
        assert as_set(space.alternatives(answers, x, step, None, around)) == wanted | back

    def test_frozen_columns_never_move(self):
        space, frame = _space(lambda schema: schema.freeze("a", "c"))
        x = space.encode(frame).numpy()
        moves = space.codes.alternatives(x, x, 0.5)
        assert set(moves.units.tolist()) == {1, 3}
        narrower = space.codes.restrict(np.arange(6)[:, None] % 2 == np.arange(4) % 2, None, None)
        moves = narrower.alternatives(x, x, 0.5)
        assert {(int(row) % 2, int(unit)) for row, unit in zip(moves.rows, moves.units, strict=True)} == {
            (1, 1),
            (1, 3),
        }

    def test_numbers_move_by_the_step_up_and_down_where_that_is_allowed(self):
        space, frame = _space(lambda schema: schema.only_up("a"))
        encoding = space.codes.encoding
        x = space.encode(frame).numpy()
        moves = space.codes.alternatives(x, x, 0.5)
        a, b = (encoding.number_at[j] for j in range(2))
        up = moves.codes[moves.units == 0, a] - x[moves.rows[moves.units == 0], a]
        room = 0.5 / encoding.scale[0]  # from 5.5 to 6, the largest of all
        np.testing.assert_allclose(up, [0.5, 0.5, 0.5, 0.5, room], atol=1e-6)
        of_b, ends = moves.units == 1, (x[:, b].min(), x[:, b].max())
        for row in range(6):
            found = np.sort(moves.codes[of_b & (moves.rows == row), b])
            wanted = np.clip(np.array([x[row, b] - 0.5, x[row, b] + 0.5]), *ends)
            np.testing.assert_allclose(found, wanted[np.abs(wanted - x[row, b]) > 1e-6], atol=1e-6)

    def test_a_change_is_taken_back_to_the_last_digit(self):
        frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=200) * 3e5, "b": np.linspace(-1, 1, 200)})
        space = TabularSpace.fit(Schema.infer(frame), frame)
        x = space.encode(frame).numpy()
        answers = space.codes.project(x[None, ::-1], x)[0]
        moves = space.codes.alternatives(answers, x, 0.5, np.zeros((200, 2), bool))
        for unit in range(2):
            undone = (moves.units == unit) & (moves.codes[:, unit] == x[moves.rows, unit])
            assert sorted(moves.rows[undone]) == np.flatnonzero(answers[:, unit] != x[:, unit]).tolist()

    def test_a_missing_number_is_filled_on_both_sides_of_the_centre(self):
        space, frame = _space(lambda schema: schema)
        space, frame = _space(lambda schema: schema.allow_missing("b"), frame.assign(b=frame["b"].mask(frame["b"] > 3)))
        encoding, x = space.codes.encoding, space.encode(frame).numpy()
        gap = missing_numbers(encoding, x)[:, 1]
        assert gap.any()
        moves = space.codes.alternatives(x, x, 0.25)
        filled = moves.codes[(moves.units == 1) & gap[moves.rows]]
        assert len(filled) == 2 * gap.sum()
        assert (filled[:, encoding.missing_at[1]] == 0).all()
        np.testing.assert_allclose(np.sort(filled[:, encoding.number_at[1]]), np.repeat([-0.25, 0.25], gap.sum()))
        assert not missing_numbers(encoding, moves.codes[~gap[moves.rows]])[:, 1].any(), "none is ever created"

    def test_half_of_a_change_of_a_number_is_taken_back(self):
        space, frame = _space(lambda schema: schema)
        x = space.encode(frame).numpy()
        far = x.copy()
        far[:, 0] = np.float32(0.5)
        answers = space.codes.project(far[None], x)[0]
        nothing = np.zeros((6, 4), bool)
        moves = space.codes.alternatives(answers, x, 0.5, nothing)
        moved = np.flatnonzero((answers != x).any(axis=1))
        for row in moved:
            found = np.sort(moves.codes[moves.rows == row, 0])
            np.testing.assert_allclose(found, np.sort([x[row, 0], (x[row, 0] + answers[row, 0]) / 2]), atol=1e-6)


def _space(change, frame=None):
    if frame is None:
        frame = pd.DataFrame(
            {
                "a": [0.25, 1.5, 2.75, 4.125, 5.5, 6.0],
                "b": [3.5, -1.25, 0.5, 2.25, 4.75, 1.0],
                "c": list("uvwuvw"),
                "d": list("pqpqpq"),
            }
        )
    numbers = {name: "continuous" for name in frame if frame[name].dtype.kind == "f"}  # any number, without a step
    return TabularSpace.fit(change(Schema.infer(frame, kinds=numbers)), frame), frame


@st.composite
def combinations(draw):
    """Answers with their alternatives, and which of each unit is chosen, if any."""
    space, factuals, x, answers, step, rng = draw(answered())
    moves = space.alternatives(answers, x, step)
    assume(len(moves))
    chosen = np.full((4, len(x), moves.n_units), -1, np.intp)
    for row, unit in {(int(row), int(unit)) for row, unit in zip(moves.rows, moves.units, strict=True)}:
        of_unit = np.flatnonzero((moves.rows == row) & (moves.units == unit))
        chosen[:, row, unit] = np.where(rng.random(4) < 0.6, rng.choice(of_unit, 4), -1)
    return space, factuals, x, answers, moves, chosen


class TestCombinations:
    @EXAMPLES
    @given(combinations())
    def test_have_exactly_the_chosen_units_from_their_alternatives(self, drawn):
        space, _, x, answers, moves, chosen = drawn
        combined = space.combine(answers, x, moves, chosen)
        owner = owners(space.encoding, space.feasible)
        assert combined.shape == (4, *x.shape)
        for k, row in np.ndindex(4, len(x)):
            wanted = answers[row].copy()
            for unit in np.flatnonzero(chosen[k, row] >= 0):
                wanted[owner == unit] = moves.codes[chosen[k, row, unit], owner == unit]
            if space.feasible.max_changes is None:
                np.testing.assert_array_equal(combined[k, row], wanted)
            part = space.take(np.array([row]))
            alone = part.project(wanted[None, None], x[[row]])[0, 0]
            np.testing.assert_array_equal(combined[k, row], alone)

    @EXAMPLES
    @given(combinations())
    def test_are_feasible_with_their_limit_on_changes_and_their_links(self, drawn):
        space, factuals, x, answers, moves, chosen = drawn
        for combined in space.combine(answers, x, moves, chosen):
            np.testing.assert_array_equal(space.project(combined[None], x)[0], combined)
            assert not space.violations(space.restore(combined, factuals), factuals).any()
            if space.feasible.max_changes is not None:
                assert (differing(space, combined, x).sum(axis=1) <= space.feasible.max_changes).all()

    def test_nothing_chosen_is_the_answer(self):
        space, frame = _space(lambda schema: schema)
        x = space.encode(frame).numpy()
        moves = space.codes.alternatives(x, x, 0.5)
        chosen = np.full((2, 6, 4), -1, np.intp)
        np.testing.assert_array_equal(space.codes.combine(x, x, moves, chosen), np.stack([x, x]))


class TestNearer:
    @EXAMPLES
    @given(answered())
    def test_numbers_go_a_share_of_their_way_back_and_nothing_else_moves(self, drawn):
        space, factuals, x, answers, _, _ = drawn
        shares, encoding = (0.0, 0.25, 1.0), space.encoding
        result = space.nearer(answers, x, shares)
        assert result.shape == (3, *x.shape)
        np.testing.assert_array_equal(result[0], answers)
        # A code is at no distance from a number, of which a share could be taken back.
        present = ~(missing_numbers(encoding, x) | missing_numbers(encoding, answers) | at_special(encoding, x))
        followers = np.isin(encoding.numeric_columns, leaders(space), invert=True)
        for share, codes_of_share in zip(shares, result, strict=True):
            np.testing.assert_array_equal(space.project(codes_of_share[None], x)[0], codes_of_share)
            assert not space.violations(space.restore(codes_of_share, factuals), factuals).any()
            number, own, now = (part[:, encoding.number_at] for part in (codes_of_share, x, answers))
            free = present & ~followers
            rounding = np.where(encoding.steps > 0, encoding.steps / encoding.scale, 0.0) / 2
            wanted = now + share * (own - now)
            assert (np.abs(number - wanted) <= rounding + 1e-5 * (1 + np.abs(now) + np.abs(own)))[free].all()
            np.testing.assert_array_equal(number[~present], now[~present])
            if not space.feasible.links:
                slots = encoding.slot_at
                np.testing.assert_array_equal(codes_of_share[:, slots], answers[:, slots])

    @EXAMPLES
    @given(answered(), st.lists(st.integers(-30, 30), min_size=1, max_size=6, unique=True))
    def test_cuts_are_passed_by_the_same_numbers_and_none_goes_farther(self, drawn, places):
        space, factuals, x, answers, _, _ = drawn
        encoding = space.encoding
        cuts = {
            feature.name: np.sort(encoding.center[j] + np.array(places) / 10 * encoding.scale[j])
            for j, feature in enumerate(encoding.numeric)
        }
        result = space.at_cuts(answers, x, cuts)
        np.testing.assert_array_equal(space.project(result[None], x)[0], result)
        assert not space.violations(space.restore(result, factuals), factuals).any()
        # A code is at no distance from a number, of which a share could be taken back.
        present = ~(missing_numbers(encoding, x) | missing_numbers(encoding, answers) | at_special(encoding, x))
        followers = np.isin(encoding.numeric_columns, leaders(space), invert=True)
        number, own, now = (encoding.unscaled(part[:, encoding.number_at]) for part in (result, x, answers))
        free = present & ~followers
        slack = 2e-5 * encoding.scale * (1 + np.abs(now - encoding.center) / encoding.scale)
        assert (np.abs(number - own) <= np.abs(now - own) + slack)[free].all()
        for j, feature in enumerate(encoding.numeric):
            near = np.abs(now[:, j, None] - cuts[feature.name]).min(axis=1) < 1e-4 * encoding.scale[j]
            sides = [np.searchsorted(cuts[feature.name], part[:, j], "right") for part in (number, now)]
            alike = free[:, j] & ~near & (encoding.steps[j] == 0)
            np.testing.assert_array_equal(sides[0][alike], sides[1][alike])

    def test_a_missing_number_that_is_filled_has_no_way_back(self):
        frame = pd.DataFrame({"a": [1.0, 2.0, np.nan, 4.0, 9.0], "b": [0.5, 1.5, 2.5, 3.5, 4.5]})
        space = TabularSpace.fit(Schema.infer(frame, kinds={"a": "continuous"}).allow_missing("a"), frame)
        x = space.encode(frame).numpy()
        answers = space.encode(frame.assign(a=[1.0, 2.0, 9.0, 8.0, 9.0], b=3.0)).numpy()
        cuts = {"a": np.array([3.0, 5.0]), "b": np.array([2.75])}
        gap, a = 2, space.codes.encoding.number_at[0]
        for found in (*space.codes.nearer(answers, x, (0.5, 1.0)), space.codes.at_cuts(answers, x, cuts)):
            assert found[gap, a] == answers[gap, a]
            assert found[3, a] < answers[3, a]


class TestImages:
    @pytest.fixture
    def drawn(self):
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (3, 5, 5), dtype=np.uint8)
        space = ImageSpace.fit(images, may_change=np.tri(5, dtype=bool))
        x = space.encode(images).numpy()
        answers = space.codes.project((x + rng.normal(size=x.shape)).astype(np.float32)[None], x)[0]
        return space.codes, x, answers

    def test_parts_of_the_change_are_taken_back(self, drawn):
        space, x, answers = drawn
        moves = space.alternatives(answers, x, 0.5)
        assert moves.n_units == 1
        assert (moves.units == 0).all()
        assert np.bincount(moves.rows).tolist() == [3, 3, 3]
        np.testing.assert_array_equal(space.project(moves.codes[None], x[moves.rows])[0], moves.codes)
        frozen = ~np.tri(5, dtype=bool)
        assert (moves.codes[..., frozen] == x[moves.rows][..., frozen]).all()
        shares = np.array([0.5, 0.25, 0.1])[:, None]
        left = np.abs(moves.codes - x[moves.rows]).reshape(3, 3, -1).sum(axis=-1)
        whole = np.abs(answers - x).reshape(3, -1).sum(axis=-1)
        np.testing.assert_allclose(left / whole, np.broadcast_to(1 - shares, (3, 3)), atol=0.02)

    def test_each_is_replaced_by_an_alternative_or_kept(self, drawn):
        space, x, answers = drawn
        moves = space.alternatives(answers, x, 0.5)
        chosen = np.array([[[-1], [1], [5]], [[0], [-1], [-1]]])
        first, second = space.combine(answers, x, moves, chosen)
        for found, wanted in zip(first, (answers[0], moves.codes[1], moves.codes[5]), strict=True):
            np.testing.assert_array_equal(found, wanted)
        for found, wanted in zip(second, (moves.codes[0], answers[1], answers[2]), strict=True):
            np.testing.assert_array_equal(found, wanted)

    def test_no_feasible_set_is_small_and_no_bound_is_known(self, drawn):
        space, x, _ = drawn
        assert list(space.small_sets(x, 10**6, 10)) == []
        assert np.isinf(space.largest_scores(x, np.ones(25))).all()


def test_no_alternatives_are_none():
    empty = Alternatives(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros((0, 3), np.float32), 2)
    assert len(empty) == 0
