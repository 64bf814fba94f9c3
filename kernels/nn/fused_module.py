# SPDX-License-Identifier: Apache-2.0
"""`FusedMLP`: the fused kernel as one nn.Module, in place of the module it is made from."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any, List, NamedTuple  # noqa: UP035 - TorchScript reads List only

import numpy as np
import torch
from torch import Tensor, nn

from fused_mlp.kernels.base import Kernel, KernelInfo
from fused_mlp.kernels.errors import KernelInputError
from fused_mlp.kernels.nn import operator as _operator  # noqa: F401 - registers torch.ops.fused_mlp.mlp
from fused_mlp.kernels.nn import reference
from fused_mlp.kernels.nn.answers import built, form_of, tensors_of
from fused_mlp.kernels.nn.packed import (
    addresses_and_versions,
    forget,
    forget_expired,
    kernel_for,
    parse_spec,
    threads_of_torch,
)
from fused_mlp.models import MlpSpec
from fused_mlp.models.importers.from_torch import Reading, read_module
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES
from fused_mlp.models.program.inputs import Field, Input, InputError, by_name
from fused_mlp.models.weights.mlp import expected_shapes

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")  # others know no autocast, and asking about it is an error


class _Parameters(nn.Module):
    """A module's parameters under their names, without what it does with them. TorchScript compiles every
    submodule; these have nothing to compile."""


class _Slot(NamedTuple):
    """Where a tensor of the program is, and what is done to it first."""

    part: nn.Module
    name: str
    buffer: bool = False
    transposed: bool = False
    shape: tuple[int, ...] | None = None  # another one than it has there

    def tensor(self) -> Tensor:
        found: Any = self.part._buffers[self.name] if self.buffer else self.part._parameters[self.name]
        if self.transposed:
            found = found.T
        if self.shape is None:
            return found  # type: ignore[no-any-return]
        if found.dim() < 2 and found.numel() == 1:  # one number for all features
            return found.expand(self.shape)  # type: ignore[no-any-return]
        return found.reshape(self.shape)  # type: ignore[no-any-return]


class FusedMLP(nn.Module):
    """A torch module that runs an MLP as one fused call, in place of the module it was made from.

    It shares its parameters with that module, under the same names: a state_dict of either loads into the other, and
    one optimizer serves both. Where autograd records the call it runs as eager layers would, and is differentiated as
    they are; so it does under `torch.autocast`, which decides about dtypes. It works in `torch.compile`,
    `torch.export` and TorchScript. BatchNorm and Dropout are as in eval mode, and a call in training mode is refused
    where the module has one.

    **Weights that change.** Weights that were written to (an optimizer step, `load_state_dict`) are packed again at
    the next call. That is cheap on the CPU. Every other kernel is made anew, on CUDA with the whole choice of a
    strategy, which takes seconds: use it there for weights that rest. Writes through `.data` leave no trace: call
    `refresh()` after them.

    **Weights that are folded.** Some weights exist in the program only as computed from several of the module's: a
    BatchNorm or a scale of the input that is folded into the layer beside it, or weight_norm. Such a weight is a
    parameter of its own, `fused.<name of it in the program>`. It has the value that it had when the FusedMLP was
    made, and is trained by itself. `folded` names the entries of the module that are in it, or in the program's
    formulas (a number within a condition, or one that is computed from a parameter); a state_dict of the module does
    not load then. What holds none of the module's parameters (numbers in its forward, what is computed from its
    buffers, matrices that place and sum features) are buffers outside of the state_dict.

    Args:
        module: What `fused_mlp.from_torch` understands.
        backend: As for `fused_mlp.compile`.
        threads: Of one call. Default: as `torch.set_num_threads` says, also later.
        example: As for `fused_mlp.from_torch`.
        in_features: As for `fused_mlp.from_torch`.

    Raises:
        ModelLoadError: The module is no MLP; the text names the line of your code.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).eval()
        >>> fused = fused_mlp.FusedMLP(net)
        >>> x = torch.randn(5, 8)
        >>> torch.allclose(fused(x), net(x), atol=1e-5)
        True
    """

    __jit_unused_properties__ = ["spec", "rows_only", "folded"]  # noqa: RUF012 - as TorchScript looks for it

    def __init__(
        self,
        module: nn.Module,
        backend: str = "auto",
        threads: int | None = None,
        *,
        example: Tensor | None = None,
        in_features: int | None = None,
    ) -> None:
        super().__init__()
        reading = read_module(module, example, in_features=in_features, dtype="float32", trainable=True)
        spec = reading.mlp.spec
        self._spec = spec.model_dump_json()
        self._in_features = spec.in_features
        self._has_record = spec.inputs is not None  # which is float32, whatever the weights are
        self._out_features = spec.out_features
        columns = [spec.columns(output.name) for output in spec.outputs]
        self._columns = [
            (each.start, each.stop, list(tensor.shape[1:]))
            for each, tensor in zip(columns, tensors_of(reading.answer), strict=True)
        ]
        self._form = form_of(reading.answer)
        self._backend = backend
        self._threads = threads or 0
        self._flatten = len(spec.input_shape or ()) > 1 or any(
            isinstance(part, nn.Flatten) for part in module.modules()
        )
        # A softmax, or a concatenation, over dim 1 is one over the features of (rows, features) only.
        self._rows_only = self._flatten or not _takes_leading_dimensions(module, spec)
        self._drops = any(
            isinstance(part, _BATCH_NORMS) or (isinstance(part, _DROPOUTS) and part.p > 0)
            for part in module.modules()
        )
        # A caller's inference mode ends before the module does, and its tensors count no changes.
        with torch.inference_mode(False):
            self._slots, self._folded = self._adopt_all(reading)
        found = [
            (part, name)
            for part in self.modules()
            for name in ("weight", "bias")
            if name in part._parameters or name in part._buffers
        ]
        # TorchScript can look for weights and biases only.
        places: dict[tuple[int, str], int] = {
            (id(part), name): index for index, (part, name) in enumerate(found)
        }
        scriptable = all(
            (id(slot.part), slot.name) in places and not slot.transposed and slot.shape is None
            for slot in self._slots
        )
        self._order = [places[id(slot.part), slot.name] for slot in self._slots] if scriptable else []
        self._kernel: Kernel | None = None
        self._packed_from: tuple[Any, ...] = ()
        self.training = module.training
        self._check_dtypes()
        weakref.finalize(self, forget_expired).atexit = False
        if self._weights()[0].dtype in TORCH_DTYPES.values():
            self._fresh_kernel()  # a kernel that cannot be had, or that is wrong, is better known now
        if spec.inputs is not None:
            self.__class__ = _FusedInputs
        elif self._form.kind != "tensor" or len(self._form.shape) != 1:
            self.__class__ = _FusedHeads

    @classmethod
    def from_torch(
        cls,
        module: nn.Module,
        example: Tensor | None = None,
        *,
        in_features: int | None = None,
        backend: str = "auto",
        threads: int | None = None,
    ) -> FusedMLP:
        """The same as the class itself, with the arguments in the order of `fused_mlp.from_torch`.

        It answers what the module does: a tensor, a tuple, a dict.
        """
        return cls(module, backend, threads, example=example, in_features=in_features)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features), of the dtype and on the device of the weights. Answers what the module does."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            kernel = self._kernel_unseen(x)
            if kernel is not None:
                return kernel(x)
            if not isinstance(x, Tensor):
                raise TypeError(
                    f"FusedMLP: expected a torch.Tensor, got {type(x).__name__}; torch.from_numpy makes one of an array"
                )
        if self._drops and self.training:
            raise RuntimeError(
                "FusedMLP has no dropout masks and no statistics of a batch: call eval(), or make it from a module "
                "without Dropout and BatchNorm"
            )
        if self._flatten and x.dim() > 1:
            x = x.flatten(1)
        if not self._traces():
            fits = x.dim() > 0 and x.shape[-1] == self._in_features
            if not fits or (self._rows_only and x.dim() != 2):
                raise RuntimeError(f"FusedMLP: expected (rows, {self._in_features}), got {list(x.shape)}")
        if x.dim() == 2:
            return self._run(x)
        shape = list(x.shape[:-1]) + [self._out_features]  # noqa: RUF005 - TorchScript has no star
        return self._run(x.reshape(-1, self._in_features)).reshape(shape)

    def _run(self, rows: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            if len(self._order) == 0:
                raise RuntimeError(
                    "FusedMLP: TorchScript takes parameters that are named weight or bias only, as they are: "
                    "not transposed, nor one number for all features"
                )
            found: List[Tensor] = []  # noqa: UP006
            for part in self.modules():  # unrolled when it is compiled
                if hasattr(part, "weight"):
                    found.append(part.weight)  # type: ignore[arg-type]
                if hasattr(part, "bias"):
                    found.append(part.bias)  # type: ignore[arg-type]
            weights = [found[index] for index in self._order]
        else:
            weights = self._weights()
            device = rows.device.type
            if device in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device):
                # It decides about dtypes, layer by layer.
                return reference.forward(rows, weights, parse_spec(self._spec))
        of_weights = rows.dtype == weights[0].dtype or self._has_record
        if not of_weights or rows.device != weights[0].device:
            raise RuntimeError(
                f"FusedMLP: expected {weights[0].dtype} on {weights[0].device}, got {rows.dtype} on {rows.device}"
            )
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            pass
        elif self._is_recorded(rows, weights):
            return reference.forward(rows, weights, parse_spec(self._spec))
        return torch.ops.fused_mlp.mlp(rows, weights, self._spec, self._backend, self._threads)  # type: ignore[no-any-return]

    def _traces(self) -> bool:
        """torch.jit.trace records questions about shapes as tensors, and warns about each answer."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return False
        return torch.jit.is_tracing()  # type: ignore

    def _adopt_all(self, reading: Reading) -> tuple[list[_Slot], tuple[str, ...]]:
        """A place for each tensor of the program, and the entries of the module that have none."""
        module = reading.module
        like = next((each for each in module.parameters() if each.is_floating_point()), torch.zeros(0))
        trained = any(each.requires_grad for each in module.parameters())
        persistent = set(module.state_dict())
        entries: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
        entries |= module.named_buffers(remove_duplicate=False)
        children = {name.split(".")[0] for name in entries}
        apart = {name: _unused(name, children) for name in ("fused", "constants")}
        slots: list[_Slot] = []
        used: set[int] = set()
        exact = reading.exact.tensors()
        for name, shape in expected_shapes(reading.mlp.spec).items():
            origin = reading.origins.get(name, "")
            transposed = origin not in entries and origin.endswith(".T")
            key = origin.removesuffix(".T") if transposed else origin
            entry = entries.get(key)
            one = entry is not None and entry.dim() < 2 and entry.numel() == 1
            kept = entry is not None and (one or entry.numel() == math.prod(shape))
            if entry is not None and kept and (isinstance(entry, nn.Parameter) or entry.dtype == like.dtype):
                used.add(id(entry))
                slot = self._place(key, entry, persistent=key in persistent)
                own = tuple(entry.T.shape if transposed else entry.shape)
                slots.append(slot._replace(transposed=transposed, shape=None if own == shape else shape))
                continue
            tensor = torch.tensor(np.asarray(exact[name]), dtype=like.dtype, device=like.device)
            if name in reading.fixed:
                slots.append(self._place(f"{apart['constants']}.{name}", tensor, persistent=False))
            else:
                folded = nn.Parameter(tensor, requires_grad=trained)
                slots.append(self._place(f"{apart['fused']}.{name}", folded))
        rest = [key for key, entry in entries.items() if key in persistent and id(entry) not in used]
        return slots, tuple(rest)

    def _place(self, key: str, tensor: Tensor, *, persistent: bool = True) -> _Slot:
        """Register the tensor under the key."""
        *path, name = key.split(".")
        place: nn.Module = self
        for step in path:
            if step not in place._modules:
                place.add_module(step, _Parameters())
            place = place._modules[step]  # type: ignore[assignment]
        if isinstance(tensor, nn.Parameter):
            place.register_parameter(name, tensor)
            return _Slot(place, name)
        place.register_buffer(name, tensor, persistent)
        return _Slot(place, name, buffer=True)

    def _check_dtypes(self) -> None:
        dtypes = {weight.dtype for weight in self._weights()}
        if len(dtypes) > 1:
            raise KernelInputError(
                f"expected weights of one dtype, got {', '.join(sorted(map(str, dtypes)))}"
            )

    @torch.jit.unused
    def _weights(self) -> List[Tensor]:  # noqa: UP006
        return [slot.tensor() for slot in self._slots]

    @torch.jit.unused
    def _is_recorded(self, rows: Tensor, weights: List[Tensor]) -> bool:  # noqa: UP006
        """Whether autograd records the call, and nothing else does. A backward pass of the operator has to compute the
        layers again, and weights in training would be packed for a single call: a training step measured twice as
        long as eager's. What is compiled, traced or profiled keeps its one operator."""
        return (
            torch.is_grad_enabled()
            and (rows.requires_grad or any(weight.requires_grad for weight in weights))
            and not torch.compiler.is_compiling()
            and not torch._C._is_tracing()
            and not torch.autograd.profiler._is_profiler_enabled
        )

    @torch.jit.unused
    def _kernel_unseen(self, x: Tensor) -> Kernel | None:
        """The kernel, where a call around torch's dispatcher (which saves two thirds of the time of a small model) is
        what going through it would be: plain float32 rows, nothing that records the call (autograd, a trace, a
        profiler), nothing that stands in for the tensors."""
        if (
            torch.compiler.is_compiling()
            or torch._C._is_tracing()
            or type(x) is not Tensor
            or x.dtype is not torch.float32
            or not x.is_cpu
            or x.dim() != 2
            or x.shape[1] != self._in_features
            or self._flatten
            or (self._drops and self.training)
            or torch.is_autocast_enabled("cpu")
            or torch.autograd.profiler._is_profiler_enabled
            or torch._C._len_torch_dispatch_stack() != 0
            or torch._C._functorch.peek_interpreter_stack() is not None
        ):
            return None
        weights = self._weights()
        if torch.is_grad_enabled() and (x.requires_grad or any(w.requires_grad for w in weights)):
            return None
        if weights[0].dtype is not torch.float32 or not weights[0].is_cpu:
            return None
        return self._fresh_kernel(weights)

    @torch.jit.unused
    def _fresh_kernel(self, weights: List[Tensor] | None = None) -> Kernel:  # noqa: UP006
        weights = self._weights() if weights is None else weights
        now = (addresses_and_versions(weights), self._threads or threads_of_torch(weights))
        if self._kernel is None or self._packed_from[0] != now:
            self._kernel = kernel_for(weights, self._spec, self._backend, self._threads)
            # Their memory is kept as well: as long as it is, no other weights can come to lie there.
            self._packed_from = (now, [weight.detach() for weight in weights])
        return self._kernel

    @property
    def spec(self) -> MlpSpec:
        """What it computes."""
        return MlpSpec.model_validate_json(self._spec)

    @property
    def rows_only(self) -> bool:
        """Whether the module it was made from takes (rows, features) only, and not (..., features)."""
        return self._rows_only

    @property
    def folded(self) -> tuple[str, ...]:
        """The entries of the module's state_dict that are no tensors here: folded into `fused.*`, or into formulas."""
        return self._folded

    def describe(self) -> KernelInfo:
        """The kernel that runs this module's weights as they are now."""
        return self._fresh_kernel().describe()

    def refresh(self) -> None:
        """Pack the weights again, as after a write that left no trace in their version counters."""
        forget(self._weights())
        self._kernel = None

    def __repr__(self) -> str:
        folded = f", folded: {', '.join(self._folded)}" if self._folded else ""
        return f"FusedMLP({self.spec.summary()}{folded})"

    def __getstate__(self) -> dict[str, Any]:
        """A kernel is made again where the copy is used."""
        return {**self.__dict__, "_kernel": None, "_packed_from": ()}


