# SPDX-License-Identifier: Apache-2.0
"""The state_dict in a file of torch.save. No code in it is run; torch, an extra, is imported for the first one."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fused_mlp.models.errors import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor

# Under which training scripts keep the state_dict among optimiser state and epoch counts.
_WRAPPERS = ("state_dict", "model_state_dict", "model")


def read_pickle(path: Path) -> Mapping[str, Tensor]:
    try:
        import torch  # noqa: PLC0415 - an extra
    except ImportError:
        raise ModelLoadError(f"{path}: reading it needs torch: pip install 'fused-mlp[torch]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd pickles, which are refused below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file") from None
    except pickle.UnpicklingError as error:
        raise ModelLoadError(
            f"{path}: not a state_dict, or one with Python objects in it, which are not loaded: "
            "save module.state_dict()"
        ) from error
    except Exception as error:  # a damaged pickle may fail in any way
        raise ModelLoadError(f"{path}: not a readable state_dict file ({type(error).__name__})") from error
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in content.items()
    ):
        raise ModelLoadError(f"{path}: expected a state_dict, a mapping from names to tensors")
    return content
