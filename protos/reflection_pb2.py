# SPDX-License-Identifier: Apache-2.0
"""The messages of reflection.proto; their types are in reflection_pb2.pyi."""

from fused_mlp.protos.descriptors import names_of

globals().update(names_of("reflection.proto"))
