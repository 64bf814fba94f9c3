# SPDX-License-Identifier: Apache-2.0
"""`kernels.FusedMLP` in place of the module it is made from: the same numbers, gradients, state and habits."""

import copy
import pickle
from typing import get_args

import pytest
import torch
from torch import nn
from torch._inductor.utils import is_cudagraph_unsafe_fx_node

from fused_mlp import models
from fused_mlp.kernels import FusedMLP, KernelInputError
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.nn import packed
from fused_mlp.kernels.nn.operator import mlp as operator
from fused_mlp.models.importers import from_torch
from fused_mlp.models.importers.torch.modules import GatedLinear, activation_module
from fused_mlp.models.program.spec import Activation


def relu_mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 17, bias=False), nn.GELU(), nn.Linear(17, 5)]
    return nn.Sequential(*layers).to(dtype)


class GegluBlock(nn.Module):
    """As in transformers; up before gate, so that the order of registration is not the order of use."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up_proj = nn.Linear(12, 30, dtype=dtype)
        self.gate_proj = nn.Linear(12, 30, dtype=dtype)
        self.act_fn = nn.GELU()
        self.down_proj = nn.Linear(30, 12, dtype=dtype)

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


# TorchScript lives on in what is deployed, however much torch asks people to move.
torchscript_is_deprecated = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

MODULES = {"relu": relu_mlp, "geglu": GegluBlock}


def width(module: nn.Module) -> int:
    return models.from_torch(module, dtype="float32").spec.in_features


@pytest.fixture(params=MODULES)
def module(request) -> nn.Module:
    return MODULES[request.param]()


def assert_close(actual, expected):
    # Sums of up to 33 products in another order, twice or three times in a row.
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def packings(monkeypatch):
    """How often weights were packed, by whom."""
    counted = []
    real_compile, real_repack = packed._compile, packed.CpuKernel.repacked
    monkeypatch.setattr(packed, "_compile", lambda *a: counted.append("compiled") or real_compile(*a))
    monkeypatch.setattr(
        packed.CpuKernel, "repacked", lambda *a: counted.append("repacked") or real_repack(*a)
    )
    return counted


def test_result_is_that_of_the_module(module):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(7, width(module))
    with torch.no_grad():
        assert_close(fused(x), module(x))
        assert_close(fused(x[0]), module(x[0]))
        assert_close(fused(x[:6].view(2, 3, -1)), module(x[:6].view(2, 3, -1)))
        assert fused(x[:0]).shape == module(x[:0]).shape
    assert fused.describe().backend == "cpu"
    assert repr(fused) == f"FusedMLP({fused.spec.summary()})"


def test_state_dict_loads_both_ways(module):
    fused = FusedMLP.from_torch(module)
    assert {k: v.shape for k, v in fused.state_dict().items()} == {
        k: v.shape for k, v in module.state_dict().items()
    }
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter))
    x = torch.randn(3, width(module))
    with torch.no_grad():
        fused(x)
        fused.load_state_dict(other.state_dict())
        assert_close(fused(x), other(x))
        module.load_state_dict(fused.state_dict())
        assert_close(module(x), other(x))


def test_weights_that_change_are_packed_again_and_others_are_not(module, packings):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(3, width(module))
    with torch.no_grad():
        for _ in range(3):
            fused(x)
        assert packings == ["compiled"]
        next(iter(module.parameters())).mul_(2.0)
        assert_close(fused(x), module(x))
        fused(x)
        assert packings == ["compiled", "repacked"]
        next(iter(module.parameters())).data.mul_(2.0)  # unseen by version counters, as documented
        fused.refresh()
        assert_close(fused(x), module(x))


def test_a_parameter_that_is_replaced_is_packed(module):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(3, width(module))
    key, old = next(iter(fused.named_parameters()))
    *path, name = key.split(".")
    for target in (fused, module):
        setattr(target.get_submodule(".".join(path)), name, nn.Parameter(torch.randn_like(old)))
    module.load_state_dict(fused.state_dict())
    with torch.no_grad():
        assert_close(fused(x), module(x))


def test_optimizer_step_trains_it_as_it_would_the_module(module, packings):
    twin = copy.deepcopy(module)
    fused = FusedMLP.from_torch(module)
    x = torch.randn(8, width(module))
    for trained in (fused, twin):
        optimizer = torch.optim.Adam(trained.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            trained(x).square().mean().backward()
            optimizer.step()
    with torch.no_grad():
        # Adam divides by the size of the gradient, which near zero magnifies a rounding.
        torch.testing.assert_close(fused(x), twin(x), rtol=1e-3, atol=1e-3)
    # Nothing is packed while it is trained.
    assert packings == ["compiled", "repacked"]


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_a_fused_optimizer_step_is_seen(module, kind):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(8, width(module))
    optimizer = getattr(torch.optim, kind)(fused.parameters(), lr=0.1, fused=True)
    with torch.no_grad():
        before = fused(x)
    fused(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.allclose(module(x), before)
        assert_close(fused(x), module(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_autocast_does_as_it_does_with_the_module(module, mode, dtype):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(4, width(module)).to(dtype)
    with torch.autocast("cpu", torch.bfloat16), mode():
        assert torch.equal(fused(x), module(x))
        assert fused(x).dtype == module(x).dtype == torch.bfloat16
    with mode():
        assert fused(x.float()).dtype == torch.float32


@pytest.mark.parametrize("route", ["module", "operator"])
def test_gradients_are_those_of_the_module(module, route):
    twin = copy.deepcopy(module)
    fused = FusedMLP.from_torch(module)

    def run(x):
        return fused(x) if route == "module" else operator(x, fused._weights(), fused._spec, "auto", 1)

    x, y = (
        torch.randn(6, width(module), generator=torch.Generator().manual_seed(3)).requires_grad_()
        for _ in "ab"
    )
    (run(x) ** 2).sum().backward()
    (twin(y) ** 2).sum().backward()
    assert_close(x.grad, y.grad)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(fused.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-4)


def test_frozen_weights_pass_gradients_to_the_input(module):
    fused = FusedMLP.from_torch(module.requires_grad_(False))
    x = torch.randn(2, width(module), requires_grad=True)
    (expected,) = torch.autograd.grad(module(x).sum(), x)
    (actual,) = torch.autograd.grad(fused(x).sum(), x)
    assert_close(actual, expected)


@pytest.mark.parametrize("activation", [*get_args(Activation), "softmax", "log_softmax"])
@pytest.mark.parametrize("gated", [False, True])
def test_gradcheck_of_every_activation(activation, gated):
    torch.manual_seed(5)
    if gated and activation in ("softmax", "log_softmax"):
        layers = [GatedLinear(nn.Linear(3, 4), nn.Linear(3, 4), nn.SiLU()), activation_module(activation)]
    elif gated:
        layers = [
            GatedLinear(nn.Linear(3, 4), nn.Linear(3, 4), activation_module(activation)),
            nn.Linear(4, 2),
        ]
    else:
        layers = [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), activation_module(activation)]
    module = nn.Sequential(*layers).double()
    fused = FusedMLP.from_torch(module)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    weights = tuple(fused._weights())
    torch.testing.assert_close(fused(x), module(x))
    assert torch.autograd.gradcheck(lambda x, *w: operator(x, list(w), fused._spec, "auto", 0), (x, *weights))
    assert torch.autograd.gradgradcheck(fused, (x,), fast_mode=True)  # a random direction of all of them


@torchscript_is_deprecated
def test_scripted_module_runs_saves_and_sees_new_weights(module, tmp_path):
    fused = FusedMLP.from_torch(module).eval()
    scripted = torch.jit.script(fused)
    x = torch.randn(4, width(module))
    with torch.no_grad():
        assert_close(scripted(x), module(x))
        assert_close(scripted(x.view(2, 2, -1)), module(x.view(2, 2, -1)))
        next(iter(module.parameters())).mul_(3.0)
        assert_close(scripted(x), module(x))
        torch.jit.save(scripted, tmp_path / "m.pt")
        loaded = torch.jit.load(tmp_path / "m.pt")
        assert_close(loaded(x), module(x))
    assert set(scripted.state_dict()) == set(module.state_dict())


@torchscript_is_deprecated
def test_traced_module_sees_new_weights(module):
    fused = FusedMLP.from_torch(module).eval()
    x = torch.randn(4, width(module))
    traced = torch.jit.trace(fused, (x,))
    with torch.no_grad():
        next(iter(module.parameters())).mul_(3.0)
        assert_close(traced(x), module(x))


def test_compiles_into_one_graph_with_one_operator(module, packings):
    fused = FusedMLP.from_torch(module)
    graphs = []
    # "aot_eager" runs the same tracing as inductor, and needs no C++ compiler.
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager", dynamic=True)
    explained = torch._dynamo.explain(fused)(torch.randn(4, width(module)))
    graphs = explained.graphs
    assert len(graphs) == 1
    assert sum("fused_mlp.mlp" in str(node.target) for node in graphs[0].graph.nodes) == 1
    x = torch.randn(5, width(module), requires_grad=True)
    result = compiled(x)
    assert_close(result, module(x))
    (actual,), (expected,) = (torch.autograd.grad(r.sum(), x) for r in (result, module(x)))
    assert_close(actual, expected)
    with torch.no_grad():
        for _ in range(3):
            assert_close(compiled(x), module(x))
    assert packings == ["compiled"]


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("folded", [False, True])
def test_made_and_compiled_in_inference_mode_it_runs_outside(backend, folded):
    torch._dynamo.reset()
    layers = [nn.Linear(6, 9), *([nn.BatchNorm1d(9)] if folded else []), nn.ReLU(), nn.Linear(9, 2)]
    module = nn.Sequential(*layers).eval()
    x = torch.randn(5, 6)
    with torch.inference_mode():
        fused = FusedMLP.from_torch(module, backend=backend)
        compiled = torch.compile(fused, backend="aot_eager")
        compiled(x)
    for call in (compiled, fused):
        assert_close(call(x), module(x))
        with torch.no_grad():
            assert_close(call(x), module(x))
    compiled(x.requires_grad_()).sum().backward()
    assert x.grad is not None


def test_reduce_overhead_leaves_the_operator_out_of_its_graphs(module):
    """A replayed CUDA graph would not ask whether the weights have changed."""
    graph = torch.export.export(FusedMLP.from_torch(module).eval(), (torch.randn(3, width(module)),)).graph
    nodes = [node for node in graph.nodes if node.target is operator]
    assert [is_cudagraph_unsafe_fx_node(node) for node in nodes] == [True]


def test_kernel_is_made_on_the_device_of_the_weights(module, monkeypatch):
    asked = []

    class OnSecondGpu(torch.Tensor):
        """Weights on a second GPU, as far as the question goes where they are."""

        @property
        def device(self):
            return torch.device("cuda:1")

    monkeypatch.setattr(packed, "compile", lambda mlp, **named: asked.append(named["device"]))
    weights = [weight.detach().as_subclass(OnSecondGpu) for weight in FusedMLP.from_torch(module)._weights()]
    packed._compile(weights, FusedMLP.from_torch(module)._spec, "auto", 0)
    assert asked[-1] == "cuda:1"


def test_exports_as_one_operator(module):
    fused = FusedMLP.from_torch(module).eval()
    rows = torch.export.Dim("rows", min=2, max=64)
    x = torch.randn(4, width(module))
    program = torch.export.export(fused, (x,), dynamic_shapes=({0: rows},))
    assert sum("fused_mlp.mlp" in str(node.target) for node in program.graph.nodes) == 1
    with torch.no_grad():
        assert_close(program.module()(x[:3]), module(x[:3]))


def test_operator_keeps_the_rules_of_torch_library(module):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(3, width(module), requires_grad=True)
    torch.library.opcheck(operator, (x, fused._weights(), fused._spec, "auto", 1))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_copies_are_independent(module, copied):
    fused = FusedMLP.from_torch(module)
    other = copied(fused)
    x = torch.randn(3, width(module))
    with torch.no_grad():
        expected = fused(x)
        for parameter in fused.parameters():
            parameter.zero_()
        assert_close(other(x), expected)
        assert not fused(x).any()


def test_moves_between_devices_and_dtypes(module):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(3, width(module))
    with torch.no_grad():
        expected = module(x)
        assert fused.to("cpu", torch.float64)(x.double()).dtype == torch.float64
        torch.testing.assert_close(fused(x.double()), module(x.double()))
        halved = fused.to(torch.bfloat16)
        # bfloat16 keeps 8 bits of the weights and of the result.
        torch.testing.assert_close(halved(x.bfloat16()).float(), expected, rtol=0.05, atol=0.05)
    assert copy.deepcopy(fused).to("meta")(x.bfloat16().to("meta")).shape == expected.shape


def test_packed_kernels_go_with_their_weights():
    packed.forget_expired()
    before = len(packed._PACKED)
    fused = FusedMLP.from_torch(relu_mlp())
    assert len(packed._PACKED) == before + 1
    del fused
    packed.forget_expired()
    assert len(packed._PACKED) == before


def test_what_it_cannot_take_is_refused_in_one_line():
    x = torch.randn(2, 20)
    with pytest.raises(
        KernelInputError, match=r"expected weights of one dtype, got torch\.bfloat16, torch\.float32"
    ):
        FusedMLP.from_torch(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16()))
    with pytest.raises(RuntimeError, match=r"expected \(rows, 20\), got \[2, 19\]"):
        FusedMLP.from_torch(relu_mlp())(x[:, :19])
    with pytest.raises(RuntimeError, match=r"expected torch\.float32 on cpu, got torch\.float64"):
        FusedMLP.from_torch(relu_mlp())(x.double())
    with pytest.raises(
        TypeError, match=r"expected a torch\.Tensor, got ndarray; torch\.from_numpy makes one"
    ):
        FusedMLP.from_torch(relu_mlp())(x.numpy())
    dropping = FusedMLP.from_torch(nn.Sequential(nn.Linear(20, 3), nn.Dropout(0.5)))
    with pytest.raises(RuntimeError, match="call eval"):
        dropping(x)
    assert dropping.eval()(x).shape == (2, 3)


def test_it_is_exported_once(monkeypatch):
    exports, export = [], from_torch.export_rows
    monkeypatch.setattr(from_torch, "export_rows", lambda *a: exports.append(a) or export(*a))
    FusedMLP.from_torch(relu_mlp())
    assert len(exports) == 1


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_it_follows_the_threads_of_torch_also_later(module, torch_threads):
    fused = FusedMLP.from_torch(module)
    x = torch.randn(7, width(module))
    with torch.no_grad():
        for count in (1, 2, 1):
            torch_threads(count)
            assert fused.describe().threads == min(count, usable_cores())
            assert_close(fused(x), module(x))
            assert_close(operator(x, fused._weights(), fused._spec, "auto", 0), module(x))
    addresses, _ = packed.addresses_and_versions(fused._weights())
    assert len([key for key in packed._PACKED if key[-1] == addresses]) == 1  # not one per number of threads


def test_threads_that_are_given_stay(module, torch_threads):
    fused = FusedMLP.from_torch(module, threads=3)
    torch_threads(1)
    with torch.no_grad():
        fused(torch.randn(2, width(module)))
    assert fused.describe().threads == 3
