# SPDX-License-Identifier: Apache-2.0
"""The messages of fused_mlp.proto; their types are in fused_mlp_pb2.pyi."""

from fused_mlp.protos.descriptors import names_of

globals().update(names_of("fused_mlp.proto"))
