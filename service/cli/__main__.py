# SPDX-License-Identifier: Apache-2.0
"""`python -m fused_mlp.service.cli`, where the script `fused-mlp` is not on the path."""

from fused_mlp.service.cli import main

main()
