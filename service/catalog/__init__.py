"""What is served, and under which policy."""
