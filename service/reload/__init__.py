"""Notices what changes in the repository while the server runs, and has the catalog follow."""
