"""Relay Variational Inference: learn from data full of holes, without an encoder."""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "data.datasets": ["Dataset", "load", "register_dataset"],
    "model.missing": ["boxes", "incomplete", "mcar"],
    "model.decoder": ["decoder", "stack"],
    "model.likelihood": ["Bernoulli", "Categorical", "Gaussian", "Likelihood", "Mixed"],
    "model.posterior": ["Amortised", "MeanField", "Posterior", "Relay"],
    "model.optim": ["RowAdam", "RowTable"],
    "model.step": ["evaluate"],
    "model.fit": ["fit"],
    "model.infer": ["infer"],
    "model.models": ["Model", "register_model"],
    "model.own": ["RelayEmbedding", "RelayVI"],
    "impute.joint": ["pool"],
    "impute.estimators": ["RelayEncoder", "RelayImputer"],
}
__all__ = sorted(name for names in _HOMES.values() for name in names)  # noqa: PLE0605


def __getattr__(name: str):
    "Import a name when it is asked for, so that `rvi --help` does not wait for PyTorch."
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
