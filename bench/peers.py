"""The imputers that tables.py compares, each with the settings its authors recommend or ship.

A method is a function that imports what it needs and returns the version used and `fill(seen, seed)`, a generator: it yields the filled table and then, if the
method can, a list of DRAWS completed tables. Methods that take numbers only (`numbers` below) all get the same ones: standardised numbers, a column of 0 and 1
for each category (one column for a boolean or two categories), and the category with the largest filled value comes out. gcimpute alone gets a column less for
each category: columns that add up to 1 make its correlations singular, and then its numbers are worse than the mean's.
"""

import hashlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

DRAWS = 5
Fill = Callable[[pd.DataFrame, int], Iterator]


class Numbers:
    "A table with holes as numbers, and the way back."

    def __init__(self, seen: pd.DataFrame, all_marks: bool = True):
        self.seen, self.all_marks = seen, all_marks
        self.values = {c: None if seen[c].dtype == np.float64 else sorted(seen[c].dropna().unique()) for c in seen}
        self.means, self.stds = ({c: getattr(seen[c], how)() for c, v in self.values.items() if v is None} for how in ("mean", "std"))

    def encode(self) -> np.ndarray:  # (n, e)
        return np.column_stack([self._encode(c) for c in self.seen])

    def _encode(self, name: str) -> np.ndarray:  # (n, width)
        column, values = self.seen[name], self.values[name]
        if values is None:
            return ((column - self.means[name]) / (self.stds[name] or 1)).to_numpy()[:, None]
        marks = np.stack([(column == v).to_numpy(float, na_value=0) for v in values], 1)
        marks[column.isna()] = np.nan
        return marks[:, self._first(name) :]

    def _first(self, name: str) -> int:
        "The category that the marks begin with; the mark of one before it is what the others leave of 1."
        return int(len(self.values[name]) == 2 or not self.all_marks)

    def decode(self, x: np.ndarray) -> pd.DataFrame:
        "The table, its holes filled."
        frame, at = self.seen.copy(), 0
        for name, values in self.values.items():
            width = 1 if values is None else len(values) - self._first(name)
            part, at = x[:, at : at + width], at + width
            if values is None:
                cells = part[:, 0] * (self.stds[name] or 1) + self.means[name]
            else:
                marks = np.column_stack([1 - part.sum(1), part]) if self._first(name) else part
                cells = np.array(values, dtype=object)[marks.argmax(1)]
            holes = frame[name].isna().to_numpy()
            frame.loc[holes, name] = cells[holes]
        return frame


def numbers(fill: Callable[[np.ndarray, int], Iterator], all_marks: bool = True) -> Fill:
    "A method for arrays, made one for tables."

    def table(seen: pd.DataFrame, seed: int) -> Iterator:
        both = Numbers(seen, all_marks)
        results = fill(both.encode(), seed)
        yield both.decode(np.asarray(next(results)))
        if draws := next(results, None):
            yield [both.decode(np.asarray(d)) for d in draws]

    return table


def mean_mode() -> tuple[str, Fill]:
    "Numbers by the column's mean, categories by its most common one."

    def fill(seen: pd.DataFrame, seed: int) -> Iterator:
        yield seen.fillna({c: seen[c].mean() if seen[c].dtype == np.float64 else seen[c].mode()[0] for c in seen})

    return "", fill


def nearest() -> tuple[str, Fill]:
    "KNNImputer, five neighbours."
    from sklearn.impute import KNNImputer

    return f"scikit-learn {version('scikit-learn')}", numbers(lambda x, seed: iter([KNNImputer(keep_empty_features=True).fit_transform(x)]))


def linear() -> tuple[str, Fill]:
    "IterativeImputer with BayesianRidge; draws by `sample_posterior`, five rounds each, as many as R's mice takes."
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    def fill(x: np.ndarray, seed: int) -> Iterator:
        yield IterativeImputer(random_state=seed, keep_empty_features=True).fit_transform(x)
        chain = lambda i: IterativeImputer(sample_posterior=True, max_iter=5, random_state=1000 * seed + i, keep_empty_features=True)
        yield [chain(i).fit_transform(x) for i in range(DRAWS)]

    return f"scikit-learn {version('scikit-learn')}", numbers(fill)


def trees() -> tuple[str, Fill]:
    "IterativeImputer with ExtraTrees; no draws."
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    def fill(x: np.ndarray, seed: int) -> Iterator:
        forest = ExtraTreesRegressor(n_estimators=30, min_samples_leaf=2, random_state=seed)
        yield IterativeImputer(forest, max_iter=5, random_state=seed, keep_empty_features=True).fit_transform(x)

    return f"scikit-learn {version('scikit-learn')}", numbers(fill)