class _FusedHeads(FusedMLP):
    """One that answers what the module itself does: several outputs in its own form, or (rows,).
    Not for TorchScript, which wants one type of result."""

    def forward(self, x: Tensor) -> Any:
        joined = super().forward(x)
        heads = []
        for start, stop, shape in self._columns:
            head = joined[..., start:stop]
            if len(shape) != 1:
                head = head.reshape(list(head.shape[:-1]) + shape)
            heads.append(head)
        return built(self._form, heads)


class _FusedInputs(_FusedHeads):
    """One of a module with several inputs: takes them as the module does, or as one dict, or packed by `spec.pack`."""

    def forward(self, *given: Any, **named: Any) -> Any:
        packed = len(given) == 1 and isinstance(given[0], Tensor) and given[0].dim() == 2
        if packed and not named and given[0].shape[1] == self._in_features and len(self._inputs) > 1:
            return super().forward(given[0])
        return super().forward(self._pack(given, named))

    @property
    def _inputs(self) -> tuple[Input, ...]:
        return parse_spec(self._spec).inputs or ()

    def _pack(self, given: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        """A record. Floats stay in torch, so that autograd reaches them."""
        values: Any = given
        if len(given) == 1 and isinstance(given[0], Mapping):
            values = given[0]
        elif named:
            values = {each.name: value for each, value in zip(self._inputs, given, strict=False)} | named
        values = by_name(self._inputs, values)
        device = self._weights()[0].device
        parts = []
        for each in self._inputs:
            value = values[each.name]
            floats = isinstance(value, Tensor) and value.is_floating_point() and each.fields == (Field(),)
            if floats and value.shape[1:] == each.shape:
                parts.append(value.reshape(len(value), -1).to(device, torch.float32))
            else:
                array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
                parts.append(torch.from_numpy(each.pack(array)).to(device))
        if len({len(part) for part in parts}) > 1:
            rows = ", ".join(
                f"{len(part)} of {each.name!r}" for each, part in zip(self._inputs, parts, strict=True)
            )
            raise InputError(f"inputs of different rows: {rows}")
        return torch.cat(parts, 1)


def _takes_leading_dimensions(module: nn.Module, spec: MlpSpec) -> bool:
    """Whether it computes (a, b, features) as it does (a * b, features), and answers tensors: tried out."""
    weight = next(module.parameters(), None)
    x = torch.randn(2, 3, spec.in_features, generator=torch.Generator().manual_seed(0))
    if weight is not None:
        x = x.to(weight.device, weight.dtype)
    modes = {part: part.training for part in module.modules()}
    try:
        with torch.no_grad():
            module.eval()
            expected = list(tensors_of(module(x.flatten(0, 1))))
            got = list(tensors_of(module(x)))
    except Exception:  # whatever a user's code does with another shape
        return False
    finally:
        for part, training in modes.items():
            part.training = training
    return all(
        b.shape == (2, 3, *a.shape[1:]) and torch.allclose(a, b.flatten(0, 1), rtol=1e-2, atol=1e-2)
        for a, b in zip(expected, got, strict=True)
    )


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
