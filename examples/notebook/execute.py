"""Runs a notebook from top to bottom and keeps its outputs in it: `python execute.py serve.ipynb`."""

import sys

import nbformat
from nbclient import NotebookClient

path = sys.argv[1]
notebook = nbformat.read(path, as_version=4)
NotebookClient(notebook, timeout=120, kernel_name="python3", record_timing=False).execute()
nbformat.write(notebook, path)
