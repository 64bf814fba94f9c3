# SPDX-License-Identifier: Apache-2.0
"""The messages of open_inference.proto; their types are in open_inference_pb2.pyi."""

from fused_mlp.protos.descriptors import names_of

globals().update(names_of("open_inference.proto"))
