"""Neural-tangent-kernel theory of deep ensembles, exact and with symmetry as a first-class citizen."""
