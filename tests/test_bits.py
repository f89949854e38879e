"""The same run has the same bits in a process that compiles its loops and in one that finds them compiled."""

import os
import subprocess
import sys

LEARN = """
from rvi_nb.runs.compute import compute
from rvi_nb.runs.run import Run
result = compute([Run(dataset="toy", n_train=600, n_test=40, epochs=6)])[0]
print(*(result[k].tobytes().hex() for k in ("train_curve", "test_curve")), float(result["imputation_loss"]).hex())
"""


def test_first_and_second_process_agree(tmp_path):
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    learn = lambda: subprocess.run([sys.executable, "-c", LEARN], env=env, check=True, capture_output=True, text=True).stdout
    first = learn()
    assert any(tmp_path.rglob("*.nbi"))
    assert first and learn() == first
