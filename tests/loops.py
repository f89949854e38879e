"""Learn a little with some models, so that their loops are compiled, and say what came out.

    python tests/loops.py [--note] MODEL...

`make loops` has it noted before the tests, in processes that have to compile; test_bits.py compares with what a process learns that finds everything compiled.
"""

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTES = Path(sys.prefix) / "loops"


def sources() -> str:
    "What the numbers depend on: a hash of the package."
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("rvi_nb/**/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def learn(model: str) -> str:
    "Curves and a loss of a small run, to the last bit."
    from rvi_nb.runs.compute import compute
    from rvi_nb.runs.run import Run

    result = compute([Run(model=model, dataset="toy", n_train=600, n_test=40, epochs=6)])[0]
    return " ".join([*(result[k].tobytes().hex() for k in ("train_curve", "test_curve")), float(result["imputation_loss"]).hex()])


def noted(model: str) -> str | None:
    "What the last `make loops` learned, if it was with this package."
    path = NOTES / f"{model}.json"
    note = json.loads(path.read_text()) if path.exists() else {}
    return note["bits"] if note.get("sources") == sources() else None


if __name__ == "__main__":
    for model in [word for word in sys.argv[1:] if word != "--note"]:
        print(bits := learn(model))
        if "--note" in sys.argv and noted(model) is None:  # a note of those who compiled stays
            NOTES.mkdir(exist_ok=True)
            (NOTES / f"{model}.json").write_text(json.dumps({"sources": sources(), "bits": bits}))
