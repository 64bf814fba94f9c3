# SPDX-License-Identifier: Apache-2.0
"""`import fused_mlp`: what it offers, what it leaves unimported, and what it says when something is missing. Each test
runs a fresh interpreter, since this one has imported everything already."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import fused_mlp

PUBLIC = {
    "AsyncClient", "Client", "FusedMLP", "KernelError", "KernelInputError", "KernelRefuted", "KernelUnavailable", "Mlp",
    "MlpSpec", "ModelLoadError", "PredictError", "RetryPolicy", "Tls", "__version__", "compile", "from_onnx",
    "from_safetensors", "from_state_dict", "from_torch", "fuse_mlps", "load", "save", "serve", "split",
}  # fmt: skip
HEAVY = ("torch", "grpc", "numpy", "pydantic", "onnx", "triton")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def imported_by(code: str) -> set[str]:
    """Which heavy packages are imported once `code` has run."""
    return set(
        run(f"{code}\nimport sys\nprint(*[name for name in {HEAVY} if sys.modules.get(name)])").split()
    )


def test_the_public_names_are_listed_and_can_be_had():
    assert set(fused_mlp.__all__) == PUBLIC
    assert set(dir(fused_mlp)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(fused_mlp, name) is not None


def test_the_version_is_that_of_the_installed_package():
    assert fused_mlp.__version__ == version("fused-mlp")


def test_the_same_name_is_the_same_object_everywhere():
    assert fused_mlp.Mlp is fused_mlp.models.Mlp
    assert fused_mlp.KernelInputError is fused_mlp.kernels.KernelInputError
    assert fused_mlp.Client is fused_mlp.service.client.Client


def test_a_wrong_name_is_named():
    with pytest.raises(AttributeError, match="module 'fused_mlp' has no attribute 'from_tourch'"):
        fused_mlp.from_tourch  # noqa: B018
    with pytest.raises(ImportError, match="from_tourch"):
        from fused_mlp import from_tourch  # noqa: F401


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import fused_mlp; dir(fused_mlp)", set()),
        ("from fused_mlp import __version__", set()),
        ("import fused_mlp.models, fused_mlp.kernels", {"numpy", "pydantic"}),
        ("from fused_mlp import from_onnx, from_safetensors, from_state_dict", {"numpy", "pydantic"}),
        ("from fused_mlp import from_torch", {"numpy", "pydantic", "torch"}),
    ],
)
def test_only_what_is_needed_is_imported(code, expected):
    assert imported_by(code) == expected


LOAD = "from fused_mlp.models.demo import REPOSITORY; mlp = fused_mlp.load(REPOSITORY / 'digits' / '1'); "
TORCH = "make install"
SERVE = "pip install 'fused-mlp[serve]'"


@pytest.mark.parametrize(
    ("missing", "code", "text"),
    [
        ("torch", "fused_mlp.from_torch", f"fused_mlp.from_torch needs torch: {TORCH}"),
        ("torch", "fused_mlp.FusedMLP", f"fused_mlp.FusedMLP needs torch: {TORCH}"),
        ("torch", "fused_mlp.fuse_mlps", f"fused_mlp.fuse_mlps needs torch: {TORCH}"),
        ("torch", LOAD + "mlp.to_torch()", f"Mlp.to_torch needs torch: {TORCH}"),
        (
            "torch",
            LOAD + "fused_mlp.compile(mlp, variant='unfused')",
            f"eager: torch is not installed: {TORCH}",
        ),
        (
            "torch",
            LOAD + "fused_mlp.compile(mlp, backend='torch')",
            f"'torch': torch is not installed: {TORCH}",
        ),
        ("onnx", "fused_mlp.from_onnx(sys.executable)", "onnx package: pip install 'fused-mlp[onnx]'"),
        ("pydantic", "fused_mlp.load", f"fused_mlp.load needs pydantic: {SERVE}"),
        ("safetensors", "fused_mlp.load", f"fused_mlp.load needs safetensors: {SERVE}"),
        ("numpy", "fused_mlp.compile", "fused_mlp.compile needs numpy: pip install fused-mlp"),
        ("grpc", "fused_mlp.Client", "fused_mlp.Client needs grpc: pip install fused-mlp"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(missing, code, text):
    lines = [f"import sys; sys.modules[{missing!r}] = None", "import fused_mlp", "try:", f"    {code}"]
    said = run("\n".join([*lines, "except Exception as error:", "    print(error)"]))
    assert text in said
    assert len(said.splitlines()) == 1
