"""The maths: generalised means, the simplex, the network of aggregated f-averages, how it is trained and read."""
