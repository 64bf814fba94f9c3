# SPDX-License-Identifier: Apache-2.0
"""The messages of health.proto; their types are in health_pb2.pyi."""

from fused_mlp.protos.descriptors import names_of

globals().update(names_of("health.proto"))
