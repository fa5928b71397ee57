"""The server of a model: routes, answers, and who may ask for how much."""
