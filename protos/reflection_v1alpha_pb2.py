# SPDX-License-Identifier: Apache-2.0
"""The service of reflection_v1alpha.proto."""

from fused_mlp.protos.descriptors import names_of

globals().update(names_of("reflection_v1alpha.proto"))
