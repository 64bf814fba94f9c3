"""Reports for people: tables, plots and pages, all in one style."""