def miceforest() -> tuple[str, Fill]:
    "LightGBM by chained equations: its predictions fill the table, mean matching (its default; its fast kind where that fails) makes the draws."
    import miceforest as mf

    def run(seen: pd.DataFrame, seed: int, n: int, **settings) -> list[pd.DataFrame]:
        plain = seen.rename(columns={c: f"c{j}" for j, c in enumerate(seen)})
        plain = plain.astype({c: "category" for c, dtype in plain.dtypes.items() if dtype != np.float64})
        kernel = mf.ImputationKernel(plain, num_datasets=n, random_state=seed, **settings)
        kernel.mice(iterations=4, num_threads=1, num_iterations=50, verbose=False)
        return [kernel.complete_data(i).set_axis(seen.columns, axis=1).astype(seen.dtypes.to_dict()) for i in range(n)]

    def fill(seen: pd.DataFrame, seed: int) -> Iterator:
        yield run(seen, seed, 1, mean_match_candidates=0)[0]
        try:
            yield run(seen, seed, DRAWS)
        except ValueError:  # its logits of sure categories are infinite; matching by chances has none
            yield run(seen, seed, DRAWS, mean_match_strategy="fast")

    return f"miceforest {version('miceforest')}, lightgbm {version('lightgbm')}", fill


def soft_impute() -> tuple[str, Fill]:
    "Our own short implementation: iterated soft-thresholded singular values, the threshold chosen by a tenth of the observed cells; no draws."
    return "own", numbers(lambda x, seed: iter([complete_matrix(x, seed)]))


def complete_matrix(x: np.ndarray, seed: int, halvings: int = 10) -> np.ndarray:
    "The matrix of small nuclear norm that is near the observed cells."
    centre, seen = np.nanmean(x, 0), ~np.isnan(x)
    x = np.where(seen, x - centre, 0)
    held = seen & (np.random.default_rng(seed).random(x.shape) < 0.1)
    thresholds = np.linalg.norm(x, 2) * 0.5 ** np.arange(1, halvings + 1)

    def path(mask: np.ndarray) -> Iterator[np.ndarray]:
        z = np.zeros_like(x)
        for threshold in thresholds:
            for _ in range(100):
                u, s, v = np.linalg.svd(np.where(mask, x, z), full_matrices=False)
                before, z = z, u * np.maximum(s - threshold, 0) @ v
                if np.square(z - before).sum() <= 1e-5 * np.square(before).sum():
                    break
            yield z

    errors = [np.square(z - x)[held].mean() for z in path(seen & ~held)]
    return list(path(seen))[int(np.argmin(errors))] + centre


def copula() -> tuple[str, Fill]:
    "gcimpute's Gaussian copula."
    from gcimpute.gaussian_copula import GaussianCopula

    def fill(x: np.ndarray, seed: int) -> Iterator:
        model = GaussianCopula(random_state=seed, verbose=0)
        yield model.fit_transform(x)
        yield list(np.moveaxis(model.sample_imputation(x, num=DRAWS), 2, 0))

    return f"gcimpute {version('gcimpute')}", numbers(fill, all_marks=False)


def hyperimpute() -> tuple[str, Fill]:
    "HyperImpute: a model chosen for each column; categories as codes, all of them few enough to be classified; no draws."
    from hyperimpute.plugins.imputers import Imputers

    def fill(seen: pd.DataFrame, seed: int) -> Iterator:
        values = {c: sorted(seen[c].dropna().unique()) for c, dtype in seen.dtypes.items() if dtype != np.float64}
        codes = seen.assign(**{c: pd.Index(v).get_indexer(seen[c].astype(object)) for c, v in values.items()}).astype(np.float64).mask(seen.isna())
        few = max([5, *(len(v) + 2 for v in values.values())])  # 5 as it comes; it counts the hole as a value, and takes fewer than this for classes
        full = Imputers().get("hyperimpute", random_state=seed, class_threshold=few).fit_transform(codes).set_axis(seen.columns, axis=1)
        cells = {c: np.array(v, dtype=object)[full[c].round().clip(0, len(v) - 1).astype(int)] for c, v in values.items()}
        yield seen.where(seen.notna(), full.assign(**cells)).astype(seen.dtypes.to_dict())

    return f"hyperimpute {version('hyperimpute')}, scikit-learn {version('scikit-learn')}", fill


def relay() -> tuple[str, Fill]:
    "RelayImputer with the defaults of the library."
    import rvi_nb
    from rvi_nb import RelayImputer

    def fill(seen: pd.DataFrame, seed: int) -> Iterator:
        imputer = RelayImputer(random_state=seed).fit(seen)
        yield imputer.transform(seen)
        yield imputer.impute(seen, n_draws=DRAWS)

    sources = b"".join(p.read_bytes() for p in sorted(Path(rvi_nb.__file__).parent.glob("[im]*/*.py")))
    return f"rvi_nb {rvi_nb.__version__}, sources {hashlib.sha256(sources).hexdigest()[:8]}", fill


METHODS = {
    "mean/mode": mean_mode,
    "KNN": nearest,
    "Iterative": linear,
    "ExtraTrees": trees,
    "softImpute": soft_impute,
    "miceforest": miceforest,
    "gcimpute": copula,
    "HyperImpute": hyperimpute,
    "RVI": relay,
}
