# SPDX-License-Identifier: Apache-2.0
"""Files of torch.export.save, read without torch's loaders: archive.py the entries, graph.py the JSON graph,
operators.py the operators that may run, program.py the module that comes of them."""
