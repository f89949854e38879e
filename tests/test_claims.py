"""Verdicts on made-up runs whose answers are known, and properties every verdict has."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rvi_nb.report.claims import Cell, Claim, Claims, cells_table, from_json, interval, load_claims, save_claims, table, to_json
from rvi_nb.report.kinds import best_higher, decreasing, faster, fewer, higher, lower, not_worse, sooner, time_at_levels, times_fewer
from rvi_nb.report.names import plain
from rvi_nb.report.pairs import rank
from rvi_nb.report.speed import common_levels, epochs_to_reach, final_loss, first_epochs, speed

MIRROR = {"holds": "contradicted", "contradicted": "holds", "inconclusive": "inconclusive"}
finite = st.floats(-1e3, 1e3, allow_nan=False, width=32)
loss = st.one_of(finite, st.just(float("nan")))


def frame_of(ours, rival, **columns):
    rows = [dict(model=m, seed=s, loss=v, **columns) for m, side in (("rvi", ours), ("vad", rival)) for s, v in enumerate(side)]
    return pd.DataFrame(rows)


@st.composite
def tables(draw):
    "Runs of two models in up to three cells, some of them diverged, some without a partner."
    rows = [
        dict(model=m, seed=s, rate=r, loss=draw(loss))
        for r in (0.1, 0.5, 0.9)[: draw(st.integers(1, 3))]
        for s in range(draw(st.integers(0, 5)))
        for m in ("rvi", "vad")
    ]
    rows += [dict(model="rvi", seed=99, rate=0.1, loss=0.0)]
    return pd.DataFrame(rows)


# --- the interval -----------------------------------------------------------------------------------------------------


@given(st.lists(finite, min_size=2, max_size=12))
def test_interval_is_students(d):
    mean, low, high = interval(d)
    spread = stats.sem(np.array(d, dtype=float)) * stats.t.ppf(0.975, len(d) - 1)
    assert low <= mean <= high
    np.testing.assert_allclose([low, high], [np.mean(d, dtype=float) - spread, np.mean(d, dtype=float) + spread], rtol=1e-6, atol=1e-6)


@given(st.lists(st.one_of(finite, st.sampled_from([math.inf, -math.inf])), max_size=8), st.randoms(use_true_random=False))
def test_interval_ignores_order_and_mirrors(d, random):
    shuffled = list(d)
    random.shuffle(shuffled)
    assert interval(shuffled) == interval(d)
    mean, low, high = interval(d)
    flip = lambda v: None if v is None else -v
    assert interval([-v for v in d]) == (flip(mean), flip(high), flip(low))


@given(finite, st.integers(2, 9))
def test_no_spread_no_width(value, n):
    assert interval([value] * n) == (value, value, value)


# --- known answers ----------------------------------------------------------------------------------------------------


def test_clear_effect_and_its_reverse():
    frame = frame_of([1, 1.1, 1.2], [2, 2.1, 2.3])
    assert lower(frame, "loss", "rvi", "vad").verdict == "reproduced"
    assert lower(frame, "loss", "vad", "rvi").verdict == "contradicted"
    assert higher(frame, "loss", "vad", "rvi").verdict == "reproduced"
    cell = lower(frame, "loss", "rvi", "vad").cells[0]
    assert (cell.n, cell.where) == (3, ()) and cell.ours_mean == pytest.approx(1.1)


def test_tie_and_noise_are_inconclusive():
    assert lower(frame_of([1, 2, 3], [1, 2, 3]), "loss", "rvi", "vad").verdict == "inconclusive"
    assert lower(frame_of([1, 2, 3], [2, 1, 3]), "loss", "rvi", "vad").verdict == "inconclusive"


@pytest.mark.parametrize("seeds", [0, 1])
def test_too_few_seeds(seeds):
    claim = lower(frame_of([1, 1][:seeds] or [1], [2, 2][:seeds]), "loss", "rvi", "vad")
    assert claim.verdict == "inconclusive" and claim.cells[0].low is None and claim.cells[0].n == seeds
    assert "two are needed" in cells_table(claim).notes[0]


def test_pairs_are_matched_by_seed():
    frame = frame_of([1, 5, 9], [2, 6, 10])  # a difference of one at each seed, lost in the spread between seeds
    assert lower(frame, "loss", "rvi", "vad").cells[0].mean == -1
    lone = frame[~((frame.model == "vad") & (frame.seed == 2))]
    assert (lower(lone, "loss", "rvi", "vad").cells[0].n, lower(lone, "loss", "rvi", "vad").cells[0].unpaired) == (2, 1)


def test_mixed_cells_say_so():
    good, bad, open_ = ((1, 1.1, 1.2), (2, 2.1, 2.3)), ((2, 2.1, 2.3), (1, 1.1, 1.2)), ((1, 2, 3), (2, 1, 3))
    frame = pd.concat([frame_of(*v, dataset=k) for k, v in dict(a=good, b=bad, c=open_).items()])
    claim = lower(frame, "loss", "rvi", "vad", ["dataset"], missing=["CMU-MOSI"])
    assert claim.counts == dict(holds=1, contradicted=1, inconclusive=1, n=3) and claim.verdict == "partly"
    assert "CONTRADICTED in 1 of 3 (b" in claim.summary and "counts only cells that ran" in claim.summary
    assert "**PARTLY**" in Claims([claim])._repr_markdown_() and "CMU-MOSI" in Claims([claim])._repr_markdown_()
    assert lower(frame[frame.dataset != "a"], "loss", "rvi", "vad", ["dataset"]).verdict == "contradicted"


NAN = float("nan")


@pytest.mark.parametrize(
    "ours, rival, outcome, diverged",
    [
        ([1, 1, 1], [2, NAN, 2], "holds", (0, 1, 0)),  # only the rival diverged
        ([1, NAN, 1], [2, 2, 2], "inconclusive", (1, 0, 0)),  # ours diverged once, won otherwise
        ([3, NAN, 3], [2, 2, 2], "contradicted", (1, 0, 0)),  # ours diverged once, lost otherwise
        ([NAN] * 3, [2, 2, 2], "contradicted", (3, 0, 0)),
        ([1, 1, 1], [NAN] * 3, "holds", (0, 3, 0)),
        ([NAN, 1, 1], [NAN, 2, 2], "holds", (0, 0, 1)),  # both: no information
        ([NAN] * 3, [NAN] * 3, "inconclusive", (0, 0, 3)),
        ([NAN, 1, 1], [2, NAN, 2], "inconclusive", (1, 1, 0)),
    ],
)
def test_divergence(ours, rival, outcome, diverged):
    cell = lower(frame_of(ours, rival), "loss", "rvi", "vad").cells[0]
    assert (cell.outcome, cell.diverged) == (outcome, diverged)
    negated = frame_of([-v for v in ours], [-v for v in rival])
    assert higher(negated, "loss", "rvi", "vad").cells[0].outcome == outcome


def test_not_worse_margin():
    rival = [1.0, 1.1, 0.9, 1.0]
    at = lambda add: not_worse(frame_of([v + add for v in rival], rival), "loss", "rvi", "vad").cells[0].outcome
    assert [at(-0.5), at(0), at(0.019), at(0.021), at(0.5)] == ["holds"] * 3 + ["contradicted"] * 2
    noisy = frame_of([1.0, 1.2, 0.8, 1.1], rival)
    assert not_worse(noisy, "loss", "rvi", "vad").verdict == "inconclusive"
    assert not_worse(frame_of([0, 0], [0, 0]), "loss", "rvi", "vad").verdict == "reproduced"


def test_selectors_rivals_and_over():
    rows = [dict(model="rvi", ratio=np.float32(r), hidden=h, seed=s, loss=2 - r + 0.01 * s) for r in (0.1, 0.5) for h in ([64], (64, 64)) for s in range(3)]
    rows += [
        dict(model=m, ratio=None, hidden=h, seed=s, loss=v + 0.01 * s) for m, v in (("vad", 1.7), ("vae", 1.8)) for h in ((64,), (64, 64)) for s in range(3)
    ]
    frame = pd.DataFrame(rows)
    half = {"model": "rvi", "ratio": 0.5}
    claim = lower(frame, "loss", half, ["vad", "vae"], ["hidden"])
    assert claim.counts["holds"] == claim.counts["n"] == 4 and claim.cells[0].ours == "rvi ratio 0.5"
    assert lower(frame, "loss", {"model": "rvi", "ratio": 0.1}, "vad", over=["hidden"]).verdict == "contradicted"
    assert lower(frame, "loss", half, {"model": "rvi", "ratio": 0.1}, over=["hidden"]).cells[0].n == 3
    with pytest.raises(ValueError, match="`cells` or `over`"):
        lower(frame, "loss", half, "vad")
    with pytest.raises(ValueError, match="no column 'size'"):
        lower(frame, "loss", {"size": 3}, "vad")


def test_over_compares_the_same_settings_only():
    frame = pd.DataFrame(
        [dict(model=m, seed=s, rate=r, loss=r + (m == "vad")) for m in ("rvi", "vad") for s in range(3) for r in (1, 2, 3) if not (m == "vad" and r == 3)]
    )
    cell = lower(frame, "loss", "rvi", "vad", over=["rate"]).cells[0]
    assert (cell.mean, cell.unpaired, cell.ours_mean) == (-1, 3, 1.5)


def test_empty_frame_is_inconclusive():
    for claim in (
        lower(pd.DataFrame(), "loss", "rvi", "vad"),
        faster(pd.DataFrame(), "curve", "rvi", "vad"),
        sooner(pd.DataFrame(), "curve", "rvi", "vad"),
        fewer(pd.DataFrame(), "seconds", "rvi", "vad"),
        decreasing(pd.DataFrame(), "loss", "ratio"),
        best_higher(pd.DataFrame(), "lr", "a", "b"),
    ):
        assert claim.verdict == "inconclusive" and "no cell ran" in claim.summary and claim._repr_markdown_()
    assert list(table([])) and Claims()._repr_markdown_()


def curves(ours, rival):
    return pd.DataFrame(
        [
            dict(model=m, seed=s, curve=np.asarray(c, "float32") if c is not None else None)
            for m, side in (("rvi", ours), ("vad", rival))
            for s, c in enumerate(side)
        ]
    )


def test_sooner():
    slow, quick, dead = [4, 3, 2, 1], [2, 1, 0.5, 0.4], [4, NAN, NAN, NAN]
    claim = sooner(curves([quick] * 3, [slow] * 3), "curve", "rvi", "vad")
    assert claim.verdict == "reproduced" and (claim.cells[0].ours_mean, claim.cells[0].rival_mean) == (2, 4)
    back = sooner(curves([slow] * 3, [quick] * 3), "curve", "rvi", "vad").cells[0]
    assert (back.outcome, back.never, back.ours_mean) == ("contradicted", 3, 5)
    assert sooner(curves([slow] * 3, [slow] * 3), "curve", "rvi", "vad").verdict == "inconclusive"
    assert sooner(curves([slow] * 3, [dead] * 3), "curve", "rvi", "vad").verdict == "reproduced"
    assert sooner(curves([dead] * 3, [slow] * 3), "curve", "rvi", "vad").verdict == "contradicted"
    assert sooner(curves([quick, None, quick], [slow] * 3), "curve", "rvi", "vad").cells[0].unpaired == 1
    wobble = [4, 1, 2, 1.5]  # the rival is timed at the first epoch it is as low as at its end
    assert sooner(curves([wobble] * 2, [wobble] * 2), "curve", "rvi", "vad").cells[0].rival_mean == 2
    with pytest.raises(ValueError, match="equally long"):
        sooner(curves([quick] * 2, [slow[:3]] * 2), "curve", "rvi", "vad")


@given(st.lists(finite, min_size=1, max_size=20), finite)
def test_epochs_to_reach(curve, value):
    e = epochs_to_reach(curve, value)
    assert all(v > value for v in curve[: e - 1]) and (e == len(curve) + 1 or curve[e - 1] <= value)


# --- speed at equal losses --------------------------------------------------------------------------------------------

EPOCHS = np.arange(1, 201)
falling = st.lists(st.floats(0.01, 0.5), min_size=60, max_size=60).map(lambda drops: np.exp(-np.cumsum(drops)))  # (60,) loss after each epoch, no rest
wobbly = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30).map(np.array)


def slowed(curve, times):
    "A curve that goes the same way, `times` as slowly: known at every epoch that is a multiple of `times`, even in the logarithm between them."
    return np.exp(np.interp(np.arange(1, len(curve) + 1) / times, np.arange(len(curve) + 1), np.log([curve[0] * 1.5, *curve])))


@given(falling, st.integers(2, 5))
def test_a_curve_three_times_faster_gives_three(curve, times):
    assert speed(curve, slowed(curve, times)) == pytest.approx(times, rel=1e-9)
    assert speed(slowed(curve, times), curve) == pytest.approx(1 / times, rel=1e-9)


@given(wobbly, wobbly, st.floats(0.01, 100))
def test_speed_is_symmetric_and_has_no_unit(a, b, unit):
    assert speed(a, a) == 1
    assert speed(a, b) * speed(b, a) == pytest.approx(1, rel=1e-12)
    assert speed(unit * a, unit * b) == pytest.approx(speed(a, b), rel=1e-6)
    levels = common_levels(a, b)
    assert len(levels) == 10 and (np.diff(levels) <= 0).all() and np.array_equal(levels, common_levels(b, a))
    assert levels[-1] >= max(final_loss(a), final_loss(b))
    ratios = first_epochs(b, levels) / first_epochs(a, levels)
    assert ratios.min() * (1 - 1e-9) <= speed(a, b) <= ratios.max() * (1 + 1e-9)


@given(wobbly)
def test_first_epochs_lie_where_the_curve_first_gets_there(curve):
    levels = np.sort(curve)[::-1]
    for level, epoch in zip(levels, first_epochs(curve, levels), strict=True):
        whole = epochs_to_reach(curve, level)
        assert max(1, whole - 1) <= epoch <= whole


@pytest.mark.parametrize("above, below, answer", [(2, 0.5, 1), (3, 3, 3), (4, 1, 2)])
def test_crossing_curves_give_their_average(above, below, answer):
    steps, pace = np.arange(1, 21), 4  # the loss is exp(-step); the rival takes 4 epochs a step
    known = lambda times: np.exp(-np.interp(EPOCHS, [0, *times], [0, *steps]))
    ours = known(np.where(steps <= 10, pace / above, pace / below) * steps)
    assert speed(ours, known(pace * steps)) == pytest.approx(answer, rel=0.01)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 1.7, 3, 8]), st.floats(5, 40), st.floats(0.8, 1.25))
@settings(max_examples=100, deadline=None)
def test_noise_at_the_end_changes_nothing(seed, times, pace, floor):
    rng = np.random.default_rng(seed)
    tremble = lambda c: c * np.exp(np.where(EPOCHS > 160, 0.01 * rng.standard_normal(len(c)), 0))
    rival, ours = (f + 0.5 * np.exp(-EPOCHS / p) for f, p in ((0.05, pace), (0.05 * floor, pace / times)))
    assert speed(tremble(ours), tremble(rival)) == pytest.approx(speed(ours, rival), rel=0.02)
    spike = rival.copy()
    spike[-1] *= 3
    assert speed(ours, spike) == pytest.approx(speed(ours, rival), rel=0.02)


def test_levels_begin_where_both_were_seen_and_end_where_both_arrive():
    a, b = np.array([8.0, 4.0, 2.0, 1.0]), np.array([4.0, 2.0, 0.5, 0.1])
    np.testing.assert_allclose(common_levels(a, b), 4 * (1 / 4) ** (np.arange(0.05, 1, 0.1)))
    assert speed([1.0, 0.5, 0.4], [4.0, 3.0, 2.0]) == pytest.approx(3)  # no level between: a lower bound


def test_curves_with_holes_and_without_meaning():
    hole = np.array([np.nan, 4, np.inf, 2, 1])
    assert speed(hole, hole) == 1 and np.array_equal(first_epochs(hole, [8, 4, 1]), [2, 2, 5])
    with pytest.raises(ValueError, match=r"above zero.* its lowest is -1"):
        speed([1.0, -1.0], [1.0, 0.5])
    with pytest.raises(ValueError, match=r"gets to, 1 or more; got 0\.5"):
        first_epochs([2.0, 1.0], [0.5])


def test_faster():
    quick, dead = 0.05 + 0.5 * np.exp(-EPOCHS / 10), np.where(EPOCHS < 9, 1.0, NAN)
    slow = np.exp(np.interp(EPOCHS / 3, [0, *EPOCHS], np.log([0.55, *quick])))
    claim = faster(curves([quick, quick * 1.1], [slow, slow * 1.1]), "curve", "rvi", "vad")
    cell = claim.cells[0]
    assert claim.verdict == "reproduced" and claim.kind == "faster"
    assert cell.times == pytest.approx((3, 3, 3), rel=0.01) and cell.rival_mean / cell.ours_mean == pytest.approx(3, rel=0.01)
    assert "the rival takes 3.00 to 3.00 times as long" in claim.summary and "VAD takes 3.00 times as long" in cells_table(claim).notes[0]
    assert from_json(json.loads(json.dumps(to_json(claim)))) == claim
    assert faster(curves([slow] * 2, [quick] * 2), "curve", "rvi", "vad").verdict == "contradicted"
    assert faster(curves([slow] * 2, [slow] * 2), "curve", "rvi", "vad").verdict == "inconclusive"
    assert faster(curves([slow] * 2, [dead] * 2), "curve", "rvi", "vad").verdict == "reproduced"
    lost = faster(curves([dead, quick], [slow] * 2), "curve", "rvi", "vad").cells[0]
    assert (lost.outcome, lost.diverged) == ("inconclusive", (1, 0, 0)) and cell.diverged == (0, 0, 0)
    assert faster(curves([quick, None], [slow] * 2), "curve", "rvi", "vad").cells[0].unpaired == 1
    with pytest.raises(ValueError, match="equally long"):
        faster(curves([quick] * 2, [slow[:3]] * 2), "curve", "rvi", "vad")


def test_faster_averages_curves_over_settings():
    halves = pd.concat([curves([c] * 2, [2 * c] * 2).assign(lr=lr) for lr, c in ((0.1, np.array([8.0, 4, 2, 1])), (0.2, np.array([4.0, 3, 2, 1])))])
    cell = faster(halves, "curve", "rvi", "vad", over=["lr"]).cells[0]
    assert cell.times[0] == pytest.approx(speed([6, 3.5, 2, 1], [12, 7, 4, 2]))


def test_who_ends_lower_plays_no_part():
    stuck, patient = np.maximum(0.05 + 0.5 * np.exp(-EPOCHS / 5), 0.2), 0.05 + 0.5 * np.exp(-EPOCHS / 15)
    assert faster(curves([stuck] * 2, [patient] * 2), "curve", "rvi", "vad").verdict == "reproduced"
    assert sooner(curves([stuck] * 2, [patient] * 2), "curve", "rvi", "vad").cells[0].never == 2


def test_time_at_levels_and_fewer():
    quick = 0.05 + 0.5 * np.exp(-EPOCHS / 10)
    slow = np.exp(np.interp(EPOCHS / 3, [0, *EPOCHS], np.log([0.55, *quick])))
    frame = curves([quick] * 2, [slow] * 2).assign(rate=0.5).rename(columns={"curve": "train_curve"})
    frame["epoch_seconds"] = frame.model.map({"rvi": 2.0, "vad": 1.0})
    timed = time_at_levels(frame, "rvi", ["vad"], ["rate"])
    times = {unit: times_fewer(timed, unit, ["rate", "rival"]).times[0] for unit in ("epochs", "seconds")}
    assert times == pytest.approx({"epochs": 3, "seconds": 1.5}, rel=0.01) and not timed.never.any()
    both = pd.concat([timed.assign(model="rvi"), timed.assign(model="vad", seconds=timed.rival_seconds)])
    claim = fewer(both, "seconds", "rvi", "vad", ["rate"])
    assert claim.cells[0].times[0] == pytest.approx(times["seconds"]) and claim.verdict == "reproduced"
    assert fewer(both, "seconds", "vad", "rvi", ["rate"]).verdict == "contradicted"


def test_decreasing_and_best_higher():
    frame = pd.DataFrame(
        [dict(model="rvi", seed=s, ratio=r, loss=v + 0.001 * s, test=abs(r - 0.5)) for s in range(3) for r, v in ((0.9, 1), (0.1, 3), (0.5, 2))]
    )
    claim = decreasing(frame, "loss", "ratio")
    assert claim.verdict == "reproduced" and [c.ours for c in claim.cells] == ["rvi ratio 0.5", "rvi ratio 0.9"]
    assert decreasing(frame, "loss", "ratio", levels=[0.9, 0.5, 0.1]).verdict == "contradicted"
    assert best_higher(frame, "ratio", "loss", "test").verdict == "reproduced"
    assert best_higher(frame, "ratio", "test", "loss").verdict == "contradicted"
    assert best_higher(frame, "ratio", "test", "test").verdict == "inconclusive"


# --- properties -------------------------------------------------------------------------------------------------------


@given(tables(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_row_order_changes_nothing(frame, seed):
    shuffled = frame.sample(frac=1, random_state=seed)
    for kind in (lower, higher, not_worse):
        assert kind(frame, "loss", "rvi", "vad", ["rate"]) == kind(shuffled, "loss", "rvi", "vad", ["rate"])


@given(tables(), st.permutations(range(100)))
@settings(max_examples=60, deadline=None)
def test_names_of_seeds_do_not_matter(frame, names):
    renamed = frame.assign(seed=[names[s] for s in frame.seed])
    assert lower(frame, "loss", "rvi", "vad", ["rate"]) == lower(renamed, "loss", "rvi", "vad", ["rate"])


@given(tables())
@settings(max_examples=60, deadline=None)
def test_swapping_sides_mirrors(frame):
    there, back = (lower(frame, "loss", *sides, ["rate"]) for sides in (("rvi", "vad"), ("vad", "rvi")))
    assert [MIRROR[c.outcome] for c in there.cells] == [c.outcome for c in back.cells]


@given(tables())
@settings(max_examples=60, deadline=None)
def test_a_verdict_follows_from_its_counts(frame):
    claim = lower(frame, "loss", "rvi", "vad", ["rate"])
    n, holds, contradicted = claim.counts["n"], claim.counts["holds"], claim.counts["contradicted"]
    assert n == holds + contradicted + claim.counts["inconclusive"] == len(claim.cells)
    assert (claim.verdict == "reproduced") == (holds == n > 0)
    assert (claim.verdict == "partly") == (0 < holds < n)
    assert (claim.verdict == "contradicted") == (holds == 0 < contradicted)
    assert ("CONTRADICTED" in claim.summary) == (contradicted > 0)


@given(tables())
@settings(max_examples=60, deadline=None)
def test_what_holds_strictly_is_not_worse(frame):
    strict, weak = (kind(frame, "loss", "rvi", "vad", ["rate"]) for kind in (lower, not_worse))
    assert all(w.outcome == "holds" for s, w in zip(strict.cells, weak.cells, strict=True) if s.outcome == "holds")
    assert all(s.outcome == "contradicted" for s, w in zip(strict.cells, weak.cells, strict=True) if w.outcome == "contradicted")


@given(tables())
@settings(max_examples=40, deadline=None)
def test_json_round_trip(frame):
    claim = not_worse(frame.assign(groups=[[25, 50]] * len(frame)), "loss", "rvi", "vad", ["rate", "groups"], missing=["a", "b"])
    text = json.dumps(to_json(claim), allow_nan=False)
    assert from_json(json.loads(text)) == claim


def test_save_and_load(tmp_path):
    claims = [lower(frame_of([1, 1, NAN], [2, 2, 2]), "loss", "rvi", "vad", figure="fig03", text="RVI - lower, always")]
    path = save_claims(tmp_path / "new" / "claims.json", claims)
    assert load_claims(path) == tuple(claims) and isinstance(load_claims(path), Claims)
    before = path.read_bytes()
    with pytest.raises(AttributeError):
        save_claims(path, [*claims, "not a claim"])
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["claims.json"]


def test_a_file_without_a_field_has_its_default():
    body = to_json(lower(frame_of([1, 1], [2, 2]), "loss", "rvi", "vad"))
    del body["cells"][0]["ratio"]
    assert from_json(body).cells[0].ratio is False


def test_claims_are_frozen_values():
    cell = Cell((), "rvi", "vad", -1, 3, -1.0, -2.0, -0.5)
    claim = Claim("fig03", "lower", "lower", "loss", (cell,))
    assert hash(claim) == hash(Claim("fig03", "lower", "lower", "loss", (cell,)))
    with pytest.raises(AttributeError):
        cell.low = 1
    with pytest.raises(AttributeError):
        claim.verdict = "reproduced"


@given(st.lists(st.one_of(st.none(), st.text(max_size=3), finite, st.integers(-9, 9), st.lists(finite, max_size=3)), max_size=6))
def test_rank_orders_anything(values):
    values = [plain(v) for v in values]
    backwards = values[::-1]
    assert sorted(values, key=rank) == sorted(backwards, key=rank) or len(set(map(rank, values))) < len(values)
