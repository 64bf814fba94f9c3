# SPDX-License-Identifier: Apache-2.0
"""Weights, buffers, streams and graphs: what runs a plan on a device, and which plan serves. Only `triton_programs`
imports triton."""
