# SPDX-License-Identifier: Apache-2.0
"""The messages of orca.proto; their types are in orca_pb2.pyi."""

from fused_mlp.protos.descriptors import names_of

globals().update(names_of("orca.proto"))
