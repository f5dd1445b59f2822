"""Game of membership in an audit: the candidates that an attack is shown, and what its scores say of the pairs."""
