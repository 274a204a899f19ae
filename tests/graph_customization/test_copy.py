"""pipeline.py alone in an empty folder: the file that people copy."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov

from notebooks.graph_customization import pipeline
from tests.utils.models.small import language_model, run, token_ids

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
import openvino as ov
import pipeline

assert pipeline.__file__ == {file!r}, pipeline.__file__
model = ov.Core().read_model("model.xml")
layer = "model.layers.0.mlp.up_proj"
new = pipeline.read_int4_weights(model)[layer]
passes = [pipeline.InsertSlice(), pipeline.ExposeHiddenState(), pipeline.InsertWeights({{layer: new}})]
print(pipeline.customize(model, passes).changed)
compiled = ov.Core().compile_model(model, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})
np.save("logits.npy", compiled([np.load("ids.npy")])[0])
loaded = {{name.split(".")[0] for name in sys.modules}}
print(sorted(loaded & {{"torch", "transformers", "nncf", "optimum", "utils", "notebooks", "tests", "gradio"}}))
"""


def test_the_pipeline_copied_alone_customizes_a_model(tmp_path):
    model, ids = language_model(storage="u4"), token_ids(0, batch=2)
    expected = run(model, ids)[:, -1:]
    ov.save_model(model, tmp_path / "model.xml")
    np.save(tmp_path / "ids.npy", ids)
    copy = Path(shutil.copy(pipeline.__file__, tmp_path / "pipeline.py"))
    program = PROGRAM.format(folder=str(tmp_path), file=str(copy))
    command = [sys.executable, "-I", "-c", program]  # -I: neither PYTHONPATH nor the working folder is searched
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3", "[]"]
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), expected)
