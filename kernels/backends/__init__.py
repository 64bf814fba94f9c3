"""One module per kernel backend; importing it registers the backend."""
