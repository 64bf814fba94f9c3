# SPDX-License-Identifier: Apache-2.0
"""Reads ONNX graphs for from_onnx.py: the file, what its operators make of rows, and a check of the result. The only
part that uses the onnx package."""
