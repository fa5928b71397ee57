"""One module a data set: it reads the standard layout and registers a benchmark."""
