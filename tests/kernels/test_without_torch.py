# SPDX-License-Identifier: Apache-2.0
"""The fused CPU path from file to result, in processes of their own: torch is neither imported nor needed."""

import subprocess
import sys

import numpy as np
import pytest

LOAD_AND_RUN = """
import numpy as np
from fused_mlp import kernels, models
from fused_mlp.models.demo import REPOSITORY
mlp = models.Repository(REPOSITORY).load("digits")
kernel = kernels.compile(mlp, device={device!r}, tf32=False)
x = np.asarray([mlp.example], np.float32)
y = kernel(x)
kernel(x.astype(np.float64)), kernel(x[:, ::-1]), kernel(x, np.empty_like(y))
"""
ABSENT = "import sys; sys.modules['torch'] = None\n"
NO_TORCH = "import sys; assert sys.modules.get('torch') is None\n"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_model_is_loaded_compiled_and_run_without_torch(device, absent):
    if device == "auto" and not absent:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("auto takes the GPU, through torch")
    code = LOAD_AND_RUN.format(device=device) + NO_TORCH + "print(kernel.describe().backend, y.argmax())"
    assert run((ABSENT if absent else "") + code) == "cpu 4"  # what the example shows


SLOW_TORCH = """
import gate
gate.begun.set()
gate.go_on.wait()
class cuda:
    is_available = staticmethod(lambda: False)
"""
GO_ON_SOON = "threading.Timer(0.3, gate.go_on.set).start(); kernel = "


def test_a_model_is_compiled_while_another_thread_imports_torch(tmp_path):
    """As at a start with several models, one of which needs torch."""
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    (tmp_path / "gate.py").write_text("import threading\nbegun, go_on = threading.Event(), threading.Event()")
    code = f"""
import sys, threading
sys.path.insert(0, {str(tmp_path)!r})
import gate
importing = threading.Thread(target=__import__, args=("torch",))
importing.start()
gate.begun.wait()
{LOAD_AND_RUN.format(device="auto").replace("kernel = ", GO_ON_SOON).replace(", tf32=False", "")}
importing.join()
print(kernel.describe().backend, y.argmax())
"""
    assert run(code) == "cpu 4"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_half_precision_is_saved_loaded_and_compiled_without_torch(dtype, tmp_path):
    code = f"""
import numpy as np
import fused_mlp
from fused_mlp.models import LayerSpec, LayerWeights
rows = np.random.default_rng(0).standard_normal((5, 3), np.float32)
spec = fused_mlp.MlpSpec(in_features=3, layers=(LayerSpec(out_features=5, bias=False),), dtype={dtype!r})
mlp = fused_mlp.Mlp(spec, [LayerWeights(rows)])
fused_mlp.save(mlp, {str(tmp_path / "1")!r})
again = fused_mlp.load({str(tmp_path / "1")!r})
assert again.layers[0].weight.dtype == mlp.layers[0].weight.dtype
assert np.array_equal(again.layers[0].weight, mlp.layers[0].weight)
print(fused_mlp.compile(again, device="cpu")(np.eye(3, dtype=np.float32)).tolist())
"""
    weight = np.random.default_rng(0).standard_normal((5, 3), np.float32)
    rounded = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]  # half a step of each
    np.testing.assert_allclose(eval(run(code + NO_TORCH)), weight.T, rtol=rounded)


def test_checkpoints_and_onnx_files_are_read_without_torch(tmp_path):
    onnx = pytest.importorskip("onnx")
    from safetensors.numpy import save_file

    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_file({"0.weight": weight, "0.bias": np.ones(2, np.float32)}, tmp_path / "m.safetensors")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Gelu", ["h"], ["y"])],
        "mlp",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", 2])],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(weight.T), "w")],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    code = f"""
import fused_mlp
a = fused_mlp.from_safetensors({str(tmp_path / "m.safetensors")!r}, activation="relu")
b = fused_mlp.load({str(tmp_path / "m.onnx")!r})
print(a.layers[0].weight.tolist() == b.layers[0].weight.tolist(), b.spec.output_activation)
"""
    assert run(code + NO_TORCH) == "True gelu"


def test_a_tensor_is_taken_by_a_kernel_that_was_compiled_before_torch_was_imported():
    code = LOAD_AND_RUN.format(device="cpu") + NO_TORCH
    code += """
import torch
rows = torch.from_numpy(x)
for call in range(2):
    result = kernel(rows)
    assert isinstance(result, torch.Tensor) and torch.equal(result, torch.from_numpy(y))
    into = torch.empty_like(result)
    assert kernel(rows, into) is into and torch.equal(into, result)
    assert kernel(rows.double()).dtype == torch.float64
print("ok")
"""
    assert run(code) == "ok"
