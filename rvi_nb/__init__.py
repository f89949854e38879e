__version__ = "0.1.0"

__all__ = ["RelayEncoder", "RelayImputer"]


def __getattr__(name: str):
    "Import the estimators when they are asked for, so that `rvi --help` does not wait for PyTorch."
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import estimator

    return getattr(estimator, name)
