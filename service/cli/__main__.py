"""`python -m service.cli`, where the script `fused-mlp` is not on the path."""

from service.cli import main

main()
