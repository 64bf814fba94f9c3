# SPDX-License-Identifier: Apache-2.0
"""See run.py."""

import sys

from fused_mlp.kernels.cuda.check.run import main

if __name__ == "__main__":
    sys.exit(main())
