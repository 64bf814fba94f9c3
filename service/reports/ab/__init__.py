"""The report of `fused-mlp ab`: a table for the terminal and a page with plots. Needs neither torch nor a kernel."""
