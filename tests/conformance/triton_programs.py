# SPDX-License-Identifier: Apache-2.0
"""What an unmodified tritonclient does with a model of several outputs, and with one that takes images. A program of
its own, run by its own interpreter: `triton_programs.py TARGET`; prints one JSON object, case -> "ok" or what went
wrong."""

import sys

import numpy as np
import tritonclient.grpc as triton
from triton_shared import run_cases

client = triton.InferenceServerClient(sys.argv[1])
x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
pixels = np.random.default_rng(1).standard_normal((3, 1, 4, 4)).astype(np.float32)


def tensor(x):
    made = triton.InferInput("input", list(x.shape), "FP32")
    made.set_data_from_numpy(x)
    return made


def requested(*names):
    return [triton.InferRequestedOutput(name) for name in names]


def all_outputs_unless_asked():
    result = client.infer("policy", [tensor(x)])
    assert result.as_numpy("pi").shape == (3, 4)
    assert result.as_numpy("v").shape == (3, 1)


def outputs_by_name_in_any_order():
    both = client.infer("policy", [tensor(x)])
    swapped = client.infer("policy", [tensor(x)], outputs=requested("v", "pi"))
    for name in ("pi", "v"):
        np.testing.assert_array_equal(swapped.as_numpy(name), both.as_numpy(name))
    one = client.infer("policy", [tensor(x)], outputs=requested("v"))
    np.testing.assert_array_equal(one.as_numpy("v"), both.as_numpy("v"))
    assert one.as_numpy("pi") is None


def unknown_output():
    try:
        client.infer("policy", [tensor(x)], outputs=requested("q"))
    except triton.InferenceServerException as error:
        assert "expected 'pi' or 'v', got 'q'" in error.message()
    else:
        raise AssertionError("expected an error")


def shape_of_the_metadata():
    metadata = client.get_model_metadata("images")
    assert list(metadata.inputs[0].shape) == [-1, 1, 4, 4]
    shaped = client.infer("images", [tensor(pixels)]).as_numpy("output")
    flat = client.infer("images", [tensor(pixels.reshape(3, 16))]).as_numpy("output")
    assert shaped.shape == (3, 1)
    np.testing.assert_array_equal(shaped, flat)


run_cases(
    client, all_outputs_unless_asked, outputs_by_name_in_any_order, unknown_output, shape_of_the_metadata
)
