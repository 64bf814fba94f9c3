"""Profiles for people: a table for the terminal, flame graphs, plots and one self-contained page. Measures nothing."""
